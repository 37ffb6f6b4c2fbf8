"""When a checkpoint is due, what is open and closed, a state that one rank cannot make, and SIGTERM.

Ranks that agree on SIGTERM: tests/elastic/test_stop_request.py.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import deeppart
from deeppart.comm import Comm
from deeppart.errors import CheckpointError, ConfigError, DeeppartError
from deeppart.interop.saving import Saving, state_or_error
from deeppart.interop.training_state import pack
from deeppart.progress import DIRECTORY_VARIABLE, make_cell, read_cell, reporting
from tests.unit.sharded_states import checkpointer, on_ranks


@pytest.mark.parametrize("every", [0, 1.5, True, "auto"])
def test_every_is_a_number_of_steps(every: int) -> None:
    with pytest.raises(ConfigError, match="every"):
        Saving(None, every)


def test_its_own_checkpointer_is_closed_and_the_last_step_is_saved_once(tmp_path: Path) -> None:
    saving, made = Saving(deeppart.Config(persistent_dir=str(tmp_path)), 2), list[int]()
    assert saving.restore({"a": 1}) is None
    saving.begin()
    for step in range(1, 6):
        saving.stepped(step)
        saving.save_if_due(lambda step=step: made.append(step) or {"a": step}, step)  # type: ignore[misc]
    assert made == [2, 4]
    first = saving.checkpointer
    saving.finish(lambda: {"a": 5}, 5)
    with pytest.raises(CheckpointError, match="closed"):
        first.checkpoint({"a": 3}, 6)
    state = {"a": 0}
    assert saving.restore(state) == 5 and state == {"a": 5}  # opened again
    saving.finish(lambda: made.append(5), 5)
    assert made == [2, 4]


def test_one_that_was_given_stays_open(tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=str(tmp_path)) as checkpointer:
        saving = Saving(checkpointer)
        saving.finish(lambda: {"a": 1}, 1)
        checkpointer.checkpoint({"a": 2}, 2)


def test_a_signal_makes_one_step_due_which_goes_to_every_level(tmp_path: Path) -> None:
    saving = Saving(deeppart.Config(persistent_dir=str(tmp_path), every={"persistent": 9}), 100, sigterm=True)
    saving.begin()
    try:
        assert saving.save(lambda: {"a": 1}, 1).levels
        assert not saving.save(lambda: {"a": 1}, 2).levels  # of nine, one goes there
        signal.raise_signal(signal.SIGTERM)
        saving.stepped(3)
        saving.save_if_due(lambda: {"a": 3}, 3)
        assert saving.stopped
        saving.stepped(4)
        saving.save_if_due(lambda: {"a": 4}, 4)
    finally:
        saving.close()
    assert deeppart.load(tmp_path) == {"a": 3}


def test_a_training_that_was_stopped_does_not_end_as_one_that_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or `deeppart run` would return 0, and nothing would start the job again."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    saving = Saving(deeppart.Config(persistent_dir=str(tmp_path / "ckpt")))
    saving.stopped = True
    with pytest.raises(SystemExit) as ended:
        saving.finish(lambda: {"a": 3}, 3)
    assert ended.value.code == 143 and deeppart.load(tmp_path / "ckpt") == {"a": 3}


def test_where_one_rank_cannot_make_its_state_all_hear_why(tmp_path: Path) -> None:
    def on_rank(comm: Comm) -> str:
        with checkpointer(tmp_path, comm) as ck:
            made = state_or_error(lambda: {"x": pack(object() if comm.rank else 1, "client_state")})
            with pytest.raises(DeeppartError, match="client_state") as told:
                ck.checkpoint(made, 1)
            ck.checkpoint({"x": 1}, 1)  # and may go on
        return type(told.value).__name__

    assert on_ranks(2, on_rank) == ["RemoteRankError", "UnsupportedLeafError"]


# --- SIGTERM ----------------------------------------------------------------------------------------------------------


def test_whoever_had_the_signal_hears_nothing_meanwhile() -> None:
    """A trainer's own handler would end the training before its checkpoint."""
    heard = list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        saving = Saving(sigterm=True)
        saving.begin()
        saving.stepped(1)
        assert not saving.stopped
        signal.raise_signal(signal.SIGTERM)
        saving.stepped(2)
        assert saving.stopped and not heard
        saving.close()
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_evaluation_is_reported_to_an_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    monkeypatch.setenv("LOCAL_RANK", "3")
    make_cell(tmp_path, 3)
    before = read_cell(tmp_path, 3)
    with on_another_cell():
        Saving(None).is_alive()
    after = read_cell(tmp_path, 3)
    assert after != before and after.trained == before.trained and after.pauses == 0


@contextmanager
def on_another_cell() -> Iterator[None]:
    """This process has not reported to an agent before."""
    reporting._pid = 0
    try:
        yield
    finally:
        reporting._pid = 0
