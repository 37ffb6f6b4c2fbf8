"""Jobs of Microsoft's Philly clusters: ``cluster_job_log`` of https://github.com/msr-fiddle/philly-traces.

A JSON array of jobs, each with ``status`` (Pass, Killed or Failed), ``submitted_time`` and ``attempts``, each of these
with ``start_time``, ``end_time`` and ``detail``: the servers (``ip``) and their ``gpus``. The log does not say why an
attempt ended: one that was followed by another counts as the failure of a process, and so does the last one of a job
with the status Failed. A time may be missing. Published: M. Jeon et al., Analysis of Large-Scale Multi-Tenant GPU
Clusters for DNN Training Workloads, USENIX ATC 2019.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from .job_log import JobLog, LoggedRun
from .record import Trace
from .refusal import refusal, shown, unreadable

NAME = "philly"
_STATUSES = ("Pass", "Killed", "Failed")
#: So much of the file is in memory at a time, and one job.
_PIECE = 1 << 20
_TIME_WORDS = 'a time such as "2017-10-07 01:12:09", or null'


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
    return replace(log.trace(NAME, 1.0, notes), tells=("process",))


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
        raise refusal(path, line, shown(text), _TIME_WORDS, column) from None
    return (moment.replace(tzinfo=None) - _EPOCH).total_seconds()


_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - the log has no zone: only differences count


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
