"""Files of checkpoints that others have made: anyone's, and read as bytes that nobody trusts.

What the rules of :mod:`deeppart.access.rules` protect is what a job has written itself. A model that somebody else has
published may be everyone's to read, and lie where others may write: its bytes are checked as far as its format lets
them be, and never executed, whoever they come from. Links are followed: the folders that Hugging Face's library makes
consist of links. What remains is that opening must not wait, and do nothing to what is no file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from deeppart.access.descriptors import close_descriptor
from deeppart.access.hanging import storage_operation
from deeppart.access.refusals import NotRegularError
from deeppart.access.room import with_room


def open_foreign(path: Path | str) -> int:
    """Open a regular file for reading, whoever it belongs to, by way of links too."""
    return with_room(lambda: _open(path))


def _open(path: Path | str) -> int:
    with storage_operation("open", path):
        found = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(found).st_mode):
                raise NotRegularError(Path(path))
            return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            close_descriptor(found)


def is_foreign_directory(path: Path | str) -> bool:
    """True if a path leads to a directory, by way of links too."""
    with storage_operation("stat", path):
        return stat.S_ISDIR(os.stat(path).st_mode)


def names_in_foreign(path: Path | str) -> list[str]:
    """The names of the entries of a directory, whoever it belongs to."""
    with storage_operation("listdir", path):
        return os.listdir(path)
