r"""Logs of schedulers: the output of Slurm's ``sacct --parsable2``, and Microsoft's Philly log.

    TZ=UTC sacct --allusers --duplicates --allocations --parsable2 --starttime 2026-01-01 --endtime now \
        --format=JobID,State,Submit,Start,End,NodeList

``--duplicates`` also gives the runs that a requeued job had before, one line each. Other columns may be there, in any
order. Lines of steps are left out, which only the column JobID or JobIDRaw tells, and those of jobs that have not
begun, or that were cancelled before they had a node: these have a start, too.

Philly's ``cluster_job_log`` (https://github.com/msr-fiddle/philly-traces; M. Jeon et al., USENIX ATC 2019) is a JSON
array of jobs, each with ``status``, ``submitted_time`` and ``attempts``. It does not say why an attempt ended: one that
was followed by another counts as the failure of a process, and so does the last one of a job with the status Failed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, TextIO

from .record import PREEMPTION, TIME_LIMIT, JobLog, LoggedRun, Trace, refusal, shown, unreadable

# --- Slurm's lists of nodes -------------------------------------------------------------------------------------------


#: More nodes no list has; a range written by mistake may have more names than there is memory.
MOST_NODES = 1 << 20
_ITEM = re.compile(r"(?:[^,\[\]]|\[[0-9,-]+\])+")
_BRACKETS = re.compile(r"\[([0-9,-]+)\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
#: What Slurm writes where a job never had nodes.
NONE = "None assigned"


@lru_cache(maxsize=65_536)
def node_names(text: str) -> tuple[str, ...]:
    """The names in a list, in its order; none for a job that never had nodes."""
    if text in ("", NONE, "(null)"):
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
        if len(names) + count > MOST_NODES:
            raise ValueError(f"a list of at most {MOST_NODES} nodes")
        names += ["".join(pieces) for pieces in product(*choices)]
    return tuple(names)


def _numbers(text: str) -> list[str]:
    """``001-003,7`` -> ``001``, ``002``, ``003``, ``7``: as wide as the first of each range is written."""
    found: list[str] = []
    for word in text.split(","):
        match = _RANGE.fullmatch(word)
        if match is None:
            raise ValueError("numbers and ranges in brackets, such as [001-004,7]")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= MOST_NODES:
            raise ValueError(f"ranges upwards, of at most {MOST_NODES} nodes")
        found += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return found


# --- Slurm ------------------------------------------------------------------------------------------------------------


SLURM = "slurm"
_NEEDED = ("State", "Start", "End", "NodeList")
#: Columns that tell a job from its steps; one of them has to be there, or steps would count as jobs.
_IDS = ("JobID", "JobIDRaw")
#: What is left out, in the order of its notes.
_STEPS, _NOT_BEGUN, _WITHOUT_NODES = (
    "lines of steps left out",
    "jobs that have not begun",
    "jobs without a node left out",
)
#: State of a job (man sacct, JOB STATE CODES) -> what ended it. OUT_OF_MEMORY and FAILED leave the node's storage.
_ENDED = {
    "NODE_FAIL": "node",
    "BOOT_FAIL": "node",
    "FAILED": "process",
    "OUT_OF_MEMORY": "process",
    "PREEMPTED": PREEMPTION,
    "TIMEOUT": TIME_LIMIT,
    "DEADLINE": TIME_LIMIT,
}
#: Ends that are no failure, and jobs that have not ended.
_OTHERS = (
    "COMPLETED", "CANCELLED", "RUNNING", "PENDING", "REQUEUED", "RESIZING", "REVOKED", "SUSPENDED",
    "CONFIGURING", "COMPLETING", "STOPPED", "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT",
    "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD",
)  # fmt: skip
_NO_TIME = ("Unknown", "None", "")
_TIME_WORDS = "a time such as 2026-11-27T15:44:35, as sacct writes it unless SLURM_TIME_FORMAT is set"


def is_slurm(first_line: str) -> bool:
    """True if a file that begins so is such an output."""
    return "|" in first_line and "State" in first_line.rstrip("\r\n").split("|")


def read_slurm(path: Path) -> Trace:
    """The jobs in a file."""
    log = JobLog()
    lines = Counter[str]()
    try:
        with path.open(encoding="utf-8-sig") as file:
            names = file.readline().rstrip("\n").split("|")
            missing = [name for name in _NEEDED if name not in names]
            if not set(_IDS) & set(names):
                missing.append(_IDS[0])
            if missing:
                expected = f"the columns {', '.join((_IDS[0], *_NEEDED))}, with | between"
                raise refusal(path, 1, f"no column {missing[0]}", expected)
            reader = _Lines(path, names)
            for number, line in enumerate(file, start=2):
                if run := reader.run_of(line, number, lines):
                    log.add(run)
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error
    if not len(log):
        raise refusal(path, 1, "no job that has begun", "at least one")
    notes = [f"{lines[word]:,} {word}" for word in (_STEPS, _NOT_BEGUN, _WITHOUT_NODES) if lines[word]]
    return log.trace(SLURM, 1.0, notes)


class _Lines:
    """Reads line after line; remembers what is often the same."""

    def __init__(self, path: Path, names: list[str]) -> None:
        self._path, self._names = path, names
        self._state, self._start, self._end, self._nodes = (names.index(name) for name in _NEEDED)
        self._submit = names.index("Submit") if "Submit" in names else None
        self._job = next(names.index(name) for name in _IDS if name in names)
        self._zoned: bool | None = None  # whether times have a zone; None before the first one

    def run_of(self, line: str, number: int, lines: Counter[str]) -> LoggedRun | None:
        cells = line.rstrip("\n").split("|")
        if len(cells) != len(self._names):
            if not line.strip():
                return None
            expected = f"{len(self._names)} cells: leave out columns such as JobName, in which there may be a |"
            raise refusal(self._path, number, f"{len(cells)} cells", expected)
        if "." in cells[self._job]:
            lines[_STEPS] += 1
            return None
        state = cells[self._state].split(" ", 1)[0]
        if state not in _ENDED and state not in _OTHERS:
            raise refusal(self._path, number, shown(state), "one of " + ", ".join((*_ENDED, *_OTHERS)), "State")
        began = self._time(cells[self._start], number, "Start")
        if began is None:
            lines[_NOT_BEGUN] += 1
            return None
        try:
            nodes = node_names(cells[self._nodes])
        except ValueError as error:
            raise refusal(self._path, number, shown(cells[self._nodes]), str(error), "NodeList") from error
        if not nodes:
            lines[_WITHOUT_NODES] += 1
            return None
        ended = self._time(cells[self._end], number, "End")
        if ended is not None and ended < began:
            raise refusal(self._path, number, f"{cells[self._end]} before {cells[self._start]}", "a later time", "End")
        submitted = None if self._submit is None else self._time(cells[self._submit], number, "Submit")
        waited = None if submitted is None else began - submitted
        return LoggedRun(began, ended, nodes, None if ended is None else _ENDED.get(state), 0, waited)

    def _time(self, text: str, number: int, column: str) -> float | None:
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
        # Without a zone all are taken alike: only differences count.
        return (moment - (_EPOCH if moment.tzinfo is None else _EPOCH_UTC)).total_seconds()


_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)


# --- Philly -----------------------------------------------------------------------------------------------------------


PHILLY = "philly"
_STATUSES = ("Pass", "Killed", "Failed")
#: So much of the file is in memory at a time, and one job.
_PIECE = 1 << 20
_PHILLY_TIME = 'a time such as "2017-10-07 01:12:09", or null'


def is_philly(beginning: str) -> bool:
    """True if a file that begins so is such a log."""
    return beginning.lstrip().startswith("[")


def read_philly(path: Path) -> Trace:
    """The attempts of all jobs in a file."""
    log, skipped = JobLog(), 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            for line, job in _entries(file, path):
                skipped += _add(log, job, path, line)
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error
    if not len(log):
        raise refusal(path, 1, "no attempt with a start_time", "at least one")
    notes = ["why an attempt ended is not in this log: each that failed or was made again counts for a process"]
    notes += [f"{skipped:,} attempts without a start_time left out"] if skipped else []
    return replace(log.trace(PHILLY, 1.0, notes), tells=("process",))


def _add(log: JobLog, job: Any, path: Path, line: int) -> int:
    """One job's attempts; returns how many were left out."""
    if not isinstance(job, dict) or not isinstance(job.get("attempts"), list):
        raise refusal(path, line, shown(job), "a job: an object with status, submitted_time and attempts")
    if job.get("status") not in _STATUSES:
        raise refusal(path, line, shown(job.get("status")), "one of " + ", ".join(_STATUSES), "status")
    since, left_out = _time(job.get("submitted_time"), path, line, "submitted_time"), 0
    for place, attempt in enumerate(job["attempts"]):
        if not isinstance(attempt, dict):
            raise refusal(path, line, shown(attempt), "an object with start_time, end_time, detail", "attempts")
        began = _time(attempt.get("start_time"), path, line, "start_time")
        ended = _time(attempt.get("end_time"), path, line, "end_time")
        if began is None:
            left_out += 1
            continue
        if ended is not None and ended < began:
            raise refusal(
                path, line, f"{attempt['end_time']} before {attempt['start_time']}", "a later time", "end_time"
            )
        nodes, gpus = _places(attempt.get("detail"), path, line)
        failed = place + 1 < len(job["attempts"]) or job["status"] == "Failed"
        waited = None if since is None else began - since
        log.add(LoggedRun(began, ended, nodes, "process" if failed and ended is not None else None, gpus, waited))
        since = ended
    return left_out


