"""Requests to end a job at a checkpoint; whole jobs: tests/features/test_run.py."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import deeppart
from deeppart.progress import DIRECTORY_VARIABLE, STOPPED, leave_file
from deeppart.session import stops
from tests.unit.cli_support import block, call, call_json
from tests.waiting import wait_until

PATIENCE_S = 60.0


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stops, "_LOOK_EVERY_S", 0.02)


def halt(ck: deeppart.Checkpointer, directory: Path, *options: str) -> None:
    asked = call_json("halt", directory, *options)["halt"]
    file = ck._stops._file
    assert file is not None
    wait_until(lambda: file.found is not None and file.found.after == asked["after"], PATIENCE_S)


@pytest.mark.usefixtures("looking")
def test_of_two_requests_to_halt_the_later_one_counts(tmp_path: Path) -> None:
    ck = deeppart.Checkpointer(persistent_dir=str(tmp_path))
    halt(ck, tmp_path, "--after", "1000")
    ck.checkpoint({"a": 1}, 1)
    halt(ck, tmp_path)
    with pytest.raises(SystemExit) as ended:
        ck.checkpoint({"a": 2}, 2)
    assert ended.value.code == 0 and deeppart.load(tmp_path) == {"a": 2}
    with pytest.raises(SystemExit) as ended:  # as in `finally`; an error would be a failure, and the job start again
        ck.checkpoint({"a": 2}, 2, force=True)
    assert ended.value.code == 0


@pytest.mark.usefixtures("looking")
def test_the_last_checkpoint_is_made_although_an_earlier_one_is_under_way(tmp_path: Path) -> None:
    config = deeppart.Config(persistent_dir=str(tmp_path), on_busy="skip", flush_bandwidth=1e6, compression="none")
    ck = deeppart.Checkpointer(config)
    state = {"w": torch.arange(300_000, dtype=torch.float32)}
    halt(ck, tmp_path, "--after", "2")
    ck.checkpoint(state, 1).wait(timeout=PATIENCE_S)
    ck.checkpoint(state, 2)
    with pytest.raises(SystemExit):
        ck.checkpoint(state, 3)
    assert max(step["step"] for step in call_json("ls", tmp_path)["steps"] if step["state"] == "complete") == 3


def test_the_time_of_the_slowest_level_is_known_after_checkpoints_to_others(tmp_path: Path) -> None:
    """The last checkpoint goes there, and must be complete before the time is up."""
    every = {"local": 1, "persistent": 3}
    ck = deeppart.Checkpointer(
        persistent_dir=str(tmp_path / "p"), local_dir=str(tmp_path / "l"), every=every, flush_bandwidth=1e6,
        compression="none",
    )  # fmt: skip
    with ck:
        for step in (1, 2, 3):
            ck.checkpoint({"w": torch.arange(300_000, dtype=torch.float32)}, step).wait(
                "persistent" if step == 1 else "local", timeout=PATIENCE_S
            )
        assert ck._saves.safe_s > 0.5


def test_a_deadline_and_a_number_of_calls_exclude_each_other(tmp_path: Path) -> None:
    assert "--after" in call("halt", tmp_path, "--after", "3", "--before", "8h", code=2)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    stops._signals.cache_clear()
    before = {each: signal.signal(each, signal.SIG_DFL) for each in stops._SIGNALS}  # whatever earlier tests have left
    yield
    if (found := stops._signals()) is not None:
        found.put_back()
    stops._signals.cache_clear()
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.usefixtures("agent")
def test_signals_that_the_script_does_not_handle_are_noted_although_it_handles_another() -> None:
    """``--until`` sends SIGUSR1, and most scripts with a handler have one for SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: None)
    found = stops._signals()
    assert found is not None
    signal.raise_signal(signal.SIGTERM)  # in this thread, now
    assert not found.decides
    signal.raise_signal(signal.SIGUSR1)
    assert found.decides


@pytest.mark.usefixtures("agent")
@pytest.mark.filterwarnings("ignore::deeppart.errors.BackgroundFailureWarning")
@pytest.mark.parametrize(("fails", "left_at"), [("persistent", 3), ("local", 2)])
def test_ranks_do_not_leave_while_checkpoints_fail(tmp_path: Path, fails: str, left_at: int) -> None:
    """They would lose what they have made since the last good one, although training goes on."""
    with deeppart.Checkpointer(persistent_dir=str(tmp_path / "p"), local_dir=str(tmp_path / "l")) as ck:
        (local,) = (tmp_path / "l").iterdir()
        block(ck, tmp_path / "p" if fails == "persistent" else local, 1)
        failed = ck.checkpoint({"a": 1}, 1)
        wait_until(lambda: failed.finished, PATIENCE_S)
        assert failed.report.levels[fails].state == "failed"
        leave_file(tmp_path).touch()
        with pytest.raises(SystemExit) as ended:
            for step in (2, 3):
                made = [ck.checkpoint({"a": step}, step)]
                wait_until(lambda: made[0].finished, PATIENCE_S)  # noqa: B023 - called here
    assert ended.value.code == STOPPED and deeppart.load(tmp_path / "p") == {"a": left_at}


@pytest.mark.usefixtures("agent")
def test_ranks_whose_last_checkpoint_fails_go_on_and_leave_later(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with deeppart.Checkpointer(persistent_dir=str(tmp_path / "p")) as ck:
        block(ck, tmp_path / "p", 1)
        leave_file(tmp_path).touch()
        with pytest.warns(deeppart.errors.BackgroundFailureWarning, match="step 1 is not complete"):
            assert ck.checkpoint({"a": 1}, 1).report.levels["persistent"].state == "failed"
        assert "step 1 is not saved, so the ranks do not end yet" in capfd.readouterr().err
        with pytest.raises(SystemExit) as ended:
            for step in (2, 3):
                ck.checkpoint({"a": step}, step).wait(timeout=PATIENCE_S)
    assert ended.value.code == STOPPED and deeppart.load(tmp_path / "p") == {"a": 3}
