"""The status of one rank: a record, and a small file below the persistent directory that is rewritten regularly.

Invariants
----------
* A file, ``status-<session>/rank-000003.json``, is written by one rank of one session alone: both are in its path. So
  nothing that a rank of an older job does when it wakes up late can take the place of what a newer one says
  (docs/decisions/0010-fencing.md).
* Only rank 0 of the session that owns the directory removes, and only what it found before it saw that it still does.
* No checkpoint depends on these files, and no error here is one of a checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
import stat
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from deeppart import access
from deeppart._times import seconds_of, timestamp
from deeppart.access import storage_error
from deeppart.errors import CorruptFileError, FormatError, MissingError, NewerFormatError, StorageError, short
from deeppart.model import Report, ScrubReport
from deeppart.part import MAX_WORLD_SIZE, is_hex32, parse_json
from deeppart.storage import LINEAGE_NAME, LOCK_NAME, DirectoryOwner, PosixStore, is_temporary_name

_FORMAT, _VERSION = "deeppart-status", 1
#: Limits of texts in a status, to keep the file small: lines of one kind, and characters of a line.
_MOST_LINES, _MOST_CHARACTERS = 10, 500
_MOST_NUMBER = 1 << 63
_FOLDER = "status-"
_FILE = re.compile(r"rank-([0-9]{6,8})\.json", re.ASCII)
#: A job writes a few kilobytes; texts are bounded.
_MOST_BYTES = 1 << 20
#: Files that are read, at most: one for each node of the largest machines.
_MOST_FILES = 20_000


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """A checkpoint in flight, or the last finished one.

    Attributes:
        number: its number in the session, from 0; the same on every rank.
        began: when ``checkpoint()`` returned, UTC, ISO 8601.
        over: true if it has finished.
        report: its report.
    """

    number: int
    began: str
    over: bool
    report: Report


@dataclass(frozen=True, slots=True)
class ErrorStatus:
    """A level of a checkpoint that failed; or, with level "", a failed removal of old checkpoints."""

    at: str
    step: int
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class RankStatus:
    """The status of one rank and of its job.

    Attributes:
        session: 32 hex digits for this run of the job.
        job, library, node: name of the job in the scheduler, library and version, name of the rank's node.
        process, rank, world_size, nodes: of this rank; numbers of ranks and nodes of the job.
        began, written: when the session began, and when this was written, UTC, ISO 8601.
        every: level -> every how many checkpoints; empty with ``every="auto"``.
        reduced: lines about requested protection that is not available.
        ended: when the session ended; None while it runs.
        failed: true if it was left by an exception.
        restored: the step that was restored last, or None.
        period_s, next_due: with ``every="auto"``, on rank 0: seconds from one checkpoint to the next, and when the next
            is due, UTC, ISO 8601.
        repairing: true if redundancy is being rebuilt.
        scrubbed: the work of scrubbing; None if it is off.
        metrics: name in :mod:`deeppart.telemetry.metrics` -> label, or "" -> value, of counted metrics.
        checkpoints: the last finished one, if any, and those in flight, oldest first.
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
    every: Mapping[str, int] = field(metadata={"json": False})  # what commands print of the job has these elsewhere
    reduced: tuple[str, ...]
    ended: str | None = None
    failed: bool = False
    restored: int | None = None
    period_s: float | None = None
    next_due: str | None = None
    repairing: bool = False
    scrubbed: ScrubReport | None = None
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict, metadata={"json": False})
    checkpoints: tuple[CheckpointStatus, ...] = field(default=(), metadata={"json": False})
    errors: tuple[ErrorStatus, ...] = field(default=(), metadata={"json": False})

    @property
    def in_flight(self) -> tuple[CheckpointStatus, ...]:
        """The checkpoints that have not finished."""
        return tuple(each for each in self.checkpoints if not each.over)

    def metric(self, name: str, label: str = "") -> float | None:
        """A counted metric; None if it is unknown."""
        return self.metrics.get(name, {}).get(label)


