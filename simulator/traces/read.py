r"""Reads traces; the format of a file is recognized by its beginning.

*Slurm*: the output of ``sacct``:

    TZ=UTC sacct --allusers --duplicates --allocations --parsable2 --starttime 2026-01-01 --endtime now \
        --format=JobID,State,Submit,Start,End,NodeList

``--duplicates`` adds a line for each earlier run of a requeued job. Other columns are ignored, and the order does not
matter. Lines of job steps are skipped (recognized by the column JobID or JobIDRaw), and so are jobs that have not
started or were cancelled before they had a node, which may have a start time.

*A table*: CSV with the columns ``at_s``, ``kind`` and ``nodes`` (numbers from 0, separated by blanks), in ascending
order of time. Lines ``# seconds = 2592000`` and ``# nodes = 1024`` before the header describe the observation; other
lines with # are comments.

*The runs of a job*: ``deeppart-runs.json``, which ``every = "auto"`` keeps in ``persistent_dir``. The level from which
the next run was restored shows what had failed: a process if it was the local level, since every node's storage was
there; a node if it was copies or parity; everything if it was the file system, or if it is unknown.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from deeppart.model import REDUNDANT_LEVELS, Level, RunsFile

from .record import FAILURES, PREEMPTION, TIME_LIMIT, Event, Trace, in_order, merged, refusal, shown, unreadable

SLURM, TABLE, OWN_RUNS = "slurm", "csv", "runs"
#: Bytes from which the format is recognized.
_BEGINNING = 4096


def read_trace(path: Path, *, nodes: int | None = None) -> Trace:
    """Read a trace. ``nodes``: the number of nodes if a table does not have it."""
    found = format_of(path)
    if found == TABLE:
        return read_plain(path, nodes)
    return merged(read_slurm(path) if found == SLURM else read_own_runs(path))


def format_of(path: Path) -> str:
    """The format of a file or directory."""
    if path.is_dir():
        return OWN_RUNS
    try:
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING).decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise unreadable(path, error) from error
    first_line = beginning.split("\n", 1)[0]
    if "|" in first_line and "State" in first_line.rstrip("\r\n").split("|"):
        return SLURM
    if beginning.lstrip().startswith("{") and RunsFile.FORMAT in beginning:
        return OWN_RUNS
    lines = [line for line in beginning.splitlines() if not line.startswith("#")]
    if lines and {"at_s", "kind"} <= {word.strip(' "') for word in lines[0].split(",")}:
        return TABLE
    raise refusal(
        path, 1, shown(first_line.rstrip("\r")),
        "the columns of `sacct --parsable2` with State, Start, End and NodeList; the columns at_s, kind and nodes; or "
        "the runs of a persistent directory",
    )  # fmt: skip


# --- Slurm's lists of nodes -------------------------------------------------------------------------------------------


#: Limit for the nodes of a list, so that an invalid range does not exhaust memory.
_MOST_NODES = 1 << 20
_ITEM = re.compile(r"(?:[^,\[\]]|\[[0-9,-]+\])+")
_BRACKETS = re.compile(r"\[([0-9,-]+)\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
#: Slurm's text for a job that never had nodes.
_NONE = "None assigned"


@lru_cache(maxsize=65_536)
def node_names(text: str) -> tuple[str, ...]:
    """The names in a list, in order; none for a job that never had nodes."""
    if text in ("", _NONE, "(null)"):
        return ()
    if _ITEM.sub("", text).strip(",") or not _ITEM.search(text) or ",," in text or text[0] == "," or text[-1] == ",":
        raise ValueError("a list of nodes, such as node[001-004,7]")
    names: list[str] = []
    for item in _ITEM.findall(text):
        parts = _BRACKETS.split(item)  # text, range, text, range, ..., text
        choices = [[part] if number % 2 == 0 else _numbers(part) for number, part in enumerate(parts)]
        count = 1
        for choice in choices:
            count *= len(choice)
        if len(names) + count > _MOST_NODES:
            raise ValueError(f"a list of at most {_MOST_NODES} nodes")
        names += ["".join(pieces) for pieces in product(*choices)]
    return tuple(names)


def _numbers(text: str) -> list[str]:
    """``001-003,7`` -> ``001``, ``002``, ``003``, ``7``: padded to the width of the first number of a range."""
    found: list[str] = []
    for word in text.split(","):
        match = _RANGE.fullmatch(word)
        if match is None:
            raise ValueError("numbers and ranges in brackets, such as [001-004,7]")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= _MOST_NODES:
            raise ValueError(f"ranges upwards, of at most {_MOST_NODES} nodes")
        found += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return found


# --- Slurm ------------------------------------------------------------------------------------------------------------


_NEEDED = ("State", "Start", "End", "NodeList")
#: One of these columns is required: they distinguish jobs from job steps.
_IDS = ("JobID", "JobIDRaw")
#: State of a job (man sacct, JOB STATE CODES) -> what ended it. After OUT_OF_MEMORY and FAILED, node storage is intact.
_ENDED = {
    "NODE_FAIL": "node",
    "BOOT_FAIL": "node",
    "FAILED": "process",
    "OUT_OF_MEMORY": "process",
    "PREEMPTED": PREEMPTION,
    "TIMEOUT": TIME_LIMIT,
    "DEADLINE": TIME_LIMIT,
}
#: States of jobs that have not failed or not ended.
_OTHERS = (
    "COMPLETED", "CANCELLED", "RUNNING", "PENDING", "REQUEUED", "RESIZING", "REVOKED", "SUSPENDED",
    "CONFIGURING", "COMPLETING", "STOPPED", "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT",
    "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD",
)  # fmt: skip
_NO_TIME = ("Unknown", "None", "")
_TIME_WORDS = "a time such as 2026-11-27T15:44:35, as sacct writes it unless SLURM_TIME_FORMAT is set"


def read_slurm(path: Path) -> Trace:
    """Read the jobs in a file."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            log = _JobLog(path, file.readline().rstrip("\n").split("|"))
            for number, line in enumerate(file, start=2):
                log.read(line, number)
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error
    return log.trace()


