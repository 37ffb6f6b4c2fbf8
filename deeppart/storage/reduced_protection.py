"""Runs whose nodes could not give the protection asked for, in a small file of the persistent directory.

Rank 0 writes it at the start of such a run, and of the first one after it that has enough nodes again. Readers learn
from it which steps were saved with less. It bears on nothing else: what is wrong with it stops nobody.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deeppart.part import is_hex32
from deeppart.part.json_text import parse_json
from deeppart.storage.small_files import UNUSABLE, read_file, write_file
from deeppart.storage.timestamps import now

PROTECTION_NAME = "deeppart-protection.json"
_FORMAT, _VERSION = "deeppart-protection", 1
#: Older runs are forgotten.
_MOST_RUNS = 500
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ReducedRun:
    """A run that had less protection than it asked for; or the first one after it that had all, without lines.

    Attributes:
        session: of the run.
        since: UTC time of its start, ISO 8601.
        lines: the protection that was asked for, and the one that held.
    """

    session: str
    since: str
    lines: tuple[str, ...]


def reduced_runs(root: Path) -> list[ReducedRun]:
    """The runs in the file, oldest first; none if there is no sound file."""
    try:
        document = parse_json(read_file(root / PROTECTION_NAME, _MOST_BYTES))
        if (document["format"], document["version"]) != (_FORMAT, _VERSION):
            return []
        return [_run(record) for record in document["runs"]]
    except UNUSABLE:
        return []


def note_protection(root: Path, session: str, lines: tuple[str, ...]) -> bool:
    """Note how a run begins; whether it is the first with all that was asked for after one with less."""
    runs = reduced_runs(root)
    recovered = bool(runs and runs[-1].lines and not lines)
    if lines or recovered:
        runs.append(ReducedRun(session, now(), lines))
        records = [{"session": run.session, "since": run.since, "lines": list(run.lines)} for run in runs[-_MOST_RUNS:]]
        document = {"format": _FORMAT, "version": _VERSION, "runs": records}
        write_file(root / PROTECTION_NAME, json.dumps(document, indent=1).encode() + b"\n")
    return recovered


def _run(record: Any) -> ReducedRun:
    session, since, lines = record["session"], record["since"], record["lines"]
    if not is_hex32(session) or not isinstance(since, str) or not all(isinstance(line, str) for line in lines):
        raise ValueError(f"session {session!r}, since {since!r}")
    return ReducedRun(session, since, tuple(lines))
