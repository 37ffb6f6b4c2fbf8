"""Failures as a table: CSV with the columns ``at_s``, ``kind`` and ``nodes``.

Lines that begin with ``#`` before the columns may say what was watched; without them, nothing has a rate:

    # seconds = 2592000
    # nodes = 1024
    # processes = 8192
    at_s,kind,nodes
    86400,node,17
    90000,group,32 33 34 35
    100000,preemption,

``nodes`` are numbers from 0, with blanks between; it may be empty for "system" and "preemption". Times ascend.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path

from .record import FAILURES, PREEMPTION, Event, Observation, Trace
from .refusal import refusal, shown, unreadable

NAME = "csv"
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
    return Trace(NAME, tuple(events), observation, tuple(str(node) for node in range(count)))


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
