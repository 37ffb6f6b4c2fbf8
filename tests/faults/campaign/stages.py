"""Names inside the library that the campaign hooks. They move while the library is worked on: here is the only list.

Nothing else in this package names private parts of the library. :func:`check` fails loudly when one is gone.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Which rank comes by: any, rank 0, or the first rank of a node.
ANY, ROOT, LEADER = "any", "root", "leader"


@dataclass(frozen=True, slots=True)
class Stage:
    """A moment at which a process can be killed.

    Attributes:
        target: dotted name of a function or method; killed when it is called.
        phase: "open", "restore" or "checkpoint": from when on.
        level: of the file written, or among the arguments; "" for any.
        after: killed when the call returns, not when it begins.
        needs: what must be on for this to be reached: a level; "retire", "rebuild" or "heal".
        who: which rank comes by.
    """

    target: str
    phase: str = "checkpoint"
    level: str = ""
    after: bool = False
    needs: str = ""
    who: str = ANY


_FILE = "deeppart.storage.files.DurableFile"
_COMPLETE = "deeppart.save.pipeline.Pipeline._complete"

STAGES: dict[str, Stage] = {
    "opening: directory taken": Stage("deeppart.session.open.DirectoryOwner.__init__", "open", after=True, who=ROOT),
    "opening: level opened": Stage("deeppart.session.open.NodeLevel.__init__", "open", after=True, needs="local"),
    "comparing states": Stage("deeppart.save.saver.Saver.agree"),
    "capturing": Stage("deeppart.state.capture.copying.CapturePlan.copy"),
    "local part: writing": Stage(f"{_FILE}.write", level="local", needs="local"),
    "local part: before its name": Stage(f"{_FILE}.commit", level="local", needs="local"),
    "local part: after its name": Stage(f"{_FILE}.commit", level="local", after=True, needs="local"),
    "local level: before the round": Stage(_COMPLETE, level="local", needs="local"),
    "local level: after the round": Stage(_COMPLETE, level="local", after=True, needs="local"),
    "partner copies: sending": Stage("deeppart.nodes.exchange.partner._send", needs="partner"),
    "partner copies: receiving": Stage("deeppart.nodes.exchange.partner._land", needs="partner"),
    "partner copies: before the name": Stage(f"{_FILE}.commit", level="partner", needs="partner"),
    "partner copies: after the name": Stage(f"{_FILE}.commit", level="partner", after=True, needs="partner"),
    "partner level: before the round": Stage(_COMPLETE, level="partner", needs="partner"),
    "partner level: after the round": Stage(_COMPLETE, level="partner", after=True, needs="partner"),
    "parity: encoding": Stage("deeppart.nodes.exchange.parity._Encoding.computed", needs="parity"),
    "parity: storing": Stage("deeppart.nodes.exchange.parity._Encoding.ended", needs="parity"),
    "parity: before the name": Stage(f"{_FILE}.commit", level="parity", needs="parity"),
    "parity: after the name": Stage(f"{_FILE}.commit", level="parity", after=True, needs="parity"),
    "parity level: before the round": Stage(_COMPLETE, level="parity", needs="parity"),
    "parity level: after the round": Stage(_COMPLETE, level="parity", after=True, needs="parity"),
    "persistent part: writing": Stage(f"{_FILE}.write", level="persistent", needs="persistent"),
    "persistent part: before its name": Stage(f"{_FILE}.commit", level="persistent", needs="persistent"),
    "persistent part: after its name": Stage(f"{_FILE}.commit", level="persistent", after=True, needs="persistent"),
    "manifest: before its name": Stage(f"{_FILE}.commit", level="manifest", needs="persistent", who=ROOT),
    "manifest: after its name": Stage(f"{_FILE}.commit", level="manifest", after=True, needs="persistent", who=ROOT),
    "persistent level: before the round": Stage(_COMPLETE, level="persistent", needs="persistent"),
    "persistent level: after the round": Stage(_COMPLETE, level="persistent", after=True, needs="persistent"),
    "retiring: persistent level": Stage("deeppart.storage.persistent.PersistentLevel.remove", needs="retire", who=ROOT),
    "retiring: a node": Stage("deeppart.storage.node.NodeLevel.retire", needs="local", who=LEADER),
    "retiring: one step removed": Stage(
        "deeppart.storage.persistent.remove_step", after=True, needs="retire", who=ROOT
    ),
    "restore: listing a node": Stage("deeppart.recovery.inventory.take_stock", "restore", needs="local", who=LEADER),
    "restore: reading a part": Stage("deeppart.recovery.parts.CheckedPart.check", "restore", after=True),
    "restore: checking blocks": Stage("deeppart.nodes.exchange.set_files._good_blocks", "restore", needs="rebuild"),
    "restore: rebuilding": Stage("deeppart.nodes.exchange.coding.Coding._begin", "restore", needs="rebuild"),
    "restore: scattering": Stage("deeppart.recovery.distribute._Flight.__init__", "restore"),
    "healing: writing parts": Stage("deeppart.repair.heal.Healer._write", "restore", after=True, needs="heal"),
    "healing: copying": Stage("deeppart.repair.heal.Healer._transfer", "restore", needs="heal"),
    "healing: encoding": Stage("deeppart.repair.heal.Healer._encode", "restore", needs="heal"),
}

#: Where files change that were good when they were looked at last. Apart: a new one above is another draw of kills.
CHANGES: dict[str, Stage] = {
    "parity: beginning": Stage("deeppart.nodes.exchange.parity._introduce", needs="parity"),
    "parity: sending": Stage("deeppart.nodes.exchange.parity._Encoding.computed", needs="parity"),
    "partner copies: beginning": Stage("deeppart.nodes.exchange.partner._send_all", needs="partner"),
    "healing: planning": Stage("deeppart.repair.heal.Healer.damaged_files", "restore", needs="heal"),
    "healing: moving": Stage("deeppart.repair.heal.Healer._transfer", "restore", needs="heal"),
    "healing: encoding again": Stage("deeppart.repair.heal.Healer._encode", "restore", needs="heal"),
}

#: Pauses that only cost time here, and what small states would never come to: name -> value.
SETTINGS: dict[str, Any] = {
    "deeppart.save.write.RETRY_PAUSES_S": (0.0, 0.02),
    "deeppart.repair.scrub.SLICE_S": 0.05,
    "deeppart.plan.restart.reading.LEAST_PORTION_BYTES": 4096,
}

#: A library that is broken on purpose, to show that the campaign notices: how -> what is replaced.
_BROKEN = {
    "digests": "deeppart.part.reader.PartReader.check_chunk",
    "rebuild": "deeppart.nodes.erasure.ReedSolomon.rebuild",
    "retention": "deeppart.save.keeping.Keeping.removable",
    "encoding": "deeppart.nodes.exchange.parity._Encoding.check",
    "hang": "deeppart.recovery.parts.CheckedPart.check",
}
BREAKS = tuple(_BROKEN)


class MovedError(Exception):
    """The library has no such name any more."""


def check() -> None:
    """Look every name up.

    Raises:
        MovedError: naming all that are gone.
    """
    targets = [stage.target for stage in (*STAGES.values(), *CHANGES.values())]
    gone = []
    for name in dict.fromkeys([*targets, *SETTINGS, _CLOCK, *_BROKEN.values()]):
        try:
            locate(name)
        except MovedError:
            gone.append(name)
    if gone:
        raise MovedError(f"the library has no {', '.join(gone)} any more: correct the names in {Path(__file__).name}")


def locate(name: str) -> tuple[Any, str]:
    """The owner and the attribute that a dotted name stands for.

    Raises:
        MovedError: there is no such thing.
    """
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        try:
            for part in parts[cut:-1]:
                owner = getattr(owner, part)
            getattr(owner, parts[-1])
        except AttributeError as error:
            raise MovedError(f"the library has no {name} any more: correct it in {Path(__file__).name}") from error
        return owner, parts[-1]
    raise MovedError(f"the library has no {name} any more: correct it in {Path(__file__).name}")


def level_of(path: Path) -> str:
    """Which level a file belongs to; "manifest" for the one that commits."""
    if path.name == "manifest":
        return "manifest"
    directory = path.parent.parent if path.parent.name.startswith("node-") else path.parent  # of a section
    folder = directory.parent.name
    if folder in ("partner", "parity", "persistent"):
        return folder
    return "local"


def hook(stage: Stage, reached: Callable[[], None]) -> None:
    """Call ``reached`` whenever this process comes by a stage."""
    owner, attribute = locate(stage.target)
    original = getattr(owner, attribute)

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        path = getattr(args[0], "path", None) if args else None
        at = level_of(path) if isinstance(path, Path) else None
        passes = not stage.level or at == stage.level or any(isinstance(a, str) and a == stage.level for a in args)
        if passes and not stage.after:
            reached()
        result = original(*args, **kwargs)
        if passes and stage.after:
            reached()
        return result

    setattr(owner, attribute, watched)


#: Where the library looks at the wall clock.
_CLOCK = "deeppart._times.time"


class _Clock:
    """The wall clock, ``seconds`` ahead."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def time(self) -> float:
        return time.time() + self.seconds