def encode_status(status: RankStatus) -> bytes:
    """The bytes of a status file."""
    return json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(status)}).encode() + b"\n"


def decode_status(data: bytes, where: str) -> RankStatus:
    """Inverse of :func:`encode_status`; unknown keys are ignored."""
    try:
        document = parse_json(data)
        if type(document) is not dict or document.get("format") != _FORMAT or type(document.get("version")) is not int:
            raise ValueError("it does not begin as one")
        if document["version"] > _VERSION:
            raise NewerFormatError("a status file was written by a newer deeppart", where=where, todo="update deeppart")
        status: RankStatus = _read(RankStatus, document, "status")
        _check(status)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError, OSError) as error:
        raise CorruptFileError(
            "this is no sound status file", expected="what a job writes", found=short(str(error)), where=where
        ) from error
    return status


def _check(status: RankStatus) -> None:
    """Raise ValueError for values that no job writes."""
    others = [each.began for each in status.checkpoints] + [each.at for each in status.errors]
    for moment in (status.began, status.written, status.ended, status.next_due, *others):
        if moment is not None:
            seconds_of(moment)
    for at_s in status.metrics.get("level_last_time_seconds", {}).values():
        timestamp(at_s)
    if not is_hex32(status.session):
        raise ValueError(f"session {short(status.session)}")
    if not 0 <= status.rank < status.world_size <= MAX_WORLD_SIZE or not 0 < status.nodes <= status.world_size:
        raise ValueError(f"rank {status.rank} of {status.world_size} on {status.nodes} nodes")


def _read(kind: Any, value: Any, where: str) -> Any:
    """A value of a type, from JSON values."""
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
    return value


@functools.cache
def _hints_of(kind: type) -> Mapping[str, Any]:
    """The types of a record's fields, cached: evaluating them takes longest, and there may be thousands of files."""
    return typing.get_type_hints(kind)


