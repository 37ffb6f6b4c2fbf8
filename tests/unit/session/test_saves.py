"""Which levels a checkpoint goes to, steps that are saved again, and failures that are told once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import (
    BackgroundFailureWarning,
    DeeppartWarning,
    KeepNotice,
    LazyCaptureNotice,
    LevelNotRunError,
    ScrubNotice,
    StepExistsError,
    SuspectStepWarning,
)
from deeppart.model import SuspectLeaf, Suspicion
from deeppart.state.capture import lazy
from deeppart.storage import NodeLevel, PosixStore, Suspicions
from tests.states import difference
from tests.unit.cli_support import block
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


def test_too_little_room_on_a_node_is_said_at_the_first_checkpoint(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeLevel, "free_bytes", lambda level: 1000)
    with deeppart.Checkpointer(config(memory, keep={"local": 2})) as ck:
        for step, said in ((1, 0), (2, 1), (3, 0)):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                ck.checkpoint({"x": torch.zeros(1000)}, step).wait("persistent", timeout=200)
            found = [str(each.message) for each in caught if "has room for 1 kB, but" in str(each.message)]
            assert len(found) == said, (step, found)
        assert not found or "12 kB are needed: 3 uncompressed steps of 4 kB" in found[0]


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


def test_a_newer_step_on_a_node_that_cannot_be_read_is_warned_of(memory: Path) -> None:
    settings = {"every": {"local": 1, "persistent": 2}}
    with deeppart.Checkpointer(config(memory, **settings)) as ck:
        for step in (1, 2):
            ck.checkpoint(state(step), step).wait("local", timeout=200)
    [part] = memory.glob("l/*/step-000000000002-*/*.dpp")
    sound = bytearray(part.read_bytes())
    sound[4096 + 10] ^= 1
    part.write_bytes(sound)
    live = state(0)
    with deeppart.Checkpointer(config(memory, **settings)) as ck:
        with pytest.warns(DeeppartWarning, match="restored step 1, but the nodes have all parts of step 2"):
            assert ck.restore(live) == 1 and difference(state(1), live) is None
        assert any("digest" in line for line in ck.explanation)


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
    Suspicions.write(PosixStore(memory / "p"), found)
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
    with deeppart.Checkpointer(settings) as third, pytest.raises(StepExistsError) as refused:
        third.checkpoint({"a": 10}, 10)
    assert "call restore(state) before the loop" in str(refused.value)
