"""The lineage: the name by which what lies on nodes is known to belong to a persistent directory.

It stands in ``deeppart.json``, and so a copy of the directory (``cp -r``, a backup that was brought back) has it too:
two jobs would take each other's parts on nodes for their own. A copy is told by the *place* that whoever takes the
directory leaves in the lock file, and where there is none, by the path at which the record was made, its *home*:

- At that path there is another directory of this lineage: it is the original, and this a copy. Unless this one has
  the place's own inode number: then it was moved, and a copy was put where it had been.
- Its record was changed at another time (``st_ctime``, which nobody can set), and either both files have other inode
  numbers, or they are on another file system, where the numbers may happen to be the same.

A copy gets a lineage of its own. Less than that changes when the record alone is brought back, by ``chmod``, and on
file systems that give out inode numbers as they like.
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
LOCK_NAME = ".deeppart.lock"
#: Most that is read of the records of a directory.
SMALL_FILE_BYTES = 64 << 10
#: A record that another job has claimed and is about to fill is looked at so often, with so long in between.
_LOOKS, _PAUSE_S = 5, 0.02


@dataclass(frozen=True, slots=True)
class Place:
    """Where the files of a directory are, by which a copy is told.

    Attributes:
        path: of the directory, without links.
        lock, record: inode numbers of the lock file and of the lineage record.
        changed_ns: when the record's status last changed.
        filesystem: ``f_fsid``, which two of one kind do not share; 0 where there is none.
        directory: inode number; 0 from versions that did not note it.
    """

    path: str
    lock: int
    record: int
    changed_ns: int
    filesystem: int
    directory: int = 0


@dataclass(frozen=True, slots=True)
class Lineage:
    """What names a directory.

    Attributes:
        name: 32 hex digits.
        place: for the lock file.
        copy_of: the lineage that the directory had, of which it is a copy; "" if it is none.
    """

    name: str
    place: Place
    copy_of: str = ""


def take_lineage(directory: Path, lock_fd: int) -> Lineage:
    """The directory's lineage, made on first use; of several jobs that make it at once, all get that of one of them.

    Args:
        lock_fd: the open lock file, with what the last job has written there.

    Raises:
        StorageError, CorruptFileError: the record cannot be read or made.
    """
    found = _look(directory)
    name = found or _make(directory)
    here = _place(directory, lock_fd)
    if not found or not _is_copy(directory, name, _noted_place(lock_fd), here):
        return Lineage(name, here)
    fill(DurableFile(directory / LINEAGE_NAME, make_parent=False, over="anything"), [_record(directory, copy_of=name)])
    return Lineage(_look(directory) or _make(directory), _place(directory, lock_fd), copy_of=name)


def is_copy(directory: Path) -> bool:
    """Whether a directory is a copy that no job has used yet: what lies on nodes is the original's.

    Raises:
        CorruptFileError, StorageError: its record cannot be read.
    """
    name = read_lineage(directory)
    if name is None:
        return False
    try:
        descriptor = access.open_file(directory / LOCK_NAME)
    except OSError:  # the copy has none, or it is for its owner alone
        return _is_another(name, _home(directory), directory)
    try:
        return _is_copy(directory, name, _noted_place(descriptor), _place(directory, descriptor))
    finally:
        os.close(descriptor)


def _place(directory: Path, lock_fd: int) -> Place:
    path = directory / LINEAGE_NAME
    try:
        record, folder = access.look(path), _folder(directory)[1]
        lock, filesystem = os.fstat(lock_fd).st_ino, os.fstatvfs(lock_fd).f_fsid
    except OSError as error:
        raise storage_error("persistent_dir has lost its lineage record", error, path) from error
    return Place(os.path.realpath(directory), lock, record.st_ino, record.st_ctime_ns, filesystem, folder)


def _folder(directory: Path) -> tuple[int, int]:
    """Device and inode number of a directory."""
    with access.open_folder(directory) as folder:
        status = os.fstat(folder.fd)
    return status.st_dev, status.st_ino


def _noted_place(lock_fd: int) -> Place | None:
    """What the last job has noted; None if that cannot be understood."""
    try:
        place = Place(**parse_json(os.pread(lock_fd, SMALL_FILE_BYTES, 0))["place"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    numbers = place.lock, place.record, place.changed_ns, place.filesystem, place.directory
    return place if type(place.path) is str and all(type(each) is int for each in numbers) else None


def _home(directory: Path) -> str:
    """Where the record says that it was made; "" if it does not, as those of earlier versions."""
    try:
        home = parse_json(read_file(directory / LINEAGE_NAME, SMALL_FILE_BYTES)).get("home", "")
    except (OSError, StorageError, ValueError, AttributeError, RecursionError):
        return ""
    return home if type(home) is str else ""


def _is_copy(directory: Path, name: str, before: Place | None, here: Place) -> bool:
    if before is None:  # the first start was not over, or the lock file is not the one that belongs here
        return _is_another(name, _home(directory), directory)
    if before.changed_ns == here.changed_ns:
        return False
    if _is_another(name, before.path, directory):
        stayed = before.directory == here.directory if before.directory else before.lock == here.lock
        return not (stayed and before.filesystem == here.filesystem != 0)
    return (before.lock != here.lock and before.record != here.record) or before.filesystem != here.filesystem


def _is_another(name: str, path: str, directory: Path) -> bool:
    """Whether there is another directory of this lineage at a path.

    What has one record is one directory, seen in two ways; unless the record has several names (``cp -al``).
    """
    elsewhere = Path(path)
    if not path or path == os.path.realpath(directory):
        return False
    try:
        if read_lineage(elsewhere) != name:
            return False
        theirs, ours = (access.look(each / LINEAGE_NAME) for each in (elsewhere, directory))
        if ours.st_nlink > 1 and theirs.st_ino == ours.st_ino:
            return _folder(elsewhere) != _folder(directory)
    except (OSError, ValueError, CorruptFileError, StorageError):
        return False
    return (theirs.st_ino, theirs.st_ctime_ns) != (ours.st_ino, ours.st_ctime_ns)


def _record(directory: Path, **more: str) -> bytes:
    record = {"format": "deeppart", "version": 1, "lineage": uuid.uuid4().hex, "created": now()} | more
    record["home"] = os.path.realpath(directory)
    return json.dumps(record, indent=1).encode() + b"\n"


def _look(directory: Path) -> str | None:
    with contextlib.suppress(CorruptFileError):  # perhaps claimed by another job; the last look tells
        return read_lineage(directory)
    return None


def _make(directory: Path) -> str:
    try:
        create_file(directory / LINEAGE_NAME, _record(directory))
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
        lineage = parse_json(read_file(path, SMALL_FILE_BYTES))["lineage"]
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
