"""The lineage: the name by which what lies on nodes is known to belong to a persistent directory.

It stands in ``deeppart.json``, and so a copy of the directory (``cp -r``, a backup that was brought back) has it too:
two jobs would take each other's parts on nodes for their own. A copy is told by the *place* that whoever takes the
directory leaves in the lock file:

- The lineage noted there is another one: the record was copied over that of this directory (``cp -r original/* here``
  into an older copy, say).
- At the noted path there is another directory of this lineage: it is the original, and this a copy. Unless this one
  has the place's own inode number: then it was moved, and a copy was put where it had been.
- Its record was changed at another time (``st_ctime``, which nobody can set), and the directory has another inode
  number, or both files have, or they are on another file system, where the numbers may happen to be the same.

Less than that changes when the record alone is brought back, by ``chmod``, and on file systems that give out inode
numbers as they like. Where no place is noted, the *home* that stands in the record itself tells: the directory in which
it was made, whose inode number no other directory of its file system has for as long as it is there.

A copy gets a lineage of its own. A record that cannot be read is written anew, with the lineage that the lock file
notes; where that notes none, or the record is gone, with a new one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from deeppart import access
from deeppart.access import storage_error
from deeppart.errors import CorruptFileError, StorageError
from deeppart.part import is_hex32
from deeppart.part.format import short
from deeppart.part.json_text import parse_json
from deeppart.storage.files import UNUSABLE, DurableFile, create_file, fill, read_file
from deeppart.storage.timestamps import now

LINEAGE_NAME = "deeppart.json"
LOCK_NAME = ".deeppart.lock"
#: Most that is read of the records of a directory.
SMALL_FILE_BYTES = 64 << 10
#: A record that another job has claimed and is about to fill is looked at so often, with so long in between.
_LOOKS, _PAUSE_S = 5, 0.02


@dataclass(frozen=True, slots=True)
class DirectoryIdentity:
    """The place of the files of a directory; a copy is recognized by it.

    Attributes:
        path: of the directory, without links.
        lock, record: inode numbers of the lock file and of the lineage record.
        changed_ns: when the record's status last changed.
        filesystem: ``f_fsid``, which two of one kind do not share; 0 where there is none.
        directory: inode number; 0 from versions that did not note it.
        lineage: that the directory had; "" from versions that did not note it.
    """

    path: str
    lock: int
    record: int
    changed_ns: int
    filesystem: int
    directory: int = 0
    lineage: str = ""


@dataclass(frozen=True, slots=True)
class Home:
    """The directory in which a record was made, as it says itself.

    Attributes:
        path: without links; "" from versions that did not note it.
        directory: inode number; 0 from versions that did not note it.
        filesystem: ``f_fsid``; 0 where there is none.
    """

    path: str = ""
    directory: int = 0
    filesystem: int = 0


@dataclass(frozen=True, slots=True)
class Lineage:
    """The name of a directory.

    Attributes:
        name: 32 hex digits.
        place: for the lock file.
        copy_of: the lineage that the directory had, of which it is a copy; "" if it is none.
        former: the one that it had before a record was copied over its own; "" if none was.
        damage: what was wrong with the record, which has been written anew; "" if nothing was.
    """

    name: str
    place: DirectoryIdentity
    copy_of: str = ""
    former: str = ""
    damage: str = ""


def take_lineage(directory: Path, lock_fd: int) -> Lineage:
    """The directory's lineage, made on first use; of several jobs that make it at once, all get that of one of them."""
    found, before, damage = _read_if_sound(directory), _noted_place(lock_fd), ""
    noted = before.lineage if before is not None else ""
    name = found
    if name is None:
        name, damage = _make(directory, noted)
    here = _place(directory, lock_fd, name)
    if name not in (found, noted) or not _is_copy(directory, name, before, here):
        return Lineage(name, here, damage=damage)
    _write_over(directory, copy_of=name)
    own = _read_if_sound(directory) or _make(directory)[0]
    former = before.lineage if before is not None and before.lineage != name else ""
    return Lineage(own, _place(directory, lock_fd, own), name, former, damage)


def is_copy(directory: Path) -> bool:
    """True if a directory is a copy that no job has used yet: what lies on nodes is the original's."""
    name = read_lineage(directory)
    if name is None:
        return False
    try:
        descriptor = access.open_file(directory / LOCK_NAME)
    except OSError:  # the copy has none, or it is for its owner alone
        return _is_away_from_home(directory, name)
    try:
        return _is_copy(directory, name, _noted_place(descriptor), _place(directory, descriptor, name))
    finally:
        os.close(descriptor)


def _place(directory: Path, lock_fd: int, name: str) -> DirectoryIdentity:
    path = directory / LINEAGE_NAME
    try:
        record, folder = access.lstat(path), _folder(directory)[1]
        lock, filesystem = os.fstat(lock_fd).st_ino, os.fstatvfs(lock_fd).f_fsid
    except OSError as error:
        raise storage_error("persistent_dir has lost its lineage record", error, path) from error
    return DirectoryIdentity(
        os.path.realpath(directory), lock, record.st_ino, record.st_ctime_ns, filesystem, folder, name
    )


def _folder(directory: Path) -> tuple[int, int, int]:
    """Device, inode number and ``f_fsid`` of a directory."""
    with access.open_folder(directory) as folder:
        status = os.fstat(folder.fd)
        return status.st_dev, status.st_ino, os.fstatvfs(folder.fd).f_fsid


