"""The runs of a persistent directory, in a small file: when each began, how it ended, where the next one restored from.

Rank 0 alone reads and writes it: at the start, after a restore, at the end. Each time it is read again, and only the
record of this run is put in its place: a job that ends late, after another has begun, takes nothing from that one's.
What it says only bears on how often checkpoints are made, so nothing that is wrong with it stops a job.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from deeppart._times import now, seconds_of, timestamp
from deeppart.cadence.failures import Run
from deeppart.errors import UNUSABLE, CorruptFileError, MissingError, StorageError
from deeppart.model import RunsFile
from deeppart.part import parse_json, step_name
from deeppart.storage import MANIFEST_NAME, Store, list_steps

_MOST_BYTES = 1 << 20


class History:
    """The record of earlier runs and of this one.

    Attributes:
        runs: that have ended, oldest first.
        problem: the reason why the file could not be read or written, or None.
    """

    def __init__(self, store: Store, session: str, nodes: int) -> None:
        self._store = store
        self.problem: str | None = None
        records = self._read()
        if records and not records[-1]["ended"]:
            records[-1]["seen"] = records[-1]["seen"] or self._last_commit(records[-1]["began"])
        self.runs = _runs(records)
        self._own: dict[str, Any] = {"session": session, "began": now(), "nodes": nodes} | dict.fromkeys(RunsFile.LATER)
        self._earlier = records
        self._write(records)

    def restored(self, level: str) -> None:
        """Record the slowest level from which this run was restored."""
        self._own["restored"] = level
        self.runs = _runs(self._earlier, self._own)
        self._write(self._read() or self._earlier)

    def end(self, *, failed: bool) -> None:
        """Record the end of this run: regular, or with an error."""
        own = self._own
        if not failed:
            own["ended"] = now()
        elif self._last_commit(own["began"]):
            own["seen"] = now()
        self._write(self._read() or self._earlier)

    def _read(self) -> list[dict[str, Any]]:
        try:
            document = parse_json(self._store.get(RunsFile.NAME, _MOST_BYTES))
            return [_checked(record) for record in RunsFile.records(document)]
        except MissingError:
            return []
        except UNUSABLE as error:
            self.problem = f"{self._store.where(RunsFile.NAME)}: {type(error).__name__}: {error}; started over"
            return []

    def _write(self, records: list[dict[str, Any]]) -> None:
        """Insert this run's record among the others, or replace it."""
        places = [number for number, each in enumerate(records) if each["session"] == self._own["session"]]
        runs = [*records, self._own] if not places else records
        for number in places:
            runs[number] = self._own
        try:
            self._store.replace(RunsFile.NAME, json.dumps(RunsFile.document(runs), indent=1).encode() + b"\n")
        except StorageError as error:
            self.problem = str(error)

    def _last_commit(self, since: str) -> str | None:
        """The time of the newest manifest written since then, when the run was last known to be running."""
        try:
            steps = list_steps(self._store)
        except StorageError as error:
            self.problem = str(error)
            return None
        newest = 0.0
        for key in steps:
            with contextlib.suppress(StorageError, CorruptFileError):
                manifest = self._store.stat(f"{step_name(key)}/{MANIFEST_NAME}")
                newest = max(newest, manifest.written if manifest is not None else 0.0)
        return timestamp(newest) if newest > seconds_of(since) else None


def _checked(record: dict[str, Any]) -> dict[str, Any]:
    """A record whose times are valid dates."""
    for name in ("began", "seen", "ended"):
        if record[name] is not None:
            seconds_of(record[name])
    return record


def _runs(records: list[dict[str, Any]], after: dict[str, Any] | None = None) -> tuple[Run, ...]:
    """Ended runs; a failure needed the level from which the next run was restored.

    A run that died before its first commit counts for nothing: it had nothing to lose.
    """
    found = []
    for record, following in zip(records, [*records, after][1:], strict=True):
        until = record["ended"] or record["seen"] or record["began"]
        seconds = max(0.0, seconds_of(until) - seconds_of(record["began"]))
        needed = following["restored"] if following else None
        found.append(Run(seconds, record["nodes"], failed=not record["ended"] and bool(record["seen"]), needed=needed))
    return tuple(found)
