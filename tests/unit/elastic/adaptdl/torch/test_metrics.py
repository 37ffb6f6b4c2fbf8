"""What a job measures of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from deeppart.elastic.adaptdl import checkpoint
from deeppart.elastic.adaptdl.goodput import PerfParams
from deeppart.elastic.adaptdl.torch import _metrics
from deeppart.elastic.adaptdl.torch._metrics import (
    get_goodput_fn,
    get_progress,
    profile_step_commit,
    profile_step_start,
    profile_sync_time,
    set_batch_size,
    update_grad_params,
    update_progress,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


def steps(clock: list[float], local: int, computing_s: float, exchange_s: float, accumulated: int = 0) -> None:
    for number in range(accumulated + 1):
        profile_step_start(local)
        clock[0] += computing_s
        if number == accumulated:
            clock[0] += exchange_s
            profile_sync_time(exchange_s)
        profile_step_commit(number < accumulated)


def test_times_are_counted_by_kind(clock: list[float]) -> None:
    steps(clock, 8, 1.0, 0.5, accumulated=2)
    steps(clock, 8, 1.0, 0.5)
    steps(clock, 16, 2.0, 0.5)
    profile = _metrics._metrics_state().profile
    assert profile[1, 1, 8] == pytest.approx(
        {"accum_step_time": 2.0, "accum_count": 2, "optim_step_time": 3.0, "optim_sync_time": 1.0, "optim_count": 2}
    )
    assert profile[1, 1, 16]["optim_count"] == 1 and len(profile) == 2


def test_what_an_exchange_takes_is_not_computing(clock: list[float]) -> None:
    for local in (8, 16, 32):
        steps(clock, local, 0.1 + 0.01 * local, 0.5)
    _metrics._fit_perf_params()
    found = _metrics._metrics_state().perf_params
    assert found is not None and (found.alpha_c, found.beta_c) == pytest.approx((0.1, 0.01), rel=0.35)


def test_a_fit_of_nothing_is_none() -> None:
    _metrics._fit_perf_params()
    assert _metrics._metrics_state().perf_params is None


def test_goodput_is_known_once_all_of_it_is(clock: list[float]) -> None:
    assert get_goodput_fn() is None
    set_batch_size(8, 64, (1, 32), True)
    update_grad_params("one", 1.0, 2.0)
    update_grad_params("two", 3.0, 4.0)
    update_grad_params("one", 2.0, 2.0)
    assert get_goodput_fn() is None
    steps(clock, 8, 1.0, 0.5)
    _metrics._fit_perf_params()
    function = get_goodput_fn()
    assert function is not None
    assert (function._grad_params, function._init_batch_size) == ((5.0, 6.0), 8)


def test_replica_0_fits_twice_a_minute(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    steps(clock, 8, 1.0, 0.0)
    steps(clock, 8, 29.0, 0.0)
    assert _metrics._metrics_state().perf_params is None
    steps(clock, 8, 2.0, 0.0)
    assert isinstance(_metrics._metrics_state().perf_params, PerfParams)


def test_all_of_it_survives(directory: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    steps(clock, 8, 1.0, 0.5)
    set_batch_size(8, 64, (1, 32), True)
    update_grad_params("one", 1.0, 2.0)
    update_progress(7.5)
    _metrics._fit_perf_params()
    before = {name: getattr(_metrics._metrics_state(), name) for name in _metrics._MetricsState._SAVED}
    checkpoint.save_all_states()
    checkpoint._states.clear()
    checkpoint._found.clear()
    monkeypatch.setattr(_metrics, "_state", None)
    assert get_progress() == 7.5
    assert {name: getattr(_metrics._metrics_state(), name) for name in before} == before
    steps(clock, 8, 1.0, 0.5)
    assert _metrics._metrics_state().profile[1, 1, 8]["optim_count"] == 2