def _noted_place(lock_fd: int) -> DirectoryIdentity | None:
    """The place that the last job has noted; None if it cannot be understood."""
    try:
        place = DirectoryIdentity(**parse_json(os.pread(lock_fd, SMALL_FILE_BYTES, 0))["place"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    texts = place.path, place.lineage
    numbers = place.lock, place.record, place.changed_ns, place.filesystem, place.directory
    sound = all(type(each) is str for each in texts) and all(type(each) is int for each in numbers)
    return place if sound and _is_whole(place.path) else None


def _home(directory: Path) -> Home:
    try:
        record = parse_json(read_file(directory / LINEAGE_NAME, SMALL_FILE_BYTES))
        home = Home(record["home"], record.get("home_directory", 0), record.get("home_filesystem", 0))
    except UNUSABLE:
        return Home()
    sound = type(home.path) is str and all(type(each) is int for each in (home.directory, home.filesystem))
    return home if sound and _is_whole(home.path) else Home()


def _is_whole(path: str) -> bool:
    """True if a path is noted as a whole, so that it does not lead elsewhere from another place."""
    return os.path.isabs(path) and path == os.path.normpath(path)


def _is_copy(directory: Path, name: str, before: DirectoryIdentity | None, here: DirectoryIdentity) -> bool:
    if before is None:  # the first start was not over, or the lock file is not the one that belongs here
        return _is_away_from_home(directory, name)
    if before.lineage and before.lineage != name:
        return True
    if before.changed_ns == here.changed_ns:
        return False
    if _is_another(name, before.path, directory):
        stayed = before.directory == here.directory if before.directory else before.lock == here.lock
        return not (stayed and before.filesystem == here.filesystem != 0)
    if before.filesystem != here.filesystem or 0 != before.directory != here.directory:
        return True
    return before.lock != here.lock and before.record != here.record


def _is_away_from_home(directory: Path, name: str) -> bool:
    """True if a directory is a copy according to its record alone."""
    home = _home(directory)
    try:
        _, number, filesystem = _folder(directory)
    except OSError:
        return False  # whoever needs it will say what is wrong
    if home.directory and home.directory != number:
        return True
    if home.directory and home.filesystem and filesystem:
        return home.filesystem != filesystem
    return _is_another(name, home.path, directory)


def _is_another(name: str, path: str, directory: Path) -> bool:
    """True if there is another directory of this lineage at a path.

    What has one record is one directory, seen in two ways; unless the record has several names (``cp -al``).
    """
    elsewhere = Path(path)
    if not path or path == os.path.realpath(directory):
        return False
    try:
        if read_lineage(elsewhere) != name:
            return False
        theirs, ours = (access.lstat(each / LINEAGE_NAME) for each in (elsewhere, directory))
        if ours.st_nlink > 1 and theirs.st_ino == ours.st_ino:
            return _folder(elsewhere)[:2] != _folder(directory)[:2]
    except (OSError, ValueError, CorruptFileError, StorageError):
        return False
    return (theirs.st_ino, theirs.st_ctime_ns) != (ours.st_ino, ours.st_ctime_ns)


def _record(directory: Path, **more: str) -> bytes:
    record: dict[str, str | int] = {"format": "deeppart", "version": 1, "lineage": uuid.uuid4().hex, "created": now()}
    record |= more
    _, number, filesystem = _folder(directory)
    record |= {"home": os.path.realpath(directory), "home_directory": number, "home_filesystem": filesystem}
    return json.dumps(record, indent=1).encode() + b"\n"


def _write_over(directory: Path, **more: str) -> None:
    fill(DurableFile(directory / LINEAGE_NAME, make_parent=False, over="anything"), [_record(directory, **more)])


def _read_if_sound(directory: Path) -> str | None:
    with contextlib.suppress(CorruptFileError):  # perhaps claimed by another job; the last look tells
        return read_lineage(directory)
    return None


def _make(directory: Path, noted: str = "") -> tuple[str, str]:
    """Make a record where none can be read; the lineage in it, and what was wrong with the one that was there."""
    path, damage = directory / LINEAGE_NAME, ""
    try:
        create_file(path, _record(directory))
    except StorageError as error:
        if error.errno != errno.EEXIST:
            raise
    for _ in range(_LOOKS):  # another job may have claimed it, and be about to fill it
        if found := _read_if_sound(directory):
            return found, ""
        time.sleep(_PAUSE_S)
    try:
        found = read_lineage(directory)
    except CorruptFileError as error:
        if not stat.S_ISREG(access.lstat(path).st_mode):
            raise
        damage = error.found or error.summary
        _write_over(directory, **({"lineage": noted} if is_hex32(noted) else {}))
        found = read_lineage(directory)
    if found is None:
        raise StorageError("persistent_dir has lost its lineage record", where=str(path))
    return found, damage


def read_lineage(directory: Path) -> str | None:
    """The lineage recorded in a directory, or None where there is no record."""
    path = directory / LINEAGE_NAME
    try:
        lineage = parse_json(read_file(path, SMALL_FILE_BYTES))["lineage"]
        if not is_hex32(lineage):
            raise ValueError(f"lineage {short(lineage)}")
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptFileError(
            "the directory's lineage record cannot be read",
            found=f"{type(error).__name__}: {error}",
            where=str(path),
            todo="start a job there: it writes the record anew; committed steps stay as they are",
        ) from error
    return str(lineage)