class _JobLog:
    """Reads line by line, and keeps only what is needed: a log may have millions of lines."""

    def __init__(self, path: Path, names: list[str]) -> None:
        missing = [name for name in _NEEDED if name not in names]
        missing += [] if set(_IDS) & set(names) else [_IDS[0]]
        if missing:
            expected = f"the columns {', '.join((_IDS[0], *_NEEDED))}, with | between"
            raise refusal(path, 1, f"no column {missing[0]}", expected)
        self._path, self._names = path, names
        self._zoned: bool | None = None  # whether times have a zone; None before the first time
        self._waits_s: list[float] = []
        self._first_s, self._last_s = math.inf, -math.inf
        self._nodes: set[str] = set()
        self._events: list[tuple[float, str, tuple[str, ...]]] = []

    def read(self, line: str, number: int) -> None:
        """Read one line."""
        values = line.rstrip("\n").split("|")
        if not line.strip():
            return
        if len(values) != len(self._names):
            expected = f"{len(self._names)} cells: leave out columns such as JobName, in which there may be a |"
            raise refusal(self._path, number, f"{len(values)} cells", expected)
        cells = dict(zip(self._names, values, strict=True))
        if any("." in cells.get(name, "") for name in _IDS):
            return
        state = cells["State"].split(" ", 1)[0]
        if state not in _ENDED and state not in _OTHERS:
            raise refusal(self._path, number, shown(state), "one of " + ", ".join((*_ENDED, *_OTHERS)), "State")
        began_s = self._time(cells, number, "Start")
        if began_s is None:
            return
        try:
            nodes = node_names(cells["NodeList"])
        except ValueError as error:
            raise refusal(self._path, number, shown(cells["NodeList"]), str(error), "NodeList") from error
        if not nodes:
            return
        ended_s = self._time(cells, number, "End")
        if ended_s is not None and ended_s < began_s:
            raise refusal(self._path, number, f"{cells['End']} before {cells['Start']}", "a later time", "End")
        submitted_s = self._time(cells, number, "Submit") if "Submit" in cells else None
        if submitted_s is not None:
            self._waits_s.append(max(0.0, began_s - submitted_s))
        self._first_s, self._last_s = min(self._first_s, began_s), max(self._last_s, began_s, ended_s or began_s)
        self._nodes.update(nodes)
        if ended_s is not None and state in _ENDED:
            self._events.append((ended_s, _ENDED[state], nodes))

    def trace(self) -> Trace:
        """The trace of all lines; a file without a run is refused."""
        if math.isinf(self._first_s):
            raise refusal(self._path, 1, "no job that has begun", "at least one")
        events = (Event(at_s - self._first_s, kind, names) for at_s, kind, names in sorted(self._events))
        return Trace(tuple(events), in_order(self._nodes), self._last_s - self._first_s, tuple(self._waits_s))

    def _time(self, cells: Mapping[str, str], number: int, column: str) -> float | None:
        text = cells[column]
        if text in _NO_TIME:
            return None
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise refusal(self._path, number, shown(text), _TIME_WORDS, column) from None
        zoned = moment.tzinfo is not None
        if self._zoned not in (None, zoned):
            raise refusal(self._path, number, shown(text), "a zone in all times, or in none", column)
        self._zoned = zoned
        # Only differences between times matter, so a missing zone does not.
        return (moment - (_EPOCH if moment.tzinfo is None else _EPOCH_UTC)).total_seconds()


_EPOCH, _EPOCH_UTC = datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)  # noqa: DTZ001 - as above


# --- tables -----------------------------------------------------------------------------------------------------------


_KINDS = (*FAILURES, PREEMPTION)
_WATCHED = ("seconds", "nodes")


