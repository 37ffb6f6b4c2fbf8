"""Failures of 22 systems at Los Alamos National Laboratory, 1996 to 2005: the file that LANL has published.

``LA-UR-05-7318-failure-data-1996-2005.csv``, described in the README beside it and at
https://www.usenix.org/cfdr-data. A line is a node that was down: system, nodes of the system, number of the node
(``nodenumz``, from 0), when it was installed, in production and taken away, when the problem began and was fixed, and
its cause. Days are those of production: as a spreadsheet has left them, ``Jan-97`` is January 1997 and ``2-May`` is
May 2002. Each line is the failure of a node; nodes that went down together are found by the fit.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from .ordering import in_order
from .record import FAILURES, Event, Observation, Trace
from .refusal import refusal, shown, unreadable

NAME = "lanl"
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
        NAME, tuple(Event(*event) for event in events), observation, names, notes=tuple(notes), tells=FAILURES[1:]
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
