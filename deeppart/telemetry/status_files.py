"""Status files below a persistent directory: ``status-<session>/rank-000003.json``, written over again and again.

Invariants
----------
* A file is written by one rank of one session alone: both are in its path. So nothing that a rank of an older job does
  when it wakes up late can take the place of what a newer one says (docs/decisions/0010-fencing.md).
* Only rank 0 of the session that owns the directory removes, and only what it found before it saw that it still does.
* No checkpoint depends on these files, and no error here is one of a checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deeppart import access
from deeppart.access import storage_error
from deeppart.errors import CorruptFileError, FormatError, StorageError
from deeppart.part import is_hex32
from deeppart.storage.files import put_file, read_file
from deeppart.storage.lineage import LINEAGE_NAME, LOCK_NAME
from deeppart.storage.owner import DirectoryOwner
from deeppart.storage.steps import is_temporary_name
from deeppart.telemetry.record import RankStatus, decode_status, encode_status

_FOLDER = "status-"
_FILE = re.compile(r"rank-([0-9]{6,8})\.json", re.ASCII)
#: What a job writes is a few kilobytes; texts are bounded when it does.
_MOST_BYTES = 1 << 20
#: Files that are read at most: one for each node of the largest machines.
_MOST_FILES = 20_000


def status_folder(root: Path, session: str) -> Path:
    """Where the ranks of a session write."""
    return root / f"{_FOLDER}{session}"


def _file_name(rank: int) -> str:
    return f"rank-{rank:06d}.json"


class StatusFile:
    """The status file of one rank, as its writer has it."""

    def __init__(self, root: Path, session: str, rank: int) -> None:
        self._root, self._folder = root, status_folder(root, session)
        self._path = self._folder / _file_name(rank)
        self._made = False

    def write(self, status: RankStatus) -> None:
        """Put a status in place of the one before; nothing where the folder has been removed since.

        Another session has done that, which took the directory over: the next commit says so.
        """
        if not self._made:
            try:
                access.lstat(self._root / LINEAGE_NAME)  # or the file system is not mounted
                access.make_folder(self._folder)
            except OSError as error:
                raise storage_error("cannot make the directory of status files", error, self._folder) from error
            self._made = True
        try:
            put_file(self._path, encode_status(status))
        except StorageError:
            if not self._is_removed():
                raise

    def _is_removed(self) -> bool:
        """True if the folder is gone, and the directory that it was in is there."""
        try:
            return not access.exists(self._folder) and access.exists(self._root / LINEAGE_NAME)
        except OSError:
            return False


def remove_earlier(root: Path, owner: DirectoryOwner) -> None:
    """Remove the status files of all sessions but that of the owner, as far as the system lets us; raises nothing."""
    with contextlib.suppress(OSError, StorageError):
        found = [name for name in access.names_in(root) if _session_of(name) not in (None, owner.session)]
        if found:
            owner.check()
        for name in found:
            with contextlib.suppress(OSError):
                _remove_folder(root, name)


def _remove_folder(root: Path, name: str) -> None:
    """Remove a folder and what a job writes into it; anything else stays, and so does the folder then."""
    with access.open_folder(root) as above:
        with access.open_folder(root / name) as folder:
            for each in folder.names():
                if _FILE.fullmatch(each) or is_temporary_name(each):
                    folder.remove(each)
        above.remove_directory(name)


def _session_of(name: str) -> str | None:
    session = name.removeprefix(_FOLDER)
    return session if session != name and is_hex32(session) else None


@dataclass(frozen=True, slots=True)
class Statuses:
    """What the ranks of a session have written.

    Attributes:
        found: by ascending rank.
        problems: lines about files that are not used.
    """

    found: tuple[RankStatus, ...] = ()
    problems: tuple[str, ...] = ()


def sessions_with_status(root: Path) -> tuple[str, ...]:
    """The sessions that have status files in a directory, in no order."""
    try:
        found = map(_session_of, access.names_in(root))
        return tuple(session for session in found if session is not None)
    except OSError as error:
        raise storage_error("cannot list a checkpoint directory", error, root) from error


def read_statuses(root: Path, session: str) -> Statuses:
    """The status files of a session; none if it has written none. What cannot be used is a line among the problems."""
    folder = status_folder(root, session)
    try:
        names = sorted(name for name in access.names_in(folder) if _FILE.fullmatch(name))
    except FileNotFoundError:
        return Statuses()
    except OSError as error:
        return Statuses(problems=(f"{folder.name} cannot be read: {error.strerror or error}",))
    found, problems = [], []
    if len(names) > _MOST_FILES:
        problems.append(f"{len(names)} status files: only {_MOST_FILES} of them are read")
    trusted = _Trusted(root)
    for name in names[:_MOST_FILES]:
        try:
            found.append(_read(folder / name, session, trusted))
        except FileNotFoundError:  # another session has taken the directory over
            continue
        except (FormatError, StorageError) as error:
            problems.append(f"{folder.name}/{name}: {': '.join(_texts(error))}")
        except OSError as error:
            problems.append(f"{folder.name}/{name}: {error.strerror or error}")
    return Statuses(tuple(found), tuple(problems))


def _texts(error: FormatError | StorageError) -> Iterator[str]:
    yield error.summary
    if error.found:
        yield f"found {error.found}"
    elif error.expected:
        yield f"expected {error.expected}"


def _read(path: Path, session: str, trusted: _Trusted) -> RankStatus:
    trusted.check(path)
    status = decode_status(read_file(path, _MOST_BYTES), str(path))
    if status.session != session or _file_name(status.rank) != path.name:
        found = f"that of rank {status.rank} of session {status.session[:8]}..."
        raise CorruptFileError("this is another status file than its name says", found=found, where=str(path))
    return status


class _Trusted:
    """Whose status files are believed: those of whoever owns the directory's lock file, of root, and of this user.

    A command reads what it is given, of whatever user. But in a directory in which everyone may make files, others than
    the job could make those that it says nothing with.
    """

    def __init__(self, root: Path) -> None:
        self._uids = {os.geteuid(), 0}
        self._gid = -1
        with contextlib.suppress(OSError):
            lock = access.lstat(root / LOCK_NAME)
            self._uids.add(lock.st_uid)
            if lock.st_mode & stat.S_IWGRP:  # a team's directory: the lock file is of whoever was there first
                self._gid = lock.st_gid

    def check(self, path: Path) -> None:
        """Raise CorruptFileError for a file of another user, OSError if that cannot be told."""
        status = access.lstat(path)
        if status.st_uid not in self._uids and status.st_gid != self._gid:
            raise CorruptFileError(
                "a status file of another user is not used",
                expected="one of the owner of the lock file",
                found=f"one of uid {status.st_uid}",
                where=str(path),
            )
