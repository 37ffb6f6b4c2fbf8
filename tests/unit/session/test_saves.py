"""Which levels a checkpoint goes to, steps that are saved again, and failures that are told once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import deeppart
from deeppart.errors import (
    BackgroundFailureWarning,
    CheckpointError,
    DeeppartWarning,
    KeepNotice,
    LazyCaptureNotice,
    LevelNotRunError,
    ScrubNotice,
    StepExistsError,
    SuspectStepWarning,
)
from deeppart.model import SuspectLeaf, Suspicion
from deeppart.pending import DONE, FAILED, RUNNING, Pending
from deeppart.session import StepHistory
from deeppart.session.saves import StepRows
from deeppart.state.capture import lazy
from deeppart.storage.records import write_suspicion
from deeppart.testing.states import difference
from tests.unit.cli_support import block
from tests.unit.commits import commit
from tests.unit.one_rank import config, local_steps, persistent_steps, state, states_of


def test_every_counts_checkpoints_per_level(memory: Path) -> None:
    settings = {"every": {"local": 2, "persistent": 3}, "keep": {"local": 0, "persistent": 0}}
    with deeppart.Checkpointer(config(memory, **settings)) as ck:
        pendings = [ck.checkpoint(state(step), step * 10) for step in range(8)]
        for pending in pendings:
            for level in ("local", "persistent"):
                try:
                    pending.wait(level, timeout=200)
                except LevelNotRunError:
                    assert states_of(pending)[level == "persistent"] == "off"
        live = state(99)
        assert ck.restore(live) == 60 and live["step"] == 6, "local and persistent"
    assert local_steps(memory) == [0, 20, 40, 60] and persistent_steps(memory) == [0, 30, 60]


@pytest.mark.parametrize("every", [{"persistent": 1}, {"local": 1, "persistent": 2}, "auto"])
def test_the_last_step_may_be_saved_again_by_force(memory: Path, every: Any) -> None:
    """At the end one does not know whether it was saved: by ``every``, or before the job was submitted again."""
    for last in (3, 3, 4):
        live = state(0)
        with deeppart.Checkpointer(config(memory, every=every, keep={"persistent": 9})) as ck:
            restored = ck.restore(live)
            for step in range((restored or 0) + 1, last + 1):
                live = state(step)
                ck.checkpoint(live, step)
            live["x"] = live["x"] + 7
            ck.checkpoint(live, last, force=True)
        assert ck.failures == 0
        with deeppart.Checkpointer(config(memory, every=every, keep={"persistent": 9})) as ck:
            again = state(0)
            assert ck.restore(again) == last and difference(live, again) is None
            for step, force in ((last, False), (last - 1, True)) if every == {"persistent": 1} else ():
                with pytest.raises(StepExistsError, match="start it again"):
                    ck.checkpoint(live, step, force=force)


def test_close_reports_what_failed_last(memory: Path) -> None:
    with pytest.warns(BackgroundFailureWarning, match="step 5 is not complete at level 'persistent'") as caught:
        with deeppart.Checkpointer(config(memory)) as ck:
            block(ck, memory / "p", 5)
            ck.checkpoint(state(5), step=5)
    assert len(caught) == 1 and ck.failures == 1


def failed_before(ck: deeppart.Checkpointer, memory: Path) -> None:
    block(ck, memory / "p", 2)
    ck.checkpoint(state(2), 2)
    assert ck._pipeline.wait_until_idle(200)


def noted(category: type[DeeppartWarning]) -> Callable[[deeppart.Checkpointer, Path], None]:
    return lambda ck, _: ck._pipeline.call_notes.note("found", category)


def counting_down(ck: deeppart.Checkpointer, _: Path) -> None:
    ck.checkpoint(state(9), 9).wait(timeout=200)


def nothing(ck: deeppart.Checkpointer, _: Path) -> None: ...


def restored_beside_newer(ck: deeppart.Checkpointer, _: Path) -> None:
    for step in (1, 2):
        ck.checkpoint(state(step), step).wait(timeout=200)
    live = state(0)
    assert ck.restore(live, step=1) == 1 and difference(state(1), live) is None


def restored_suspect(ck: deeppart.Checkpointer, memory: Path) -> None:
    for step in (1, 2):
        ck.checkpoint(state(step), step).wait(timeout=200)
    leaf = SuspectLeaf("x", "rank 1 differs from rank 0", 0, 1)
    found = Suspicion(ck._session.lineage, ck._session.session, 2, 3, (2,), (leaf,))
    write_suspicion(memory / "p", found)
    live = state(0)
    assert ck.restore(live) == 2 and difference(state(2), live) is None


#: What there is to warn of when step 3 is saved: how it comes to that, settings, the kind of warning and its text. All
#: but the last two are known before, and what a restore warns of is raised by the call after it.
WARNED: dict[str, tuple[Callable[..., None], dict[str, Any], type[DeeppartWarning], str]] = {
    "a failure": (failed_before, {}, BackgroundFailureWarning, "step 2 is not complete"),
    "keep": (noted(KeepNotice), {}, KeepNotice, "found"),
    "scrubbing": (noted(ScrubNotice), {}, ScrubNotice, "found"),
    "counting down": (counting_down, {}, DeeppartWarning, "Count steps up"),
    "start": (nothing, {"permissions": "unchecked"}, DeeppartWarning, "permissions"),
    "restore beside newer": (restored_beside_newer, {}, DeeppartWarning, "step 2 is in the directory too"),
    "restore of a suspect step": (restored_suspect, {}, SuspectStepWarning, "ranks may not have held"),
    "patterns": (nothing, {"exclude": ["none"]}, DeeppartWarning, "matches nothing"),
    "lazy": (nothing, {"capture": "lazy"}, LazyCaptureNotice, "no torch optimizer"),
}


@pytest.mark.parametrize("name", WARNED)
def test_a_warning_that_is_an_error_is_raised_before_a_call_changes_anything(
    memory: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It is raised where nothing was submitted, and the same call is good then; or there is a Pending."""
    comes_to_it, settings, category, text = WARNED[name]
    monkeypatch.setattr(lazy, "NOTICED_BYTES", 100)
    raised = list[DeeppartWarning]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with deeppart.Checkpointer(config(memory, **settings)) as ck:
            comes_to_it(ck, memory)
            for step in (3, 4):
                sequence = ck._saves.sequence
                try:
                    pending = ck.checkpoint(state(step, 300_000), step)
                except DeeppartWarning as caught:
                    raised.append(caught)
                    assert ck._saves.sequence == sequence
                    pending = ck.checkpoint(state(step, 300_000), step)
                pending.wait(timeout=200)
    [warning] = raised
    assert type(warning) is category and text in str(warning)
    assert difference(state(4, 300_000), deeppart.load(memory / "p", 4)) is None


