"""Small files that are read and written whole: manifests, records."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from deeppart import access
from deeppart.access.hanging import call, storage_operation
from deeppart.errors import CorruptFileError, FormatError, StorageError
from deeppart.storage.files import DurableFile, fill
from deeppart.storage.refusals import storage_error

#: Raised where a small file cannot be read, or does not hold what is looked for in its JSON. Whoever can do without the
#: file catches these.
UNUSABLE = (OSError, StorageError, FormatError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def write_file(path: Path, data: bytes) -> None:
    """Write a small file durably and atomically, in place of what has the name."""
    fill(DurableFile(path, over="anything"), [data])


def create_file(path: Path, data: bytes) -> None:
    """Write a small file durably and atomically, in a directory that is there, if nothing has the name."""
    fill(DurableFile(path, make_parent=False), [data])


def put_file(path: Path, data: bytes) -> None:
    """Write a small file atomically, in place of what has the name, in a directory that is there.

    Not durably: for what is worth nothing after the machine has gone down. Nothing waits for a disk.
    """
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        _write(access.create(temporary, os.O_WRONLY), data, path)
        access.rename(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            access.remove(temporary)
        raise storage_error("cannot write a file", error, path) from error


def append_line(path: Path, data: bytes) -> None:
    """Add bytes to the end of a file of this user, by one write; it is made if there is none."""
    try:
        with access.open_folder(path.parent, access.Rules()) as folder:
            try:
                descriptor = folder.open(path.name, os.O_WRONLY | os.O_APPEND)
            except FileNotFoundError:
                descriptor = folder.create(path.name, os.O_WRONLY | os.O_APPEND)
        _write(descriptor, data, path)
    except OSError as error:
        raise storage_error("cannot add to a file", error, path) from error


def _write(descriptor: int, data: bytes, path: Path) -> None:
    """Write by one call, and close."""
    try:
        if call("write", path, descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


def read_file(path: Path, limit_bytes: int) -> bytes:
    """Read a small regular file."""
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
