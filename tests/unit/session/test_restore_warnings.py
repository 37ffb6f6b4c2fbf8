"""What rank 0 tells after a restore, and at the end; the other ranks know it, and say nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import deeppart
from deeppart.comm import SingleComm
from deeppart.errors import DeeppartWarning, SuspectStepWarning
from deeppart.model import Attempt, SuspectLeaf, Suspicion
from deeppart.plan.restart import Committed, Inventory
from deeppart.session.record import Session
from deeppart.session.restore_warnings import (
    nothing_to_restore,
    say_nothing_restored,
    tell_restored,
    tell_suspects,
    warn_unsaved,
)
from deeppart.storage.records import write_suspicion
from tests.unit.commits import commit

SESSION = "5" * 32


def told(call: Callable[..., object], *arguments: Any, **options: Any) -> list[tuple[type[Warning], str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*arguments, **options)
    return [(each.category, str(each.message)) for each in caught]


@pytest.fixture
def session(opened: Any) -> Session:
    found = opened()
    assert isinstance(found, Session)
    return found


@pytest.fixture
def other(session: Session) -> Session:
    """The same on another rank."""
    comm = SingleComm()
    comm.rank = 1
    return replace(session, comm=comm)


def attempt(session: Session, step: int, sequence: int = 1) -> Attempt:
    return Attempt(session.lineage, SESSION, sequence, step, 1)


def inventory(session: Session, *committed: int, unusable: tuple[tuple[int, str], ...] = ()) -> Inventory:
    steps = tuple(Committed(attempt(session, step), f"step-{step}", ()) for step in committed)
    return Inventory(((),), (0,), steps, unusable=unusable)


# --- suspect steps ----------------------------------------------------------------------------------------------------


def test_a_step_that_nobody_suspects(session: Session) -> None:
    assert told(tell_suspects, session, attempt(session, 5)) == []
    assert tell_suspects(session, attempt(session, 5)) == ()


def test_a_suspect_step_is_told_and_its_lines_are_known(session: Session) -> None:
    leaf = SuspectLeaf("model/weight", "rank 1 differs from rank 0", 0, 4)
    write_suspicion(session.persistent.root, Suspicion(session.lineage, SESSION, 2, 6, (5,), (leaf,)))
    with pytest.warns(SuspectStepWarning, match="model/weight"):
        (line,) = tell_suspects(session, attempt(session, 5))
    assert line.startswith("step 5 is suspect: model/weight")
    assert told(tell_suspects, session, attempt(session, 6, 2)) == [], "it is about the steps before"


def test_a_record_that_cannot_be_read_may_be_about_it(session: Session) -> None:
    (session.persistent.root / f"suspect-{SESSION}-000001").write_bytes(b"deeppart-suspect")
    with pytest.warns(SuspectStepWarning, match="may be suspect"):
        assert len(tell_suspects(session, attempt(session, 5))) == 1


# --- after a restore --------------------------------------------------------------------------------------------------


def test_nothing_to_tell_of_the_newest(session: Session) -> None:
    assert told(tell_restored, session, attempt(session, 5), inventory(session, 1, 5), (), named=False) == []


def test_newer_steps_are_told_also_where_the_older_one_was_asked_for(session: Session) -> None:
    for named in (False, True):
        ((category, text),) = told(
            tell_restored, session, attempt(session, 5), inventory(session, 9, 5, 7), (), named=named
        )
        assert category is DeeppartWarning
        assert text.startswith("restored step 5, but step 9 is in the directory too")
        assert ("the next restore will take it" in text) == named
        assert ("could not be used" in text and "`deeppart verify --repair`" in text) == (not named)


def test_newer_steps_of_no_use_are_news_where_none_was_asked_for(session: Session) -> None:
    found = inventory(session, 5, unusable=((3, "old"), (6, "damaged"), (7, "not signed")))
    ((category, text),) = told(tell_restored, session, attempt(session, 5), found, (), named=False)
    assert category is DeeppartWarning and "step 6 (damaged), step 7 (not signed). A later" in text
    assert "old" not in text
    assert told(tell_restored, session, attempt(session, 5), found, (), named=True) == []


def test_notices_keep_their_kind(session: Session) -> None:
    notices = (deeppart.PerRankNotice("rng is rank 0's"), DeeppartWarning("x was not in the state"))
    found = told(tell_restored, session, attempt(session, 5), inventory(session, 5), notices, named=False)
    assert found == [(deeppart.PerRankNotice, "rng is rank 0's"), (DeeppartWarning, "x was not in the state")]


# --- otherwise --------------------------------------------------------------------------------------------------------


def test_a_new_run_is_said_with_what_is_no_checkpoint(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    root = session.persistent.root.absolute()
    say_nothing_restored(session, ())
    assert capsys.readouterr().err == f"deeppart: no checkpoint in {root}: starting new\n"
    say_nothing_restored(session, ("step 3: no manifest", "step 4: damaged"))
    assert capsys.readouterr().err.endswith(": starting new; passed over: step 3: no manifest; step 4: damaged\n")


def test_only_rank_0_looks_for_what_was_meant(session: Session, other: Session) -> None:
    near = session.persistent.root.with_name(f"{session.persistent.root.name}s")
    commit(near, 1)
    error, pointer = (nothing_to_restore(each, ("step 3: no manifest",)) for each in (session, other))
    assert error.found == "step 3: no manifest" and error.todo == f"did you mean {near.absolute()}?"
    assert error.shown_by is None
    assert pointer.todo is None and pointer.shown_by == (1, 0)


@pytest.mark.parametrize("step", [0, 12])
def test_a_last_step_that_is_not_saved_is_told(session: Session, step: int) -> None:
    ((category, text),) = told(warn_unsaved, session, step)
    assert category is DeeppartWarning and text.startswith(f"closed after step {step}, which is not saved")
    assert "force=True" in text
    assert told(warn_unsaved, session, None) == []


def test_other_ranks_say_nothing(other: Session, capsys: pytest.CaptureFixture[str]) -> None:
    found = inventory(other, 9, unusable=((6, "damaged"),))
    notices = (DeeppartWarning("x"),)
    assert told(tell_restored, other, attempt(other, 5), found, notices, named=False) == []
    assert told(warn_unsaved, other, 3) == []
    say_nothing_restored(other, ("step 3: no manifest",))
    assert capsys.readouterr().err == ""
