"""Whatever operation on the store fails, and however long: no step that is kept loses anything that it refers to."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import DeeppartError, DeeppartWarning
from deeppart.model import StepKey
from deeppart.save import write
from deeppart.storage import PosixStore, committed_steps, list_steps
from deeppart.storage.manifests import read_manifest
from tests.sampling import sampled
from tests.states import difference
from tests.storage_faults import StorageFaults

ERRORS = (errno.EIO, errno.EACCES, errno.ESTALE)
KEEP = 2


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "RETRY_PAUSES_S", (0.0, 0.0))


def state(step: int) -> dict[str, Any]:
    """Two leaves take turns in being new: each step refers to the one before, and no other step does."""

    def leaf(turn: int) -> torch.Tensor:
        return torch.full((300_000,), float(turn)).cumsum(0)

    return {"new": leaf(step), "even": leaf(step // 2), "odd": leaf((step + 1) // 2), "step": step}


def run(directory: Path, steps: Sequence[int]) -> list[int]:
    """A session that goes on where the one before has ended; the steps that it was told are done."""
    done = []
    settings: dict[str, Any] = {"keep": {"persistent": KEEP}, "compression": "none", "status": "none"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeeppartWarning)
        try:
            with deeppart.Checkpointer(persistent_dir=str(directory), timeout=60.0, **settings) as checkpointer:
                checkpointer.restore(state(0))
                for step in steps:
                    pending = checkpointer.checkpoint(state(step), step)
                    try:
                        pending.wait("persistent", 60)
                        done.append(step)
                    except DeeppartError:
                        continue
        except DeeppartError:
            pass  # it could not begin, or could not go on
    return done


def two_sessions(root: Path, first: int = -1, times: int = 0, code: int = 0) -> list[str]:
    """The operations that there were; what is kept is whole after each session."""
    root.mkdir()
    plain, done, log = PosixStore(root), list[int](), list[str]()
    for steps in ((1, 2, 3, 4), (5, 6, 7)):
        with StorageFaults(root) as faults:
            faults.refuse(first - len(log), code, count=times, only=("open", "listdir", "stat", "unlink", "rmdir"))
            done += run(root, steps)
        log += [f"{name} {path.rpartition('/')[2][:8]}" for name, path in faults.log]
        committed = [key.step for key in committed_steps(plain)]
        assert set(done[-KEEP:]) <= set(committed), "a step that was done is gone"
        for step in committed:
            assert difference(state(step), deeppart.load(root, step)) is None
    assert run(root, (8, 9, 10)) == [8, 9, 10]
    assert [key.step for key in committed_steps(plain)] == [9, 10]
    needed = {key for step in (9, 10) for key in referred_to(plain, step)}
    left = {key for key in list_steps(plain) if key.step < 9}
    assert needed and left == needed, "what nobody needs is gone in the end"
    return log


def referred_to(store: PosixStore, step: int) -> set[StepKey]:
    (manifest,) = (read_manifest(store, key, None) for key in committed_steps(store) if key.step == step)
    return {key for key, _ in manifest.needed_parts if key.step < 9}


@pytest.mark.timeout(600)
def test_a_refused_operation_costs_no_step_that_is_kept(memory: Path) -> None:
    """Each alone, or with the three that follow it."""
    log = two_sessions(memory / "all")
    manifests = [number for number, name in enumerate(log) if name == "open manifest"]  # that is where it hurts
    assert len(log) > 100 and manifests
    for number in sorted({*sampled(manifests, 8), *sampled(range(len(log)), 8, kind=log.__getitem__)}):
        two_sessions(memory / str(number), number, 1 + 3 * (number % 2), ERRORS[number % len(ERRORS)])
