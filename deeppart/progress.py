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
import time
from pathlib import Path
from typing import NamedTuple

#: The variable with the agent's directory.
DIRECTORY_VARIABLE = "DEEPPART_AGENT"
CELL_BYTES = 64
#: Step, or -1; when it was reported, on the clock of time.monotonic(), in seconds; number of reports.
_CELL = struct.Struct("<qdQ")
_MODULES_FILE = "modules.json"


class Progress(NamedTuple):
    """What a rank has reported last.

    Attributes:
        step: the newest step that it has restored, or has called checkpoint() for; -1 for none.
        at_s: when, in seconds on the clock of ``time.monotonic()``.
        reports: how many there were.
    """

    step: int
    at_s: float
    reports: int


def cell_file(directory: Path, rank: int) -> Path:
    """The file of a rank."""
    return directory / f"rank-{rank}"


def make_cell(directory: Path, rank: int) -> None:
    """Make a rank's file, before it is started (agent)."""
    cell_file(directory, rank).write_bytes(_CELL.pack(-1, 0.0, 0).ljust(CELL_BYTES, b"\0"))


def read_cell(directory: Path, rank: int) -> Progress:
    """What a rank has reported (agent)."""
    try:
        return Progress(*_CELL.unpack_from(cell_file(directory, rank).read_bytes()))
    except (OSError, struct.error):  # the rank may write to the directory, too
        return Progress(-1, 0.0, 0)


def read_modules(directory: Path) -> list[str] | None:
    """The modules that rank 0 had imported when it was first restored; None before that (agent)."""
    try:
        found = json.loads((directory / _MODULES_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else None


class _Reporting:
    """Reports of this process. One training thread calls it."""

    def __init__(self) -> None:
        self._pid, self._step, self._reports = 0, -1, 0
        self._cell: mmap.mmap | None = None

    def step(self, step: int) -> None:
        """A step was reached."""
        cell = self._opened()
        if cell is not None:
            self._step, self._reports = max(self._step, step), self._reports + 1
            _CELL.pack_into(cell, 0, self._step, time.monotonic(), self._reports)

    def modules(self) -> None:
        """On rank 0 of a node, once: name the modules that are imported by now."""
        directory = os.environ.get(DIRECTORY_VARIABLE)
        if not directory or os.environ.get("LOCAL_RANK") != "0":
            return
        path = Path(directory, _MODULES_FILE)
        with contextlib.suppress(OSError):
            if not path.exists():
                new = path.with_suffix(".new")
                new.write_text(json.dumps(list(sys.modules)))
                new.rename(path)

    def _opened(self) -> mmap.mmap | None:
        directory = os.environ.get(DIRECTORY_VARIABLE)
        if not directory:
            return None
        if self._pid != os.getpid():
            self._pid, self._cell, self._step, self._reports = os.getpid(), None, -1, 0
            with contextlib.suppress(OSError, ValueError):
                with open(cell_file(Path(directory), int(os.environ.get("LOCAL_RANK", ""))), "r+b") as file:
                    self._cell = mmap.mmap(file.fileno(), CELL_BYTES)
        return self._cell


reporting = _Reporting()
