"""The status of one rank, as a record and as the bytes of a file. Pure."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from deeppart.errors import CorruptFileError, NewerFormatError
from deeppart.model import LevelReport, Report
from deeppart.part import MAX_WORLD_SIZE, is_hex32, parse_json, short
from deeppart.storage.timestamps import seconds_of

_FORMAT, _VERSION = "deeppart-status", 1
#: Of texts in a status: lines of one kind, and characters of a line. More are left out, so that the file stays small.
_MOST_LINES, _MOST_CHARACTERS = 10, 500
_MOST_NUMBER = 1 << 63


@dataclass(frozen=True, slots=True)
class LevelTotals:
    """One level since the session began, on one rank.

    Attributes:
        done, failed: checkpoints that are complete there, on all ranks, and those that failed.
        written_bytes, unchanged_bytes: written by this rank; there already and not written again.
        busy_s: seconds this rank spent on its own work there.
        last_step, last_at, last_seconds, last_bytes, last_busy_s: of the last that is complete: its step, when it was
            (UTC, ISO 8601), the seconds from ``checkpoint()`` returning, what this rank wrote, and in what time.
    """

    done: int = 0
    failed: int = 0
    written_bytes: int = 0
    unchanged_bytes: int = 0
    busy_s: float = 0.0
    last_step: int | None = None
    last_at: str | None = None
    last_seconds: float | None = None
    last_bytes: int = 0
    last_busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Totals:
    """All checkpoints that have come to their end since the session began, on one rank.

    Attributes:
        checkpoints, skipped: those that were made, and those that ``on_busy="skip"`` dropped.
        blocked_s, waited_s, held_s: sums of the fields of :class:`deeppart.Report`, in seconds.
        most_blocked_s: of one checkpoint.
        raw_bytes, encoded_bytes: of this rank's shares.
        retries, retire_errors: persistent parts written again; checkpoints after which old ones could not be removed.
        stages_s: stage -> seconds.
    """

    checkpoints: int = 0
    skipped: int = 0
    blocked_s: float = 0.0
    waited_s: float = 0.0
    held_s: float = 0.0
    most_blocked_s: float = 0.0
    raw_bytes: int = 0
    encoded_bytes: int = 0
    retries: int = 0
    retire_errors: int = 0
    stages_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """A checkpoint in flight, or the last that came to its end.

    Attributes:
        number: which one of the session, from 0; the same on every rank.
        began: when ``checkpoint()`` returned, UTC, ISO 8601.
        over: true if nothing more happens to it.
        report: its report.
    """

    number: int
    began: str
    over: bool
    report: Report


@dataclass(frozen=True, slots=True)
class ErrorStatus:
    """A level of a checkpoint that failed; or, with the level "", old checkpoints that could not be removed."""

    at: str
    step: int
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class ScrubStatus:
    """As :class:`deeppart.ScrubReport`."""

    cycles: int
    nbytes: int
    damaged: int
    repaired: int


@dataclass(frozen=True, slots=True)
class RankStatus:
    """What one rank says of itself and of its job.

    Attributes:
        session: 32 hex digits for this run of the job.
        job, library, node: names: of the job as the scheduler has it, of library and version, of the rank's node.
        process, rank, world_size, nodes: of this rank; ranks and nodes of the job.
        began, written: when the session began, and when this was written, UTC, ISO 8601.
        ended: when the session ended; None while it runs.
        failed: true if it was left by an exception.
        restored: the step that was restored last, or None.
        every: level -> every how many checkpoints; empty with ``every="auto"``.
        period_s, next_due: with ``every="auto"``, on rank 0: seconds from one checkpoint to the next, and when the next
            is due, UTC, ISO 8601.
        repairing: true if redundancy is being rebuilt.
        reduced: lines about protection that was asked for and could not be given.
        scrubbed: the work of scrubbing; None where it is off.
        totals, levels: sums; of the levels that are on.
        checkpoints: the last that is over, if any, and those in flight, oldest first.
        errors: the last few, oldest first.
    """

    session: str
    job: str
    library: str
    node: str
    process: int
    rank: int
    world_size: int
    nodes: int
    began: str
    written: str
    ended: str | None
    failed: bool
    restored: int | None
    every: Mapping[str, int]
    period_s: float | None
    next_due: str | None
    repairing: bool
    reduced: tuple[str, ...]
    scrubbed: ScrubStatus | None
    totals: Totals
    levels: Mapping[str, LevelTotals]
    checkpoints: tuple[CheckpointStatus, ...]
    errors: tuple[ErrorStatus, ...]

    @property
    def in_flight(self) -> tuple[CheckpointStatus, ...]:
        """The checkpoints that are not over."""
        return tuple(each for each in self.checkpoints if not each.over)


def encode_status(status: RankStatus) -> bytes:
    """The bytes of a status file."""
    return json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(status)}).encode() + b"\n"


def decode_status(data: bytes, where: str) -> RankStatus:
    """Inverse of :func:`encode_status`; keys that it does not know are passed over."""
    try:
        document = parse_json(data)
        if type(document) is not dict or document.get("format") != _FORMAT or type(document.get("version")) is not int:
            raise ValueError("it does not begin as one")
        if document["version"] > _VERSION:
            raise NewerFormatError("a status file was written by a newer deeppart", where=where, todo="update deeppart")
        status: RankStatus = _read(RankStatus, document, "status")
        _check(status)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptFileError(
            "this is no sound status file", expected="what a job writes", found=short(str(error)), where=where
        ) from error
    return status


def _check(status: RankStatus) -> None:
    """Raise ValueError for what no job writes."""
    last = [totals.last_at for totals in status.levels.values()]
    others = [each.began for each in status.checkpoints] + [each.at for each in status.errors]
    for moment in (status.began, status.written, status.ended, status.next_due, *last, *others):
        if moment is not None:
            seconds_of(moment)
    if not is_hex32(status.session):
        raise ValueError(f"session {short(status.session)}")
    if not 0 <= status.rank < status.world_size <= MAX_WORLD_SIZE or not 0 < status.nodes <= status.world_size:
        raise ValueError(f"rank {status.rank} of {status.world_size} on {status.nodes} nodes")


def _read(kind: Any, value: Any, where: str) -> Any:
    """A value of a type, made of what JSON has."""
    arguments = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return None if value is None else _read(arguments[0], value, where)
    if typing.get_origin(kind) is tuple and type(value) is list:
        return tuple(_read(arguments[0], each, where) for each in value)
    if typing.get_origin(kind) is Mapping and type(value) is dict:
        return {key: _read(arguments[1], each, where) for key, each in value.items()}
    if dataclasses.is_dataclass(kind) and type(value) is dict:
        hints = _hints_of(typing.cast(type, kind))
        missing = [name for name in hints if name not in value]
        if missing:
            raise ValueError(f"{where} has no {missing[0]}")
        return kind(**{name: _read(hint, value[name], name) for name, hint in hints.items()})  # type: ignore[operator]
    wanted = (int, float) if kind is float else (kind,)
    if type(value) not in wanted or (type(value) in (int, float) and abs(value) >= _MOST_NUMBER):
        raise ValueError(f"{where} is {short(value)}")
    return float(value) if kind is float else value


@functools.cache
def _hints_of(kind: type) -> Mapping[str, Any]:
    """The types of a record's fields: to evaluate them takes longer than all else, and there are thousands of files."""
    return typing.get_type_hints(kind)


def bounded_lines(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The first of many lines, shortened."""
    more = (f"and {len(lines) - _MOST_LINES} more",) if len(lines) > _MOST_LINES else ()
    return tuple(line[:_MOST_CHARACTERS] for line in lines[:_MOST_LINES]) + more


def bounded_report(report: Report) -> Report:
    """A report without more text than a status file has room for."""
    levels = {name: _bounded_level(level) for name, level in report.levels.items()}
    compression = {name: bounded_lines(lines) for name, lines in report.compression.items()}
    return replace(
        report,
        levels=levels,
        compression=compression,
        retire_error=None if report.retire_error is None else report.retire_error[:_MOST_CHARACTERS],
        diverged=bounded_lines(report.diverged),
        reduced=bounded_lines(report.reduced),
        hanging=bounded_lines(report.hanging),
    )


def _bounded_level(level: LevelReport) -> LevelReport:
    return replace(level, error=None if level.error is None else level.error[:_MOST_CHARACTERS])