def test_a_warning_that_is_an_error_is_raised_by_close_once_all_is_given_back(memory: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DeeppartWarning, match="matches nothing") as raised:
            with deeppart.Checkpointer(config(memory, exclude=["none"])) as ck:
                block(ck, memory / "p", 5)
                ck.checkpoint(state(5), 5)
    assert "step 5 is not complete at level 'persistent'" in "".join(raised.value.__notes__)
    with deeppart.Checkpointer(config(memory)) as ck:
        ck.checkpoint(state(6), 6).wait(timeout=200)


@given(st.lists(st.integers(0, 60), max_size=60))
def test_rows_of_steps_are_a_set(steps: list[int]) -> None:
    rows, expected = StepRows(), set[int]()
    for step in steps:
        assert (step in rows) == (step in expected)
        rows.add(step)
        expected.add(step)
    assert [step for step in range(-1, 62) if step in rows] == sorted(expected) and len(rows) == len(expected)


@pytest.mark.parametrize("distance", [1, 100])
def test_a_job_that_saves_at_regular_steps_has_one_row(distance: int) -> None:
    rows = StepRows()
    for number in range(10_000):
        rows.add(7 + number * distance)
    assert len(rows._rows) == 1 and len(rows) == 10_000


def made(step: int, local: str = DONE, persistent: str = DONE) -> Pending:
    """A checkpoint to two levels, each in this state."""
    pending = Pending(step, frozenset({"local", "persistent"}))
    for level, progress in (("local", local), ("persistent", persistent)):
        error = CheckpointError("refused") if progress == FAILED else None
        pending.note_level(level, progress, error=error)
    return pending


@pytest.fixture
def recent() -> list[Pending]:
    return []


@pytest.fixture
def beside(opened: Any, tmp_path: Path, recent: list[Pending]) -> Any:
    """``beside(5, 10)``: the history of a job in a directory with these committed steps."""

    def begin(*steps: int) -> StepHistory:
        root = tmp_path / f"ckpt {steps}"
        opened(persistent_dir=str(root)).close()
        for step in steps:
            commit(root, step)
        return StepHistory(opened(persistent_dir=str(root)), recent)

    return begin


def taken(history: StepHistory, steps: Sequence[int]) -> list[int]:
    return [step for step in steps if history.refusal_of(step) is not None]


