"""What a rank reports to the agent that has started it (``deeppart run``): its progress, and what it has imported.

A file of 64 bytes in a private directory of the agent, mapped by both: a report is a write to memory, without a system
call. Without an agent, nothing is done.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: The variable with the agent's directory.
DIRECTORY_VARIABLE = "DEEPPART_AGENT"
#: What has ended the ranks before, in words.
WHY_VARIABLE = "DEEPPART_WHY"
#: Exit code of ranks that were asked to stop, and of the job then: schedulers and torchrun know it.
STOPPED = 143
CELL_BYTES = 64
#: The fields of :class:`Progress`.
_CELL = struct.Struct("<qdQQdddd")
_MODULES_FILE = "modules.json"
#: Where Python's own modules are.
_STANDARD = os.path.join(sysconfig.get_path("stdlib"), "")


class Progress(NamedTuple):
    """What a rank has reported last.

    Attributes:
        step: that restored last before checkpoint() was called, or the newest for which it was; -1 for none.
        at_s: when it has last reported, in seconds on the clock of ``time.monotonic()``.
        trained: how many steps its optimizers have made, or checkpoint() was called, whichever is more.
        pauses: how many pauses it is in; it is not expected to report meanwhile.
        safe_s: how long a checkpoint took last at the slowest level; 0.0 before that.
        ready_s: seconds from the start of the ranks until it had met the others, and called restore(); 0.0 before that.
        restored_s: the same until restore() returned.
        stepped_s: the same until its first step was made.
    """

    step: int = -1
    at_s: float = 0.0
    trained: int = 0
    pauses: int = 0
    safe_s: float = 0.0
    ready_s: float = 0.0
    restored_s: float = 0.0
    stepped_s: float = 0.0


def time_to_end_s(safe_s: float) -> float:
    """How long before the end of its time a job begins its last checkpoint; ``safe_s``: what one has taken, or 0.0."""
    return 60.0 + 2 * (safe_s or 60.0)


def cell_file(directory: Path, rank: int) -> Path:
    """The file of a rank."""
    return directory / f"rank-{rank}"


def make_cell(directory: Path, rank: int) -> None:
    """Make a rank's file, as it is started, in the memory of an old one if there is one (agent)."""
    path = cell_file(directory, rank)
    with open(path, "r+b" if path.exists() else "wb") as file:
        file.write(_CELL.pack(*Progress(at_s=time.monotonic())))


def leave_file(directory: Path) -> Path:
    """The file by whose existence ranks are asked to make a checkpoint and end, so that more or fewer can start."""
    return directory / "leave"


def is_asked_to_leave() -> bool:
    """Whether the agent has asked its ranks to make a checkpoint and end; while these fail, it has to wait."""
    directory = os.environ.get(DIRECTORY_VARIABLE)
    return directory is not None and not reporting.fails and os.path.exists(leave_file(Path(directory)))


def stacks_file(directory: Path, rank: int) -> Path:
    """The file that a rank prints the stacks of its threads to, when it gets the agent's signal."""
    return directory / f"stacks-{rank}"


def read_cell(directory: Path, rank: int) -> Progress:
    """What a rank has reported (agent)."""
    try:
        return Progress(*_CELL.unpack_from(cell_file(directory, rank).read_bytes()))
    except (OSError, struct.error):  # the rank may write to the directory, too
        return Progress()


