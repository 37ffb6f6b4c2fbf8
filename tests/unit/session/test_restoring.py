"""A restore that reads only what is asked for, and finds that this is not enough."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import deeppart
from deeppart.comm import SingleComm
from deeppart.errors import CheckpointError, DeeppartWarning, RestoreError, StateError, SuspectStepWarning
from deeppart.model import Attempt, SuspectLeaf, Suspicion
from deeppart.plan.restart import Committed, Inventory
from deeppart.session import Session, tell_restored, tell_suspects, warn_unsaved
from deeppart.session.restoring import nothing_to_restore, say_nothing_restored
from deeppart.state.capture import layout
from deeppart.state.tensors.leaves import LeafType
from deeppart.storage.records import write_suspicion
from deeppart.testing import StorageFaults
from tests.unit.commits import commit
from tests.unit.recovery.test_narrow_reading import leaf, reports
from tests.unit.sharded_states import save

pytestmark = [
    pytest.mark.usefixtures("working_directory"),
    pytest.mark.filterwarnings("ignore::deeppart.DeeppartWarning"),
]


def test_what_other_ranks_ask_for_by_other_names_is_read_in_a_second_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only part is read by rank 0, whose live state has none of the names that rank 1 asks for."""
    monkeypatch.setattr(layout, "CHUNK_BYTES", 64)  # a leaf in each
    save(tmp_path, [{"model": {"w": leaf("w"), "v": leaf("v")}, "more": leaf("more")}])
    live: list[dict[str, Any]] = [
        {"model": {"w": leaf("w", 0), "v": leaf("v", 0)}, "more": leaf("more", 0)},
        {"model": {"module.w": leaf("w", 0), "module.v": leaf("v", 0)}, "more": leaf("more", 0)},
    ]
    told = reports(tmp_path, live, keys=["model/module.*", "more"])
    assert torch.equal(live[1]["model"]["module.w"], leaf("w")) and torch.equal(live[1]["model"]["module.v"], leaf("v"))
    assert not live[0]["model"]["w"].any() and all(torch.equal(each["more"], leaf("more")) for each in live)
    assert all("read whole" in text and report.loaded_bytes == report.saved_bytes for report, text in told)


def test_where_there_is_nothing_to_restore_the_state_is_looked_at(tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:
        assert ck.restore({"x": torch.zeros(2)}) is None
        with pytest.raises(StateError):
            ck.restore({"x": torch.zeros(2, device="meta")})


class AppState:
    """As torch's tutorial has it: torch makes a step of an optimizer without any, to have its state."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(2, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def state_dict(self) -> dict[str, Any]:
        """Of both."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Into both."""
        parts = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
        set_state_dict(self.model, self.optimizer, **parts)

    def train(self) -> torch.Tensor:
        """A step; the weights after it."""
        self.optimizer.zero_grad()
        self.model(torch.ones(1, 2)).sum().backward()
        self.optimizer.step()
        return self.model.weight.detach().clone()


def test_a_training_that_begins_is_the_same_as_without_a_restore(tmp_path: Path) -> None:
    plain, app = AppState(), AppState()
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:
        assert ck.restore({"app": app}) is None
        assert not app.optimizer.state
        assert torch.equal(app.train(), plain.train())
        ck.checkpoint({"app": app}, 1)
        again = AppState()
        assert ck.restore({"app": again}) == 1
        assert torch.equal(again.train(), plain.train())


def test_the_documents_alone_are_read(tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path, compression="none") as checkpointer:
        assert checkpointer._preview(None) is None and checkpointer.next_step() == 0
        for step in (3, 5):
            checkpointer.checkpoint({"w": torch.full((1 << 20,), step)}, step).wait()
        with StorageFaults(tmp_path) as counted:
            found = checkpointer._preview(None)
            opened = [path for name, path in counted.log if name == "open" and "part" in path]
        assert found is not None and found.saved.attempt.step == 5 and checkpointer.next_step() == 6
        assert found.saved.structure.types == (LeafType("torch", "int64", (1 << 20,)),)
        assert len(set(opened)) <= 1
        earlier = checkpointer._preview(3)
        assert earlier is not None and earlier.saved.attempt.step == 3
        with pytest.raises(RestoreError, match="step 4"):
            checkpointer._preview(4)
    with pytest.raises(CheckpointError, match="closed"):
        checkpointer._preview(None)


def test_a_damaged_part_gives_way_to_the_step_before(tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path) as checkpointer:
        for step in (3, 5):
            checkpointer.checkpoint({"w": torch.full((100,), step)}, step).wait()
        (newest,) = [path for path in tmp_path.glob("step-000000000005-*/*") if "part" in path.name]
        with newest.open("r+b") as file:
            file.truncate(newest.stat().st_size - 10)
        found = checkpointer._preview(None)
    assert found is not None and found.saved.attempt.step == 3


def settings(directory: Path, **others: Any) -> deeppart.Config:
    where: dict[str, Any] = {"persistent_dir": str(directory / "ckpt"), "local_dir": str(directory / "local")}
    return deeppart.Config(**(where | {"timeout": 30.0} | others))


@pytest.mark.parametrize("lost", [False, True])
def test_one_node_has_nothing_to_rebuild(tmp_path: Path, lost: bool) -> None:
    with deeppart.Checkpointer(settings(tmp_path)) as ck:
        ck.checkpoint({"x": torch.arange(1000)}, 1).wait(timeout=200)
        session = ck._session.session
    if lost:
        for path in (tmp_path / "local").rglob("*.dpp"):
            path.unlink()
    live = {"x": torch.zeros(1000, dtype=torch.int64)}
    with deeppart.Checkpointer(settings(tmp_path)) as ck:
        assert ck.restore(live) == 1 and live["x"][-1] == 999
        assert not [line for line in ck.explanation if "redundancy" in line or "parity" in line]
        (restored,) = ck._pipeline.call_notes.complete().values()
        assert (restored.step, restored.session) == (1, session), "scrubbing looks after it from here on"


def test_nothing_restored_is_nothing_complete(tmp_path: Path) -> None:
    with deeppart.Checkpointer(settings(tmp_path)) as ck:
        assert ck.restore({"x": torch.zeros(3)}) is None
        assert ck._pipeline.call_notes.complete() == {}


def test_asking_for_copies_on_one_node_changes_nothing_here(tmp_path: Path) -> None:
    both = settings(tmp_path, every={"partner": 1, "parity": 1})
    with pytest.warns(deeppart.ReducedProtectionWarning), deeppart.Checkpointer(both) as ck:
        ck.checkpoint({"x": torch.arange(10)}, 1).wait(timeout=200)
    with pytest.warns(DeeppartWarning), deeppart.Checkpointer(both) as ck:
        assert ck.restore({"x": torch.zeros(10, dtype=torch.int64)}) == 1
        assert not [line for line in ck.explanation if "redundancy" in line]
        assert [each.step for each in ck._pipeline.call_notes.complete().values()] == [1]


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
