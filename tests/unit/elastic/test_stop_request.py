"""One process that is told to end: what it answers, and how it leaves. Ranks that agree: tests/elastic."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

import deeppart
from deeppart.config.sources import STOP_FILE_VARIABLE
from deeppart.elastic import leave, should_stop, stop_request
from deeppart.extension import StopRequest


def test_a_signal_before_listening_is_nobodys() -> None:
    before = signal.getsignal(signal.SIGTERM)
    request = StopRequest([signal.SIGTERM])
    assert signal.getsignal(signal.SIGTERM) is before and request.reason is None
    assert not request.should_stop()
    assert signal.getsignal(signal.SIGTERM) is not before
    request.end()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("by_variable", [True, False])
def test_a_file_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_variable: bool) -> None:
    monkeypatch.setattr("deeppart.stopping.notices.WatchedFile.__init__.__defaults__", (0.0,))
    path = tmp_path / "STOP"
    request = StopRequest(file=path)
    if by_variable:
        monkeypatch.setenv(STOP_FILE_VARIABLE, str(path))
        monkeypatch.setattr(stop_request, "_request", None)
    asks = should_stop if by_variable else request.should_stop
    assert not asks()
    path.touch()
    assert asks()
    listening = stop_request._request if by_variable else request
    assert listening is not None and listening.reason == "file"
    listening.end()


@pytest.mark.parametrize("code", [None, 0, 75])
def test_leaving_makes_a_checkpoint_and_exits(tmp_path: Path, code: int | None) -> None:
    state = {"weights": torch.arange(5.0)}
    options = {} if code is None else {"code": code}
    with (
        pytest.raises(SystemExit) as caught,
        deeppart.Checkpointer(persistent_dir=tmp_path, every={"persistent": 100}) as checkpointer,
    ):
        leave(state, 7, checkpointer, **options)
    assert caught.value.code == (143 if code is None else code)
    state["weights"].zero_()
    with deeppart.Checkpointer(persistent_dir=tmp_path) as checkpointer:
        assert checkpointer.restore(state) == 7
    assert state["weights"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_checkpoint_that_fails_is_not_left_with(tmp_path: Path) -> None:
    checkpointer = deeppart.Checkpointer(persistent_dir=tmp_path / "ckpt")
    with pytest.raises(deeppart.errors.StateError):
        leave({"weights": object()}, 7, checkpointer)
    checkpointer.close()