def read_modules(directory: Path) -> list[str] | None:
    """The modules that rank 0 had imported when it was first restored; None before that (agent)."""
    try:
        found = json.loads((directory / _MODULES_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else None


def is_installed(file: str | None) -> bool:
    """Whether the file of a module is Python's own or lies in site-packages; None: the module is built in."""
    if file is None or file in ("built-in", "frozen"):
        return True
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts) or file.startswith(_STANDARD)


def is_watched() -> bool:
    """Whether an agent has started this process."""
    return bool(os.environ.get(DIRECTORY_VARIABLE))


def place_at_agent() -> tuple[Path, int, int] | None:
    """The agent's directory, this rank's number on its node, and how many it has; None without an agent."""
    names = (DIRECTORY_VARIABLE, "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    directory, rank, ranks = (os.environ.get(name, "") for name in names)
    if not (directory and rank.isdecimal() and ranks.isdecimal() and int(rank) < int(ranks)):
        return None
    return Path(directory), int(rank), int(ranks)


class _Reporting:
    """The reports of this process. One training thread calls it.

    Attributes:
        fails: whether the last checkpoint has failed at the slowest level: what was made since might be lost.
    """

    def __init__(self) -> None:
        self.fails = False
        self._pid = 0
        self._cell: mmap.mmap | None = None
        self._begin()

    def _begin(self) -> None:
        self._step, self._called, self._optimized, self._pauses = -1, 0, 0, 0
        self._safe_s = 0.0
        self._started_s, self._passed_s = 0.0, [0.0, 0.0, 0.0]  # until ready, restored, stepped

    def ready(self) -> None:
        """A state is to be restored."""
        self._report(phase=0)

    def restored(self, step: int | None) -> None:
        """A state was restored, or there was none; on rank 0 of a node, once, name the modules imported by now."""
        directory = self._report(step=-1 if step is None else step, phase=1)
        if directory is None or os.environ.get("LOCAL_RANK") != "0":
            return
        path = Path(directory, _MODULES_FILE)
        with contextlib.suppress(OSError):
            if not path.exists():
                new = path.with_suffix(".new")
                files = {name: getattr(each, "__file__", None) for name, each in [*sys.modules.items()]}
                new.write_text(json.dumps([name for name, file in files.items() if is_installed(file)]))
                new.rename(path)

    def called(self, step: int, safe_s: float = 0.0, *, fails: bool = False) -> None:
        """checkpoint() is called for a step; one took so long last at the slowest level, or has failed."""
        self._safe_s, self.fails = safe_s, fails
        self._report(step, called=1)

    def optimized(self, *_: object) -> None:
        """An optimizer has made a step: a hook of torch."""
        self._report(optimized=1)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """No report is expected meanwhile."""
        self._report(pauses=1)
        try:
            yield
        finally:
            self._report(pauses=-1)

    def _report(
        self, step: int = -1, called: int = 0, optimized: int = 0, pauses: int = 0, phase: int | None = None
    ) -> str | None:
        """Write the cell; returns the agent's directory, None without an agent."""
        directory = os.environ.get(DIRECTORY_VARIABLE)
        if not directory:
            return None
        if self._pid != os.getpid():
            self._pid, self._cell = os.getpid(), None
            self._begin()
            with contextlib.suppress(OSError, ValueError):
                with open(cell_file(Path(directory), int(os.environ.get("LOCAL_RANK", ""))), "r+b") as file:
                    self._cell = mmap.mmap(file.fileno(), CELL_BYTES)
                self._started_s = Progress(*_CELL.unpack_from(self._cell)).at_s
        now_s = time.monotonic()
        # A state from another directory may be restored before: its number says nothing.
        self._step = step if phase == 1 and not self._called else max(self._step, step)
        self._called, self._optimized = self._called + called, self._optimized + optimized
        self._pauses += pauses
        trained = max(self._called, self._optimized)
        phase = 2 if trained else phase
        if phase is not None:
            self._passed_s[phase] = self._passed_s[phase] or now_s - self._started_s
        if self._cell is not None:
            _CELL.pack_into(
                self._cell, 0, self._step, now_s, trained, self._pauses, self._safe_s, *self._passed_s
            )  # fmt: skip
        return directory


reporting = _Reporting()


def pause_watch() -> contextlib.AbstractContextManager[None]:
    """Around an evaluation or anything else that trains nothing: not a hang, however long it takes.

    ``deeppart run`` takes ranks that make no step for long for hung, and starts them again. Without an agent, this
    does nothing.

    Example:
        >>> import deeppart
        >>> with deeppart.pause_watch():
        ...     pass  # evaluate
    """
    return reporting.paused()


class Epoch(NamedTuple):
    """One start of all ranks of a job.

    Attributes:
        number: counts them, from 1.
        why: what has ended the one before; empty in the first one, and where it is not known.

    Example:
        >>> import deeppart
        >>> deeppart.epoch()
        Epoch(number=1, why='')
    """

    number: int
    why: str


def epoch() -> Epoch:
    """Which start of the ranks this is, under ``deeppart run`` and torchrun; otherwise the first one.

    Example:
        >>> import deeppart
        >>> deeppart.epoch().number
        1
    """
    starts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return Epoch(int(starts) + 1 if starts.isdecimal() else 1, os.environ.get(WHY_VARIABLE, ""))