def read_plain(path: Path, nodes: int | None = None) -> Trace:
    """Read the failures in a table."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _read(enumerate(file, start=1), path, nodes)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise unreadable(path, error) from error


def _read(lines: Iterator[tuple[int, str]], path: Path, job_nodes: int | None) -> Trace:
    watched: dict[str, float] = {}
    number, line = next(lines, (1, ""))
    while line.startswith("#"):
        watched |= _watched(line, path, number)
        number, line = next(lines, (number + 1, ""))
    columns = [name.strip() for name in next(csv.reader([line], skipinitialspace=True), [])]
    if not {"at_s", "kind"} <= set(columns):
        raise refusal(path, number, f"the columns {columns}", "the columns at_s, kind and nodes")
    events: list[Event] = []
    size = int(watched.get("nodes", 0)) or job_nodes
    for number, line in lines:
        cells = next(csv.reader([line], skipinitialspace=True), [])
        if not cells:
            continue
        event = _event(dict(zip(columns, cells, strict=False)), path, number, size or _MOST_NODES)
        if events and event.at_s < events[-1].at_s:
            found = f"at_s = {event.at_s:g} after {events[-1].at_s:g}"
            raise refusal(path, number, found, "times in ascending order", "at_s")
        events.append(event)
    last = events[-1].at_s if events else 0.0
    seconds = watched.get("seconds", 0.0)
    if seconds and last > seconds:
        raise refusal(path, number, f"at_s = {last:g} after the end, {seconds:g}", "times within seconds", "at_s")
    count = size or 1 + max((int(name) for event in events for name in event.nodes), default=-1)
    return Trace(tuple(events), tuple(map(str, range(count))), seconds)


def _watched(line: str, path: Path, number: int) -> dict[str, float]:
    """Parse a line that begins with #: the name and value of the observation; empty for a comment."""
    name, sign, text = (word.strip() for word in line[1:].partition("="))
    if not sign or name not in _WATCHED:
        return {}
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 < value < math.inf) or (name != "seconds" and (not value.is_integer() or value > _MOST_NODES)):
        expected = "a number of seconds, above 0" if name == "seconds" else "a whole number, at least 1"
        raise refusal(path, number, shown(text), expected, name)
    return {name: value}


def _event(row: dict[str, str], path: Path, number: int, nodes: int) -> Event:
    try:
        at_s = float(row.get("at_s") or "")
    except ValueError:
        at_s = math.nan
    if not (math.isfinite(at_s) and at_s >= 0):
        raise refusal(path, number, f"at_s = {row.get('at_s')!r}", "seconds since the beginning, at least 0", "at_s")
    kind = (row.get("kind") or "").strip()
    if kind not in _KINDS:
        raise refusal(path, number, f"kind = {row.get('kind')!r}", "one of " + ", ".join(_KINDS), "kind")
    if kind in ("system", PREEMPTION):
        return Event(at_s, kind, ())
    words = (row.get("nodes") or "").split()
    whole = all(word.isascii() and word.isdigit() and len(word) < 8 for word in words)
    numbers = sorted(set(map(int, words))) if whole else []
    if not numbers or numbers[-1] >= nodes or (kind != "group" and len(words) > 1):
        allowed = f"node numbers from 0 to {nodes - 1}" + ("" if kind == "group" else ", just one")
        raise refusal(path, number, f"nodes = {row.get('nodes')!r}", allowed, "nodes")
    return Event(at_s, kind, tuple(str(node) for node in numbers))


# --- a job's runs -----------------------------------------------------------------------------------------------------


_MOST_BYTES = 1 << 20


def read_own_runs(path: Path) -> Trace:
    """Read the runs of a job from its persistent directory, or from the file in it."""
    path = path / RunsFile.NAME if path.is_dir() else path
    try:
        with path.open("rb") as file:
            records = RunsFile.records(json.loads(file.read(_MOST_BYTES)))
        spans = [_run_span(record) for record in records]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise unreadable(path, error) from error
    if not any(seconds for seconds, _ in spans):
        found = f"{len(records)} runs, of which none has committed a checkpoint or ended"
        raise refusal(path, 1, found, "one that has")
    kinds = {Level.LOCAL: "process"} | dict.fromkeys(REDUNDANT_LEVELS, "node")
    events, clock = list[Event](), 0.0
    for (length, failed), later in zip(spans, [*records[1:], {"restored": None}], strict=True):
        clock += length
        if failed:
            events.append(Event(clock, kinds.get(later["restored"], "system"), ()))
    most = max(record["nodes"] for record in records)
    return Trace(tuple(events), tuple(map(str, range(most))), clock)


def _run_span(record: dict[str, Any]) -> tuple[float, bool]:
    """(known duration of a run in seconds, whether it ended too early)."""
    until = record["ended"] or record["seen"] or record["began"]
    seconds = (datetime.fromisoformat(until) - datetime.fromisoformat(record["began"])).total_seconds()
    return max(0.0, seconds), not record["ended"] and bool(record["seen"])
