"""What the operating system refuses, as one of the library's errors, with the advice for it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from deeppart import access
from deeppart.errors import StorageError


def storage_error(summary: str, error: OSError, path: Path | str, **answers: str) -> StorageError:
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
    found = {"found": text, "where": str(path), "todo": todo} | access.answers(error) | answers
    return StorageError(summary, errno=error.errno, **found)
