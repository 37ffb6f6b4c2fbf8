"""Small files that are read and written whole: manifests, records."""

from __future__ import annotations

import os
from pathlib import Path

from deeppart import access
from deeppart.access.hanging import storage_operation
from deeppart.errors import CorruptFileError, FormatError, StorageError
from deeppart.storage.files import DurableFile, fill
from deeppart.storage.refusals import storage_error

#: Raised where a small file cannot be read, or does not hold what is looked for in its JSON. Whoever can do without the
#: file catches these.
UNUSABLE = (OSError, StorageError, FormatError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def write_file(path: Path, data: bytes) -> None:
    """Write a small file durably and atomically, in place of what has the name.

    Raises:
        StorageError: the operating system refused.
    """
    fill(DurableFile(path, over="anything"), [data])


def create_file(path: Path, data: bytes) -> None:
    """Write a small file durably and atomically, in a directory that is there, if nothing has the name.

    Raises:
        StorageError: the operating system refused; ``EEXIST`` if something has the name.
    """
    fill(DurableFile(path, make_parent=False), [data])


def read_file(path: Path, limit_bytes: int) -> bytes:
    """Read a small regular file.

    Raises:
        FileNotFoundError: there is none.
        StorageError: it cannot be read.
        CorruptFileError: it is longer than ``limit_bytes`` or not a regular file.
    """
    try:
        with os.fdopen(access.open_file(path), "rb") as file, storage_operation("read", path):
            length = os.fstat(file.fileno()).st_size
            data = file.read(min(length, limit_bytes) + 1)  # it takes memory for as much as it is asked for
    except FileNotFoundError:
        raise
    except access.NotRegularError as error:
        raise CorruptFileError(str(error.strerror), expected="a regular file", where=str(path)) from error
    except OSError as error:
        raise storage_error("cannot read a checkpoint file", error, path) from error
    if len(data) > limit_bytes:
        raise CorruptFileError("a file is too long", expected=f"at most {limit_bytes} bytes", where=str(path))
    return data