def test_steps_of_earlier_runs_are_taken_and_none_of_them_is_the_last(beside: Any, tmp_path: Path) -> None:
    history = beside(5, 10)
    assert taken(history, range(12)) == [5, 10] and history.last() == -1
    refusal = history.refusal_of(10)
    assert isinstance(refusal, StepExistsError) and refusal.summary == "step 10 is already in the directory"
    assert refusal.where == f"step 10, {tmp_path / 'ckpt (5, 10)'}"
    assert str(refusal.todo).startswith("call restore(state) before the loop, and continue with step")


def test_a_restored_step_is_taken_even_where_only_nodes_have_it(beside: Any) -> None:
    history = beside()
    history.went_on_from(7)
    assert taken(history, range(12)) == [7] and history.last() == 7
    other = beside(9)
    other.went_on_from(None)
    assert taken(other, range(12)) == [9] and other.last() == -1


@pytest.mark.parametrize(
    ("local", "persistent", "is_taken"),
    [
        (RUNNING, RUNNING, True),
        (DONE, RUNNING, True),
        (FAILED, RUNNING, True),
        (DONE, DONE, True),
        (DONE, FAILED, True),
        (FAILED, DONE, True),
        (FAILED, FAILED, False),
    ],
)
def test_a_checkpoint_under_way_or_complete_anywhere_takes_its_step(
    beside: Any, recent: list[Pending], local: str, persistent: str, is_taken: bool
) -> None:
    history = beside()
    recent.append(made(3, local, persistent))
    assert taken(history, range(5)) == [3] * is_taken and history.last() == (3 if is_taken else -1)
    if is_taken:
        assert history.refusal_of(3).summary == "step 3 was already saved in this run"
    if recent[0].finished:
        history.settle(list(recent))
        assert recent == [], "it is forgotten, and its step is not"
        assert taken(history, range(5)) == [3] * is_taken and history.last() == (3 if is_taken else -1)


def test_the_last_is_the_largest(beside: Any, recent: list[Pending]) -> None:
    history = beside()
    history.went_on_from(5)
    recent.append(made(3))
    assert history.last() == 5
    recent.append(made(9, FAILED, FAILED))
    assert history.last() == 5
    recent.append(made(8, RUNNING, RUNNING))
    assert history.last() == 8
    history.settle(recent[:2])
    assert history.last() == 8


def test_a_step_that_exists_is_refused_and_kept(memory: Path) -> None:
    with deeppart.Checkpointer(config(memory)) as ck:
        pending = ck.checkpoint(state(5), step=5)
        with pytest.raises(StepExistsError, match="step 5"):
            ck.checkpoint(state(6), step=5)  # under way
        pending.wait(timeout=200)
        with pytest.raises(StepExistsError):
            ck.checkpoint(state(6), step=5)  # committed
        for step in (6, 7, 8, 9):
            ck.checkpoint(state(step), step).wait(timeout=200)
        with pytest.raises(StepExistsError):
            ck.checkpoint(state(6), step=9)
    with deeppart.Checkpointer(config(memory)) as ck:
        with pytest.raises(StepExistsError, match="prune --after"):
            ck.checkpoint(state(0), step=9)  # of an earlier session
        ck.checkpoint(state(10), step=10).wait(timeout=200)
    assert difference(state(9), deeppart.load(memory / "p", 9)) is None


def test_counting_down_is_told_once(memory: Path) -> None:
    """What is restored is the largest step, and not the newest."""
    with deeppart.Checkpointer(config(memory)) as ck:
        ck.checkpoint(state(5), 5).wait(timeout=200)
        with pytest.warns(DeeppartWarning, match=r"checkpoint\(step=4\) after step 5") as told:
            for step in (4, 3):
                ck.checkpoint(state(step), step).wait(timeout=200)
        assert len(told) == 1
    with deeppart.Checkpointer(config(memory)) as ck, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ck.restore(state(0)) == 5
        ck.checkpoint(state(6), 6)


def test_training_that_begins_anew_beside_what_is_there(tmp_path: Path) -> None:
    settings = deeppart.Config(persistent_dir=str(tmp_path / "ckpt"), timeout=30.0)
    with deeppart.Checkpointer(settings) as first:
        for step in (5, 10):
            first.checkpoint({"a": step}, step).wait()
    with deeppart.Checkpointer(settings) as second:
        with pytest.warns(DeeppartWarning, match="step 10 of an earlier run") as caught:
            second.checkpoint({"a": 1}, 1).wait()
        assert "Call restore(state) before the loop" in str(caught[0].message) and len(caught) == 1
        second.checkpoint({"a": 2}, 2).wait()
        with pytest.raises(StepExistsError, match="continue with step"):
            second.checkpoint({"a": 5}, 5)
    with (
        deeppart.Checkpointer(settings) as third,
        pytest.raises(StepExistsError) as refused,
    ):
        third.checkpoint({"a": 10}, 10)
    assert "call restore(state) before the loop" in str(refused.value)
