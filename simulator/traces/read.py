"""Reads any trace; how the file begins tells its format. Logs of schedulers are in :mod:`.schedulers`; the others here.

*LANL*: ``LA-UR-05-7318-failure-data-1996-2005.csv`` (https://www.usenix.org/cfdr-data), failures of 22 systems. A
line is a node that was down. Days of production are as a spreadsheet has left them: ``Jan-97`` is January 1997 and
``2-May`` is May 2002. Nodes that went down together are found by the fit.

*A table*: CSV with the columns ``at_s``, ``kind`` and ``nodes`` (numbers from 0, with blanks between), times ascending.
Lines ``# seconds = 2592000``, ``# nodes = 1024`` and ``# processes = 8192`` before the columns say what was watched;
without them, nothing has a rate.

*A job's runs*: ``deeppart-runs.json``, which ``every = "auto"`` keeps in ``persistent_dir``. The level from which the
next run came back says what had failed: from the local level, a process, since every node's storage was there; from a
partner's copies or parity, a node; from the file system, or nothing known, everything.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from deeppart.errors import ConfigError
from deeppart.model import HISTORY_NAME, REDUNDANT_LEVELS, RUNS_FORMAT, Level, run_records

from .record import FAILURES, KINDS, PREEMPTION, Event, Observation, Runs, Trace, in_order, refusal, shown, unreadable
from .schedulers import PHILLY, SLURM, is_philly, is_slurm, read_philly, read_slurm

LANL, TABLE, OWN_RUNS = "lanl", "csv", "runs"
#: Enough to tell formats apart.
_BEGINNING = 4096


def read_trace(path: Path, *, nodes: int | None = None, system: str | None = None) -> Trace:
    """A trace."""
    found = format_of(path)
    if system is not None and found != LANL:
        raise ConfigError(
            "--system would change nothing", expected="it chooses one of LANL's systems", found=f"format {found}",
            where="--system", todo="leave it out",
        )  # fmt: skip
    if found == SLURM:
        return read_slurm(path)
    if found == LANL:
        return read_lanl(path, system)
    if found == PHILLY:
        return read_philly(path)
    return read_own_runs(path) if found == OWN_RUNS else read_plain(path, nodes)


def format_of(path: Path) -> str:
    """The format of a file, by its beginning, or that of a directory."""
    if path.is_dir():
        return OWN_RUNS
    try:
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING).decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise unreadable(path, error) from error
    first_line = beginning.split("\n", 1)[0]
    known = {
        SLURM: is_slurm(first_line),
        LANL: is_lanl(first_line),
        PHILLY: is_philly(beginning),
        OWN_RUNS: is_own_runs(beginning),
        TABLE: is_plain(beginning),
    }
    for name, fits in known.items():
        if fits:
            return name
    raise refusal(
        path, 1, shown(first_line.rstrip("\r")),
        "the columns of `sacct --parsable2` with State, Start, End and NodeList, or of LANL's file; an array of "
        "Philly's jobs; the runs of a persistent directory; or the columns at_s, kind and nodes",
    )  # fmt: skip


# --- LANL -------------------------------------------------------------------------------------------------------------


_NEEDED = ("System", "nodes", "nodenumz", "node prod", "node decom", "Prob Started")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
#: "Jan-97", of the years with two digits, and "2-May", of those that a spreadsheet took for days.
_LATE, _EARLY = re.compile(r"([A-Z][a-z]{2})-([0-9]{2})"), re.compile(r"([0-9])-([A-Z][a-z]{2})")
_UNKNOWN, _STILL = "before tracking", "current"


def is_lanl(first_line: str) -> bool:
    """True if a file that begins so is LANL's."""
    return set(_NEEDED) <= set(first_line.rstrip("\r\n").split(","))


@dataclass(frozen=True, slots=True)
class _Line:
    system: str
    nodes: int
    node: str
    production: tuple[str, str]
    at: datetime


