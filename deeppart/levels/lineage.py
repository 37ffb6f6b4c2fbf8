"""The lineage: the name by which what lies on nodes is known to belong to a persistent directory.

It stands in ``deeppart.json``, and so a copy of the directory (``cp -r``, a backup that was brought back) has it too:
two jobs would take each other's parts on nodes for their own. A copy is told by its *place*, which whoever takes the
directory leaves in the lock file: the inode numbers of the lock file and of the record, and the time of the record's
last change of status, which nobody can set. Where all three are others, the directory is a copy, and gets a lineage of
its own. Some of them change without that: where the record alone is brought back, by ``chmod``, and on file systems
that give out inode numbers as they like. A copy made of hard links (``cp -al``) has a lock file with two names, which
is refused; without it, a record of two names is taken for a copy's.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from deeppart import access
from deeppart.errors import CorruptFileError, StorageError
from deeppart.levels.files import DurableFile, create_file, fill, read_file, storage_error
from deeppart.levels.timestamps import now
from deeppart.part import is_hex32
from deeppart.part.format import short
from deeppart.part.json_text import parse_json

LINEAGE_NAME = "deeppart.json"
_SMALL_FILE_BYTES = 64 << 10
#: A record that another job has claimed and is about to fill is looked at so often, with so long in between.
_LOOKS, _PAUSE_S = 5, 0.02


@dataclass(frozen=True, slots=True)
class Lineage:
    """What names a directory.

    Attributes:
        name: 32 hex digits.
        place: by which a copy of the record is told from it.
        copy_of: the lineage that the directory had, of which it is a copy; "" if it is none.
    """

    name: str
    place: str
    copy_of: str = ""


def take_lineage(directory: Path, lock_fd: int, place: str) -> Lineage:
    """The directory's lineage, made on first use; of several jobs that make it at once, all get that of one of them.

    Args:
        lock_fd: the open lock file.
        place: when a job last took the directory; "" if that is not known.

    Raises:
        StorageError, CorruptFileError: the record cannot be read or made.
    """
    found = _look(directory)
    name = found or _make(directory)
    here, names = _place(directory, lock_fd)
    if not found or not _is_copy(place, here, names):
        return Lineage(name, here)
    fill(DurableFile(directory / LINEAGE_NAME, make_parent=False, over="anything"), [_record(copy_of=name)])
    return Lineage(_look(directory) or _make(directory), _place(directory, lock_fd)[0], copy_of=name)


def _place(directory: Path, lock_fd: int) -> tuple[str, int]:
    """The place, and how many names the record has."""
    path = directory / LINEAGE_NAME
    try:
        status = access.look(path)
    except OSError as error:
        raise storage_error("persistent_dir has lost its lineage record", error, path) from error
    return f"{os.fstat(lock_fd).st_ino}:{status.st_ino}:{status.st_ctime_ns}", status.st_nlink


def _is_copy(before: str, here: str, names: int) -> bool:
    parts = before.split(":"), here.split(":")
    if len(parts[0]) != len(parts[1]):  # not known
        return names > 1
    return all(one != other for one, other in zip(*parts, strict=True))


def _record(**more: str) -> bytes:
    record = {"format": "deeppart", "version": 1, "lineage": uuid.uuid4().hex, "created": now()} | more
    return json.dumps(record, indent=1).encode() + b"\n"


def _look(directory: Path) -> str | None:
    with contextlib.suppress(CorruptFileError):  # perhaps claimed by another job; the last look tells
        return read_lineage(directory)
    return None


def _make(directory: Path) -> str:
    try:
        create_file(directory / LINEAGE_NAME, _record())
    except StorageError as error:
        if error.errno != errno.EEXIST:
            raise
    for _ in range(_LOOKS):  # another job may have claimed it, and be about to fill it
        if found := _look(directory):
            return found
        time.sleep(_PAUSE_S)
    found = read_lineage(directory)
    if found is None:
        raise StorageError("persistent_dir has lost its lineage record", where=str(directory / LINEAGE_NAME))
    return found


def read_lineage(directory: Path) -> str | None:
    """The lineage recorded in a directory, or None where there is no record.

    Raises:
        CorruptFileError: the record cannot be read.
        StorageError: the operating system refused.
    """
    path = directory / LINEAGE_NAME
    try:
        lineage = parse_json(read_file(path, _SMALL_FILE_BYTES))["lineage"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptFileError(
            "the directory's lineage record cannot be read",
            found=str(error),
            where=str(path),
            todo="remove the file to begin a new lineage: local copies of earlier checkpoints are then not found",
        ) from error
    if not is_hex32(lineage):
        raise CorruptFileError("the directory's lineage record is not sound", found=short(lineage), where=str(path))
    return str(lineage)