def _places(detail: Any, path: Path, line: int) -> tuple[tuple[str, ...], int]:
    """(servers, number of GPUs) of an attempt."""
    try:
        nodes = tuple(str(place["ip"]) for place in detail)
        return nodes, sum(len(place["gpus"]) for place in detail)
    except (TypeError, KeyError):
        raise refusal(path, line, shown(detail), "a list of objects with ip and gpus", "detail") from None


def _time(text: Any, path: Path, line: int, column: str) -> float | None:
    if text in (None, "", "None"):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except (ValueError, TypeError):
        raise refusal(path, line, shown(text), _PHILLY_TIME, column) from None
    return (moment.replace(tzinfo=None) - _EPOCH).total_seconds()


_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - without a zone only differences count


def _entries(file: TextIO, path: Path) -> Iterator[tuple[int, Any]]:
    """The entries of an array, with the lines on which they begin, one at a time."""
    decoder = json.JSONDecoder()
    text, at, line = file.read(_PIECE), 0, 1
    expected, begun = "an array of jobs, as cluster_job_log is", False
    while True:
        while at < len(text) and (text[at].isspace() or text[at] == ("," if begun else "[")):
            line += text[at] == "\n"
            begun = begun or text[at] == "["
            at += 1
        if at == len(text):
            text, at = file.read(_PIECE), 0
            if not text:
                raise refusal(path, line, "the end of the file", expected)
            continue
        if not begun:
            raise refusal(path, line, shown(text[at : at + 20]), expected)
        if text[at] == "]":
            return
        try:
            entry, end = decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError) as error:
            more = file.read(max(_PIECE, len(text) - at))
            if not more:
                raise refusal(path, line, str(error), expected) from error
            text, at = text[at:] + more, 0
            continue
        yield line, entry
        line += text.count("\n", at, end)
        at = end