def read_lanl(path: Path, system: str | None = None) -> Trace:
    """The failures of one system in a file."""
    last, counts, lines, unnumbered = datetime.min, Counter[str](), list[_Line](), 0  # noqa: DTZ901 - no zone here
    try:
        for number, row in _rows(path):
            at = _time(row["Prob Started"], path, number)
            last = max(last, at)
            name = row["System"]
            counts[name] += 1
            if name != (system or name):
                continue
            if not row["nodenumz"]:
                unnumbered += 1
                continue
            lines.append(_line(row, at, path, number))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise unreadable(path, error) from error
    systems = sorted(counts, key=lambda word: (len(word), word))
    if system not in counts and (system is not None or len(counts) != 1):
        found = "system " + system if system is not None else f"{len(counts)} systems"
        raise refusal(path, 1, found, "--system with one of " + ", ".join(systems))
    if not lines:
        raise refusal(path, 1, "a system without numbers of nodes", "lines with nodenumz")
    return _trace(lines, last, [f"{unnumbered:,} lines without the number of a node left out"] if unnumbered else [])


def _trace(lines: list[_Line], last: datetime, notes: list[str]) -> Trace:
    size = max(line.nodes for line in lines)
    first = min(line.at for line in lines)
    spans = {line.node: _span(line.production, first, last) for line in lines}
    usual = _span(Counter(line.production for line in lines).most_common(1)[0][0], first, last)
    if any(line.production[0] == _UNKNOWN for line in lines):
        notes = [*notes, "no day of production: watched from the first failure on"]
    size = max(size, len(spans))
    known = list(spans.values()) + [usual] * (size - len(spans))
    began, ended = min(span[0] for span in known), max(span[1] for span in known)
    node_s = sum(max(0.0, (until - since).total_seconds()) for since, until in known)
    events = sorted((max(0.0, (line.at - began).total_seconds()), "node", (line.node,)) for line in lines)
    names = in_order({*spans, *(str(number) for number in range(size) if len(spans) < size)})[:size]
    observation = Observation((ended - began).total_seconds(), size, node_s, resolution_s=60.0)
    return Trace(
        LANL, tuple(Event(*event) for event in events), observation, names, notes=tuple(notes), tells=FAILURES[1:]
    )


def _span(production: tuple[str, str], first: datetime, last: datetime) -> tuple[datetime, datetime]:
    """From when to when a node was in production; until the last record of the file if it still is."""
    since, until = _month(production[0]), _month(production[1], end=True)
    return since or first, min(until or last, last)


def _line(row: dict[str, str], at: datetime, path: Path, number: int) -> _Line:
    for column in ("nodes", "nodenumz"):
        if not (row[column].isascii() and row[column].isdigit() and len(row[column]) < 7):
            raise refusal(path, number, shown(row[column]), "a whole number", column)
    for column, other in (("node prod", _UNKNOWN), ("node decom", _STILL)):
        if row[column] not in (_UNKNOWN, _STILL) and _month(row[column]) is None:
            raise refusal(path, number, shown(row[column]), f'a month such as Jan-97 or 2-May, or "{other}"', column)
    production = (row["node prod"], row["node decom"])
    return _Line(row["System"], int(row["nodes"]), row["nodenumz"], production, at)


