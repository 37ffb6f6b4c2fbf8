"""Storage errors that say what was expected, what was found, where, and what to do."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

from deeppart.access.rules import ForeignAccessError
from deeppart.errors import MissingError, StorageError

_TODO = {
    errno.ENOSPC: 'free space there, keep fewer checkpoints (`keep`), or compress them: compression = "zstd"',
    errno.EDQUOT: "the quota is used up: free space or ask for more",
    errno.EACCES: "check the directory's owner and permissions",
    errno.EPERM: "check the directory's owner and permissions",
    errno.EROFS: "the file system is mounted read-only, often after an error: look at the system log",
    errno.ENOENT: "a directory of that path is not there: check the path, and that the file system is mounted",
    errno.ENOTDIR: "a file lies where a directory is wanted: give another path, or move the file away",
    errno.EEXIST: "nothing was replaced; two processes that write one file act as the same rank",
}


class NotRegularError(OSError):
    """A symbolic link, directory, device, FIFO or socket was found instead of a regular file."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "not a regular file (a symbolic link, a directory or a device)", str(path))


def answers(error: OSError) -> dict[str, str]:
    """Fields of an error message that are more specific than the operating system's text; may be empty."""
    where = str(error.filename)
    if isinstance(error, NotRegularError):
        todo = "find out who has put it there, and remove it"
        return {"expected": "a regular file", "found": str(error.strerror), "where": where, "todo": todo}
    if isinstance(error, ForeignAccessError):
        return {"expected": error.expected, "found": error.found, "where": where, "todo": error.todo}
    if error.errno == errno.EMFILE:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        todo = "raise the limit of open files of the job's processes (`ulimit -n`): nothing is wrong with the file"
        return {"found": f"this process may not open more than {soft} files", "todo": todo}
    if error.errno == errno.ENFILE:
        todo = "raise the machine's limit (sysctl fs.file-max), or end what has so many open"
        return {"found": "no process of this machine may open more files", "todo": todo}
    return {}


def storage_error(summary: str, error: OSError, path: Path | str, **more: str) -> StorageError:
    """Convert an OSError to a StorageError with the operating system's text and the path."""
    todo = _TODO.get(error.errno or 0, "look at the system log and the file system's state")
    text = f"{os.strerror(error.errno)} (errno {error.errno})" if error.errno else str(error)
    found = {"found": text, "where": str(path), "todo": todo} | answers(error) | more
    kind = MissingError if error.errno == errno.ENOENT else StorageError
    return kind(summary, errno=error.errno, **found)
