"""Refusals of the operating system, and ours: errors that say what to do; and room for one more descriptor.

Where this process may not have more descriptors (``EMFILE``), nothing is wrong with the file that could not be opened,
so nothing else may be concluded from that: not that it is damaged, nor that an older checkpoint must do.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from deeppart.access.rules import Complaint
from deeppart.errors import StorageError

T = TypeVar("T")
#: This process, or this machine, has no more descriptors.
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})
_GIVING_WAY: list[Callable[[], bool]] = []


class ForeignAccessError(PermissionError):
    """Others own something, or can write to it, and so could decide what is read or written.

    Attributes:
        complaint: the reason, and what can be done.
    """

    def __init__(self, path: Path, complaint: Complaint) -> None:
        super().__init__(errno.EPERM, f"not used: {complaint.found}", str(path))
        self.complaint = complaint


class NotRegularError(OSError):
    """A symbolic link, a directory, a device, a FIFO or a socket in the place of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "not a regular file (a symbolic link, a directory or a device)", str(path))


def refuse(path: str, complaint: Complaint | None) -> None:
    """Raise ForeignAccessError if the rules have something against a path."""
    if complaint is not None:
        raise ForeignAccessError(Path(path), complaint)


def answers(error: OSError) -> dict[str, str]:
    """The further fields of an error message, beyond the text of the operating system; {} if there are none."""
    if isinstance(error, NotRegularError):
        todo = "find out who has put it there, and remove it"
        return {"expected": "a regular file", "found": str(error.strerror), "where": str(error.filename), "todo": todo}
    if not isinstance(error, ForeignAccessError):
        return advice(error)
    complaint = error.complaint
    where = str(error.filename)
    return {"expected": complaint.expected, "found": complaint.found, "where": where, "todo": complaint.todo}


def storage_error(summary: str, error: OSError, path: Path | str, **more: str) -> StorageError:
    """A StorageError for an OSError, saying what the system said and where."""
    todo = {
        errno.ENOSPC: 'free space there, keep fewer checkpoints (`keep`), or compress them: compression = "zstd"',
        errno.EDQUOT: "the quota is used up: free space or ask for more",
        errno.EACCES: "check the directory's owner and permissions",
        errno.EPERM: "check the directory's owner and permissions",
        errno.EROFS: "the file system is mounted read-only, often after an error: look at the system log",
        errno.ENOENT: "a directory of that path is not there: check the path, and that the file system is mounted",
        errno.ENOTDIR: "a file lies where a directory is wanted: give another path, or move the file away",
        errno.EEXIST: "nothing was replaced; two processes that write one file act as the same rank",
    }.get(error.errno or 0, "look at the system log and the file system's state")
    text = f"{os.strerror(error.errno)} (errno {error.errno})" if error.errno else str(error)
    found = {"found": text, "where": str(path), "todo": todo} | answers(error) | more
    return StorageError(summary, errno=error.errno, **found)


def with_room(do: Callable[[], T]) -> T:
    """What this returns; if there are no more descriptors, room is made, and it is tried again."""
    while True:
        try:
            return do()
        except OSError as error:
            if error.errno not in EXHAUSTED or not (_close_idle() or _raise_limit()):
                raise


def give_way(close_idle: Callable[[], bool]) -> None:
    """Have something asked to close what it does not need now; it says whether it has closed anything."""
    _GIVING_WAY.append(close_idle)


def _close_idle() -> bool:
    return sum(close_idle() for close_idle in _GIVING_WAY) > 0  # all of them, not only the first that can


def _raise_limit() -> bool:
    """Raise the soft limit of open files to the hard one; True if it is higher now.

    The soft limit is 1,024 for the sake of programs that use ``select(2)``, which cannot take higher numbers; the hard
    limit is what the administrator allows. A job that comes here has used the soft one up, by files and connections of
    its own. To fail then would cost it the checkpoint; not to touch the limit before leaves it as the user has set it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft == hard:
        return False
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return False
    return True


def advice(error: OSError) -> dict[str, str]:
    """What an error message says of the limit; {} for any other error."""
    if error.errno == errno.EMFILE:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        todo = "raise the limit of open files of the job's processes (`ulimit -n`): nothing is wrong with the file"
        return {"found": f"this process may not open more than {soft} files", "todo": todo}
    if error.errno == errno.ENFILE:
        todo = "raise the machine's limit (sysctl fs.file-max), or end what has so many open"
        return {"found": "no process of this machine may open more files", "todo": todo}
    return {}