def bounded(value: Any) -> Any:
    """A record, or a part of one, with its texts cut to the limits of a status file."""
    if isinstance(value, str):
        return value[:_MOST_CHARACTERS]
    if isinstance(value, tuple):
        more = (f"and {len(value) - _MOST_LINES} more",) if len(value) > _MOST_LINES else ()
        return tuple(bounded(each) for each in value[:_MOST_LINES]) + more
    if isinstance(value, Mapping):
        return {key: bounded(each) for key, each in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (each.name for each in dataclasses.fields(value))
        return dataclasses.replace(value, **{name: bounded(getattr(value, name)) for name in names})
    return value


# --- files ---


def status_folder(root: Path, session: str) -> Path:
    """The folder in which the ranks of a session write."""
    return root / f"{_FOLDER}{session}"


def _file_name(rank: int) -> str:
    return f"rank-{rank:06d}.json"


class StatusFile:
    """The status file of one rank, for its writer."""

    def __init__(self, root: Path, session: str, rank: int) -> None:
        self._root, self._folder = root, status_folder(root, session)
        self._name = _file_name(rank)
        self._made = False

    def write(self, status: RankStatus) -> None:
        """Put a status in place of the one before; nothing where the folder has been removed since.

        Another session has done that, which took the directory over: the next commit says so.
        """
        if not self._made:
            try:
                access.lstat(self._root / LINEAGE_NAME)  # raises if the file system is not mounted
                access.make_folder(self._folder)
            except OSError as error:
                raise storage_error("cannot make the directory of status files", error, self._folder) from error
            self._made = True
        try:
            PosixStore(self._folder).replace(self._name, encode_status(status), durable=False)
        except StorageError:
            if not self._is_removed():
                raise

    def _is_removed(self) -> bool:
        """True if the folder is missing although its directory exists."""
        try:
            return not access.exists(self._folder) and access.exists(self._root / LINEAGE_NAME)
        except OSError:
            return False


def remove_earlier(root: Path, owner: DirectoryOwner) -> None:
    """Remove the status files of all sessions but that of the owner, as far as the system lets us; raises nothing."""
    store = PosixStore(root)
    with contextlib.suppress(StorageError):
        folders = [name for name in store.list() if _session_of(name) not in (None, owner.session)]
        if folders:
            owner.check()
        for folder in folders:  # what no job writes into it stays, and so does the folder then
            with contextlib.suppress(StorageError):
                ours = [name for name in store.list(folder) if _FILE.fullmatch(name) or is_temporary_name(name)]
                store.delete(folder, ours)


def _session_of(name: str) -> str | None:
    session = name.removeprefix(_FOLDER)
    return session if session != name and is_hex32(session) else None


@dataclass(frozen=True, slots=True)
class Statuses:
    """The status files of the ranks of a session.

    Attributes:
        found: by ascending rank.
        problems: lines about files that are not used.
    """

    found: tuple[RankStatus, ...] = ()
    problems: tuple[str, ...] = ()


def sessions_with_status(root: Path) -> tuple[str, ...]:
    """The sessions that have status files in a directory, in no order."""
    return tuple(filter(None, map(_session_of, PosixStore(root).list())))


def read_statuses(root: Path, session: str) -> Statuses:
    """The status files of a session; none if it has written none. What cannot be used is a line among the problems."""
    store, folder = PosixStore(root), f"{_FOLDER}{session}"
    try:
        names = sorted(name for name in store.list(folder) if _FILE.fullmatch(name))
    except MissingError:
        return Statuses()
    except StorageError as error:
        return Statuses(problems=(f"{folder} cannot be read: {error.found}",))
    found, problems = [], []
    if len(names) > _MOST_FILES:
        problems.append(f"{len(names)} status files: only {_MOST_FILES} of them are read")
    trusted = _Trusted(root)
    for name in names[:_MOST_FILES]:
        try:
            found.append(_read_file(store, f"{folder}/{name}", session, trusted))
        except MissingError:  # another session has taken the directory over
            continue
        except (FormatError, StorageError) as error:
            problems.append(f"{folder}/{name}: {': '.join(_texts(error))}")
    return Statuses(tuple(found), tuple(problems))


def _texts(error: FormatError | StorageError) -> Iterator[str]:
    yield error.summary
    if error.found:
        yield f"found {error.found}"
    elif error.expected:
        yield f"expected {error.expected}"


def _read_file(store: PosixStore, key: str, session: str, trusted: _Trusted) -> RankStatus:
    where = store.where(key)
    trusted.check(store.path(key))
    status = decode_status(store.get(key, _MOST_BYTES), where)
    if key != f"{_FOLDER}{status.session}/{_file_name(status.rank)}":
        found = f"that of rank {status.rank} of session {status.session[:8]}..."
        raise CorruptFileError("this is another status file than its name says", found=found, where=where)
    return status


class _Trusted:
    """The users whose status files are trusted: the owner of the directory's lock file, root, and this user.

    A command reads what it is given, of whatever user. But in a directory in which everyone may make files, others than
    the job could make those that it says nothing with.
    """

    def __init__(self, root: Path) -> None:
        self._uids = {os.geteuid(), 0}
        self._gid = -1
        with contextlib.suppress(OSError):
            lock = access.lstat(root / LOCK_NAME)
            self._uids.add(lock.st_uid)
            if lock.st_mode & stat.S_IWGRP:  # a team's directory: the first user has made the lock file
                self._gid = lock.st_gid

    def check(self, path: Path) -> None:
        """Raise CorruptFileError for a file of another user, StorageError if that cannot be told."""
        try:
            status = access.lstat(path)
        except OSError as error:
            raise storage_error("cannot look at a status file", error, path) from error
        if status.st_uid not in self._uids and status.st_gid != self._gid:
            raise CorruptFileError(
                "a status file of another user is not used",
                expected="one of the owner of the lock file",
                found=f"one of uid {status.st_uid}",
                where=str(path),
            )
