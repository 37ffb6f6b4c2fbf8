"""Whose a checkpoint directory is: asked without disturbing a job, or taken for as long as something is changed in it.

The lock is the running job's (:class:`deeppart.storage.DirectoryOwner`): ``flock`` on one file, whose text
names the session that may commit. Nothing here ever changes that text.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deeppart import access
from deeppart.access import storage_error
from deeppart.errors import DirectoryInUseError, StorageError
from deeppart.storage import LOCK_NAME, DirectoryOwner

#: The file system has no locks at all, or the lock manager is away: nobody can tell whether a job runs.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})
#: How long to try for the lock: another command may hold it for the instant in which it asks whose it is.
_PATIENCE_S, _PAUSE_S = 0.5, 0.02


@dataclass(frozen=True, slots=True)
class Owner:
    """The job that took a directory last. Fields: docs/commands.md, ls."""

    running: bool | None
    who: str
    since: str
    session: str

    @property
    def line(self) -> str | None:
        """A line for people; None if no job is running."""
        if self.running is False:
            return None
        verb = "in use by" if self.running else "perhaps in use (the file system has no locks): last taken by"
        return f"{verb} {self.who}, since {self.since[:19].replace('T', ' ')}"


def read_owner(root: Path) -> Owner | None:
    """The owner of a checkpoint directory; None if no job has ever taken it.

    Where no job holds the lock it is shared with us for the microseconds between two system calls.
    """
    try:
        descriptor = access.open_file(root / LOCK_NAME)
    except FileNotFoundError:
        return None
    except OSError:
        return _owner(None, {})
    try:
        return _owner(_is_locked(descriptor), DirectoryOwner.recorded(descriptor))
    finally:
        os.close(descriptor)


@contextmanager
def hold_directory(root: Path, *, without_lock: bool = False) -> Iterator[None]:
    """Keep jobs out of a directory while something in it is changed."""
    try:
        descriptor = DirectoryOwner.open_lock(root / LOCK_NAME)
    except OSError as error:
        raise storage_error("the checkpoint directory cannot be locked", error, root) from error
    try:
        _lock(descriptor, root, without_lock)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, root: Path, without_lock: bool) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() < deadline:
                time.sleep(_PAUSE_S)
                continue
            owner = _owner(True, DirectoryOwner.recorded(descriptor))
            raise DirectoryInUseError(
                "a running job checkpoints into this directory: nothing is changed in it now",
                found=f"in use by {owner.who}, since {owner.since}",
                where=str(root),
                todo="wait for that job to end, or end it",
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise storage_error("the checkpoint directory cannot be locked", error, root) from error
            if without_lock:
                return
            raise StorageError(
                "this file system has no locks, so nothing tells whether a job is running there",
                errno=error.errno,
                found=os.strerror(error.errno or 0),
                where=str(root),
                todo="make sure that no job checkpoints into the directory, then use --no-lock",
            ) from error


def _is_locked(descriptor: int) -> bool | None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def _owner(running: bool | None, record: dict[str, str]) -> Owner:
    who, since, session = (record.get(name, "") for name in ("who", "since", "session"))
    return Owner(running, who or "an unknown process", since or "unknown", session)
