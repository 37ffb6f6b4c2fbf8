"""Rows of calls in one event: the same as one event after the other, whenever a failure strikes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import pytest
from deeppart_simulator.campaign import run as run_module
from deeppart_simulator.campaign.calm import Call, Calm, Pace, calm_call
from deeppart_simulator.campaign.failures import Scheduling, Waits
from deeppart_simulator.campaign.plan import Planned
from deeppart_simulator.campaign.run import run
from hypothesis import given
from hypothesis import strategies as st

from deeppart.model import LEVELS
from tests.simulator.campaign.jobs import DAY, busy


def _figures(document: Mapping[str, Any], of: str = "") -> Iterator[tuple[str, float]]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from _figures(value, f"{of}{name}.")
        else:
            yield of + name, float(value)


@pytest.mark.sweep(8)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize("days", [10, 3.3333])
@pytest.mark.parametrize(
    "every",
    [
        {"local": 1, "partner": 2, "persistent": 4},
        {"local": 1, "partner": 1, "persistent": 40},
        {"local": 2, "partner": 8, "persistent": 100},
        {"local": 3},
    ],
)
def test_a_run_is_the_same_call_by_call(
    monkeypatch: pytest.MonkeyPatch, every: dict[str, int], days: float, elastic: bool, seed: int
) -> None:
    usual, cadences = busy(elastic=elastic)
    turns = Scheduling(DAY, preemption_s=2 * DAY, waits=Waits(3600.0, exponential=True)) if seed == 2 else Scheduling()
    cadences = replace(cadences, every=every, wall_s=days * DAY, period_s=150.0, scheduling=turns)
    capture = "lazy" if seed == 1 else "eager"
    job = Planned(replace(usual.job, machine=usual.job.machine.with_failures(0.1), capture=capture))
    in_rows = dict(_figures(asdict(run(job, cadences, seed))))
    monkeypatch.setattr(run_module, "_MOST_CALM", 0)
    one_by_one = dict(_figures(asdict(run(job, cadences, seed))))
    assert in_rows == pytest.approx(one_by_one, rel=1e-9, abs=1e-5)
    assert one_by_one["failures.node"] > 5 or days < 5


def _walk(pace: Pace, calls: list[Call], until_s: float) -> dict[str, float]:
    """The same row in small steps of time."""
    now = trained = blocked = work = slowed = 0.0
    done = 0
    for number, call in enumerate(calls):
        blocked += min(call.blocked_s, max(0.0, until_s - now))
        now += call.blocked_s
        if now > until_s:
            break
        done += sum(now + at_s <= until_s for _, at_s in call.done_s)
        slow = min(call.busy_s, until_s - now)
        left = pace.work_s - call.busy_s * pace.rate * (1 - pace.interference)
        fast = 0.0 if number == len(calls) - 1 else min(left / pace.rate, max(0.0, until_s - now - slow))
        trained += slow + fast
        slowed += slow * pace.rate * pace.interference
        work += (slow * (1 - pace.interference) + fast) * pace.rate
        now += call.busy_s + left / pace.rate
        if now > until_s:
            break
    return {"trained": trained, "blocked": blocked, "work": work, "slowed": slowed, "done": done}


_LENGTHS = st.floats(0.0, 5.0)
_CALLS = st.builds(
    lambda blocked_s, first_s, second_s: Call(blocked_s, (("local", first_s), ("partner", first_s + second_s))),
    _LENGTHS, _LENGTHS, _LENGTHS,
)  # fmt: skip


@given(
    st.builds(Pace, st.floats(15.0, 40.0), st.floats(0.3, 1.0), st.floats(0.0, 0.2)),
    st.lists(_CALLS, min_size=1, max_size=6),
    st.floats(0.0, 1.0),
)
def test_a_part_of_a_row_is_what_has_passed_until_then(pace: Pace, calls: list[Call], share: float) -> None:
    calm = Calm(pace, calls)
    until_s = share * calm.takes_s
    passed = calm.after(until_s)
    expected = _walk(pace, calls, until_s)
    assert passed.trained_s + passed.blocked_s == pytest.approx(until_s)
    assert passed.trained_s == pytest.approx(expected["trained"], abs=1e-9)
    assert passed.blocked_s == pytest.approx(expected["blocked"], abs=1e-9)
    assert passed.work_s == pytest.approx(expected["work"], abs=1e-9)
    assert passed.slowed_s == pytest.approx(expected["slowed"], abs=1e-9)
    if share not in (0.0, 1.0):
        complete = sum(map(len, calm.complete(passed)))
        near = any(  # the last digits decide
            math.isclose(begin_s + call.blocked_s + at_s, until_s, rel_tol=1e-9, abs_tol=1e-9)
            for begin_s, call in zip(calm._begins, calls, strict=True)
            for at_s in (0.0, *(at_s for _, at_s in call.done_s))
        )
        assert near or complete == expected["done"]


def test_at_the_end_of_a_row_all_is_complete() -> None:
    calls = [Call(0.1, (("local", 0.3), ("partner", 0.7)))] * 7
    calm = Calm(Pace(1.1, 0.9, 0.05), calls)
    passed = calm.after(calm.takes_s)
    assert list(calm.complete(passed)) == [("local", "partner")] * 7
    assert passed.calls == 7 and not passed.blocking
    assert passed.work_s - 6 * 1.1 == pytest.approx(0.7 * 0.9 * 0.95)


def test_flushes_and_what_is_not_hidden_are_no_part_of_a_row() -> None:
    world = busy()[0].on(8)
    assert calm_call(world, ("local", "persistent")) is None and calm_call(world, ("persistent",)) is None
    assert calm_call(world, ()) == Call(0.0, ())
    call = calm_call(world, LEVELS[:2])
    assert call is not None
    assert call.done_s[0] == ("local", world.local_s) and call.blocked_s == world.times.blocked_s
    assert call.busy_s == pytest.approx(world.times.complete()["partner"] - world.times.blocked_s)
    pace = Pace(call.busy_s * 0.9, 1.0, 0.0)
    assert not pace.hides(call.busy_s) and Pace(call.busy_s * 1.1, 1.0, 0.0).hides(call.busy_s)
