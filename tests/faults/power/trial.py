"""The job that is recorded, and what is left of it, restored and compared."""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import deeppart
from deeppart.errors import DeeppartError
from deeppart.pending import DONE, Pending
from deeppart.storage import LINEAGE_NAME, LOCK_NAME
from tests.faults.power.disk import Disk, put_on, read_back
from tests.faults.power.recording import Event, Recorder

_JUNK = 7.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One recorded job, of one process.

    Attributes:
        seed: decides the rest, and what is drawn of each cut.
        local: whether there is a local level beside the persistent one.
        keep_local, keep_persistent, steps, capture, elements: of the job.
    """

    seed: int
    local: bool
    keep_local: int
    keep_persistent: int
    steps: int
    capture: str
    elements: int

    @classmethod
    def drawn(cls, seed: int) -> Plan:
        """The plan of a seed."""
        rng = random.Random(f"power {seed}")
        return cls(
            seed,
            local=rng.random() < 0.7,
            keep_local=rng.choice((1, 1, 2)),
            keep_persistent=rng.choice((1, 2, 3)),
            steps=rng.choice((3, 4, 5)),
            capture=rng.choice(("eager", "lazy")),
            elements=rng.choice((300, 4_000, 20_000)),
        )

    def config(self, base: Path) -> deeppart.Config:
        """Of the job, and of the restore."""
        return deeppart.Config(
            persistent_dir=str(base / "persistent"),
            local_dir=str(base / "node") if self.local else None,
            every={"local": int(self.local), "persistent": 1},
            keep={"local": self.keep_local, "persistent": self.keep_persistent},
            compression="none",
            capture=self.capture,
            timeout=30.0,
        )


@dataclass(slots=True)
class Result:
    """What came of it.

    Attributes:
        events: recorded. cuts: points at which they were cut. states: different ones that were restored.
        problems: kind -> how many.
        examples: the first few, readable.
        told: how often a step was reported complete.
    """

    events: int = 0
    cuts: int = 0
    states: int = 0
    told: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)


def state_of(plan: Plan, step: int) -> dict[str, Any]:
    """A leaf that is never trained, one that is another in every step, and the step."""
    still = np.random.Generator(np.random.Philox(plan.seed)).random(plan.elements * 4, dtype=np.float32)
    fresh = np.random.Generator(np.random.Philox(key=(plan.seed << 20) + step)).random(plan.elements, dtype=np.float32)
    return {"still": torch.from_numpy(still), "fresh": torch.from_numpy(fresh), "step": step}


def record(plan: Plan, base: Path) -> tuple[list[Event], list[str]]:
    """Play the job; every event, and the directories that were there before.

    Raises:
        AssertionError: the events do not add up to what lies there: something has been missed.
    """
    base.mkdir(parents=True)
    with Recorder(base) as recorder:
        note = Pending.note_level

        def noted(self: Pending, level: str, state: str, **fields: Any) -> None:
            if state == DONE:
                recorder.told(self.step)
            note(self, level, state, **fields)

        Pending.note_level = noted  # type: ignore[method-assign]
        try:
            with deeppart.Checkpointer(plan.config(base)) as ck:
                for step in range(1, plan.steps + 1):
                    pending = ck.checkpoint(state_of(plan, step), step)
                    for level in sorted(pending.levels):
                        pending.wait(level)
        finally:
            Pending.note_level = note  # type: ignore[method-assign]
    disk = Disk(recorder.first)
    for event in recorder.events:
        disk.after(event)
    assert disk.tree_now() == read_back(base), "the recorder has missed something"
    return recorder.events, recorder.first


def cut_everywhere(
    plan: Plan,
    events: list[Event],
    first: list[str],
    base: Path,
    most: int,
    ignored: Collection[str] = (),
    *,
    until_wrong: bool = False,
    cuts: Collection[int] | None = None,
) -> Result:
    """Cut the events at every point, and restore what may be left.

    Args:
        base: an empty directory to do that in.
        most: ways in which each cut may end that are tried.
        ignored: sites whose syncs are taken out. Nothing is restored of cuts before the
            first of them, which are as if none were.
        until_wrong: whether the first thing that is wrong is enough. Cuts after promises come first then.
        cuts: after how many events; None: after any number of them.
    """
    seen = set[tuple[bytes, int | None]]()

    def cut(numbers: Collection[int]) -> Result:
        """After so many events; what was restored already is not restored again."""
        rng = random.Random(f"{plan.seed} cuts")
        result, disk = Result(events=len(events)), Disk(first, ignored)
        is_other = not ignored
        for number, event in enumerate((None, *events)):
            if event is not None:
                is_other |= event.site in ignored
                disk.after(event)
                result.told += event.kind == "told"
            if number not in numbers:
                continue
            result.cuts += 1
            for tree in disk.outcomes(rng, most):
                key = (_digest(tree), disk.told)
                if not is_other or key in seen:
                    continue
                seen.add(key)
                result.states += 1
                _judge(plan, tree, disk.told, base, result, f"cut after {number} of {len(events)} events")
                if until_wrong and result.problems:
                    return result
        return result

    if until_wrong:
        result = cut([number for number, event in enumerate(events, 1) if event.kind == "told"])
        if result.problems:
            return result
    return cut(range(len(events) + 1) if cuts is None else cuts)


def _digest(tree: dict[str, bytes | None]) -> bytes:
    whole = hashlib.blake2b()
    for path, content in sorted(tree.items()):
        whole.update(f"{path} {content is None} {len(content or b'')} ".encode())
        whole.update(content or b"")
    return whole.digest()


def _judge(plan: Plan, tree: dict[str, bytes | None], told: int | None, base: Path, result: Result, where: str) -> None:
    directory = Path(tempfile.mkdtemp(dir=base))

    def problem(kind: str, text: str) -> None:
        result.problems[kind] += 1
        if len(result.examples) < 5:
            result.examples.append(f"{where}: {kind}: {text}")

    try:
        put_on(tree, directory)
        _same_place(directory / "persistent")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", deeppart.DeeppartWarning)
            with deeppart.Checkpointer(plan.config(directory)) as ck:
                newest = _restore(plan, ck, None, problem)
                if told is not None and (newest is None or newest < told):
                    problem("too much lost", f"step {told} was reported complete, and step {newest} came back")
                for path in sorted((directory / "persistent").glob("step-*/manifest")):
                    _restore(plan, ck, int(path.parent.name.split("-")[1]), problem)
    except DeeppartError as error:
        problem("error", str(error))
    finally:
        shutil.rmtree(directory, ignore_errors=True)  # a status file may be taken away at the same moment


def _same_place(persistent: Path) -> None:
    """Files keep their directory's inode when the power fails; by another one this would be taken for a copy."""
    for name in (LOCK_NAME, LINEAGE_NAME):
        path = persistent / name
        if path.exists():
            path.write_bytes(re.sub(rb'"directory": \d+', b'"directory": 0', path.read_bytes()))


def _restore(plan: Plan, ck: Any, step: int | None, problem: Any) -> int | None:
    """Restore a step and compare it; None if nothing was there."""
    live = {key: torch.full_like(value, _JUNK) for key, value in state_of(plan, 0).items() if key != "step"}
    state: dict[str, Any] = live | {"step": -1}
    found: int | None = ck.restore(state, step)
    if found is None:
        return None
    for name, value in state_of(plan, found).items():
        same = torch.equal(state[name], value) if isinstance(value, torch.Tensor) else state[name] == value
        if not same:
            problem("wrong bytes", f"step {found}, {name}")
    return found
