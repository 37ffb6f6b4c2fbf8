"""The steps of a job: which are taken, which is the last, and what is told where they are out of order."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import deeppart
from deeppart.errors import CheckpointError, DeeppartWarning, StepExistsError
from deeppart.pending import DONE, FAILED, RUNNING, Pending
from deeppart.session.history import StepHistory, StepRows
from deeppart.testing.states import difference
from tests.unit.commits import commit
from tests.unit.one_rank import config, state


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
    pending = Pending(step, frozenset({"local", "persistent"}), lambda: None)
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


def told(call: Any, *arguments: int) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*arguments)
    assert {each.category for each in caught} <= {DeeppartWarning}
    return [str(each.message) for each in caught]


def taken(history: StepHistory, steps: Sequence[int]) -> list[int]:
    return [step for step in steps if history.refusal_of(step) is not None]


# --- which are taken --------------------------------------------------------------------------------------------------


def test_steps_of_earlier_runs_are_taken_and_none_of_them_is_the_last(beside: Any, tmp_path: Path) -> None:
    history = beside(5, 10)
    assert taken(history, range(12)) == [5, 10] and history.last() == -1
    refusal = history.refusal_of(10)
    assert isinstance(refusal, StepExistsError) and refusal.summary == "step 10 is already in the directory"
    assert refusal.where == f"step 10, {tmp_path / 'ckpt (5, 10)'}"
    assert str(refusal.todo).startswith("call restore(state) before the loop, and continue with step")


def test_after_a_restore_nobody_is_told_to_restore(beside: Any) -> None:
    history = beside(5, 10)
    history.went_on_from(5)
    assert history.last() == 5 and taken(history, range(12)) == [5, 10]
    assert str(history.refusal_of(10).todo).startswith("continue with step")


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


def test_only_what_is_finished_is_forgotten(beside: Any, recent: list[Pending]) -> None:
    history, same = beside(), recent
    first, second = made(1), made(2, RUNNING, RUNNING)
    recent += [first, second]
    history.settle([first])
    assert recent == [second] and recent is same, "others have this list"
    assert taken(history, range(4)) == [1, 2]


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


# --- what is told -----------------------------------------------------------------------------------------------------


def test_starting_over_beside_earlier_steps_is_told_once(beside: Any) -> None:
    history = beside(5, 10)
    (text,) = told(history.warn_not_restored, 1)
    assert text.startswith("checkpoint(step=1), but step 10 of an earlier run is in the directory")
    assert told(history.warn_not_restored, 2) == []


@pytest.mark.parametrize("step", [10, 11])
def test_going_on_behind_them_is_not(beside: Any, step: int) -> None:
    assert told(beside(5, 10).warn_not_restored, step) == []


def test_nor_is_it_after_a_restore_or_in_a_new_directory(beside: Any) -> None:
    restored, new = beside(10), beside()
    restored.went_on_from(10)
    assert told(restored.warn_not_restored, 1) == []
    assert told(new.warn_not_restored, 0) == []


def test_counting_down_is_said_once_and_counting_up_never(beside: Any, recent: list[Pending]) -> None:
    history = beside()
    assert told(history.warn_counting_down, 0) == []
    recent.append(made(5))
    assert told(history.warn_counting_down, 5) == told(history.warn_counting_down, 6) == []
    (text,) = told(history.warn_counting_down, 4)
    assert text.startswith("checkpoint(step=4) after step 5")
    assert told(history.warn_counting_down, 3) == []


# --- through a checkpointer -------------------------------------------------------------------------------------------


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