def _month(text: str, *, end: bool = False) -> datetime | None:
    """The beginning of a month, or of the one after it; None if the text is none."""
    if (match := _LATE.fullmatch(text)) is not None:
        name, year = match[1], 1900 + int(match[2])
    elif (match := _EARLY.fullmatch(text)) is not None:
        name, year = match[2], 2000 + int(match[1])
    else:
        return None
    if name not in _MONTHS:
        return None
    months = 12 * year + _MONTHS.index(name) + end
    return datetime(months // 12, months % 12 + 1, 1)  # noqa: DTZ001 - the file has no zone


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    # Umlauts in causes are Latin-1; no column that is read here has any.
    with path.open(encoding="latin-1", newline="") as file:
        reader = csv.DictReader(file, restval="")
        missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
        if missing:
            raise refusal(path, 1, f"no column {missing[0]}", "the columns " + ", ".join(_NEEDED))
        for row in reader:
            yield reader.line_num, row


def _time(text: str, path: Path, number: int) -> datetime:
    try:
        date, clock = text.split(" ")
        month, day, year = date.split("/")
        hour, minute = clock.split(":")
        return datetime(int(year), int(month), int(day), int(hour), int(minute))  # noqa: DTZ001 - as above
    except ValueError:
        raise refusal(path, number, shown(text), "a time such as 6/21/2005 10:54", "Prob Started") from None


# --- tables -----------------------------------------------------------------------------------------------------------


_KINDS = (*FAILURES, PREEMPTION)
_WATCHED = ("seconds", "nodes", "processes")
#: Numbers of nodes are below.
_MOST_NODES = 1 << 20


def is_plain(beginning: str) -> bool:
    """True if a file that begins so is such a table."""
    lines = [line for line in beginning.splitlines() if not line.startswith("#")]
    return bool(lines) and {"at_s", "kind"} <= {word.strip(' "') for word in lines[0].split(",")}


def read_plain(path: Path, nodes: int | None = None) -> Trace:
    """The failures in a file."""
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
    processes = watched.get("processes", 0.0)
    observation = Observation(seconds, count, seconds * count, seconds * processes, 0.0)
    return Trace(TABLE, tuple(events), observation, tuple(str(node) for node in range(count)))


def _watched(line: str, path: Path, number: int) -> dict[str, float]:
    """What a line that begins with # says of what was watched; nothing, if it is a remark."""
    name, sign, text = (word.strip() for word in line[1:].partition("="))
    if not sign or name not in _WATCHED:
        return {}
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 < value < math.inf) or (name != "seconds" and (not value.is_integer() or value > _MOST_NODES << 12)):
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
    numbers = sorted({int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 8})
    whole = all(word.isascii() and word.isdigit() and len(word) < 8 for word in words)
    if not words or not whole or numbers[-1] >= nodes or (kind != "group" and len(words) > 1):
        allowed = f"node numbers from 0 to {nodes - 1}" + ("" if kind == "group" else ", just one")
        raise refusal(path, number, f"nodes = {row.get('nodes')!r}", allowed, "nodes")
    return Event(at_s, kind, tuple(str(node) for node in numbers))


# --- a job's runs -----------------------------------------------------------------------------------------------------


_MOST_BYTES = 1 << 20


def is_own_runs(beginning: str) -> bool:
    """True if a file that begins so is such a history."""
    return beginning.lstrip().startswith("{") and RUNS_FORMAT in beginning


def read_own_runs(path: Path) -> Trace:
    """The runs of a directory."""
    path = path / HISTORY_NAME if path.is_dir() else path
    try:
        with path.open("rb") as file:
            records = run_records(json.loads(file.read(_MOST_BYTES)))
        spans = [_run_span(record) for record in records]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise unreadable(path, error) from error
    if not any(seconds for seconds, _ in spans):
        raise refusal(
            path, 1, f"{len(records)} runs, of which none has committed a checkpoint or ended", "one that has"
        )
    return _runs_trace(records, spans)


def _runs_trace(records: list[dict[str, Any]], spans: list[tuple[float, bool]]) -> Trace:
    seconds = np.array([length for length, _ in spans])
    nodes = np.array([float(record["nodes"]) for record in records])
    ended, events, clock = np.full(len(records), -1, dtype=np.int8), [], 0.0
    followers = [later for _, later in pairwise(records)] + [None]
    for place, ((length, failed), later) in enumerate(zip(spans, followers, strict=True)):
        clock += length
        if failed:
            kind = _kind(later["restored"] if later else None)
            ended[place] = KINDS.index(kind)
            events.append(Event(clock, kind, ()))
    most = max(record["nodes"] for record in records)
    notes = [f"{len(records)} runs, {clock / 86400:.3g} days; which node failed is not in this file"]
    observation = Observation(clock, most, float(seconds @ nodes), resolution_s=1.0)
    names = tuple(str(number) for number in range(most))
    runs, tells = Runs(seconds, nodes, ended), ("process", "node", "system")
    return Trace(OWN_RUNS, tuple(events), observation, names, runs, notes=tuple(notes), one_job=True, tells=tells)


def _run_span(record: dict[str, Any]) -> tuple[float, bool]:
    """(how long a run is known to have lasted, whether it ended too early)."""
    until = record["ended"] or record["seen"] or record["began"]
    seconds = (datetime.fromisoformat(until) - datetime.fromisoformat(record["began"])).total_seconds()
    return max(0.0, seconds), not record["ended"] and bool(record["seen"])


def _kind(restored: str | None) -> str:
    if restored == Level.LOCAL:
        return "process"
    return "node" if restored in REDUNDANT_LEVELS else "system"