def set_clock(seconds: float) -> None:
    """From here on the library sees a wall clock that is so far ahead; less than 0: behind."""
    owner, attribute = locate(_CLOCK)
    setattr(owner, attribute, _Clock(seconds))


def hasten() -> None:
    """Shorten the library's pauses."""
    for name, value in SETTINGS.items():
        owner, attribute = locate(name)
        setattr(owner, attribute, value)


def break_library(how: str) -> Callable[[], None]:
    """Break the library on purpose; returns what mends it."""
    owner, attribute = locate(_BROKEN[how])
    original = getattr(owner, attribute)

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    def wrong(self: Any, blocks: Any, rows: Any, wanted: Any, out: Any) -> None:
        original(self, blocks, rows, wanted, out)
        for row, block in zip(wanted, out, strict=True):
            if row < self.data:  # parity of it is right
                block[: block.size // 2] ^= 1

    def everything(self: Any) -> Any:
        return set(importlib.import_module("deeppart.storage.steps").list_steps(self._store))

    def forever(*args: Any, **kwargs: Any) -> None:
        time.sleep(3600)

    ways: dict[str, Callable[..., Any]] = {"digests": nothing, "rebuild": wrong, "encoding": nothing}
    ways |= {"retention": everything, "hang": forever}
    setattr(owner, attribute, ways[how])
    return functools.partial(setattr, owner, attribute, original)
