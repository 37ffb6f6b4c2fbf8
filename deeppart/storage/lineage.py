"""The lineage: the name by which what lies on nodes is known to belong to a persistent directory.

It stands in ``deeppart.json``, with the inode number and the file system of the directory it was made for. A directory
with others is a copy (``cp -r``, a backup that was restored), which gets a lineage of its own: two jobs must not take
each other's parts on nodes. The lock file notes the same, for a record that is lost, damaged or was copied over; and
when the record last changed, which nobody can set, because some file systems say something else of themselves on each
node. A record that names no directory, as somebody may have written it, is taken as it is.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import xxhash

from deeppart import access
from deeppart._times import now
from deeppart.access import storage_error
from deeppart.errors import CorruptFileError, MissingError, StorageError, short
from deeppart.part import is_hex32, parse_json
from deeppart.storage.posix import PosixStore

LINEAGE_NAME = "deeppart.json"
LOCK_NAME = ".deeppart.lock"
#: The advice where one of the two is not there.
LOST_TODO = (
    "check that the file system is mounted; if someone removed the file alone, end the job and start it: committed "
    "steps stay as they are"
)
#: Most that is read of the records of a directory.
SMALL_FILE_BYTES = 64 << 10
#: A record that another job has claimed and is about to fill is looked at so often, with so long in between.
_LOOKS, _PAUSE_S = 5, 0.02
#: Key of the note in the lock file.
NOTE = "lineage"


@dataclass(frozen=True, slots=True)
class Record:
    """A lineage, and the directory that has it.

    Attributes:
        name: 32 hex digits.
        directory: inode number; 0 if none is recorded.
        filesystem: ``f_fsid``.
        changed_ns: ``st_ctime`` of ``deeppart.json``; 0 in that file itself.
    """

    name: str
    directory: int = 0
    filesystem: int = 0
    changed_ns: int = 0

    @classmethod
    def of(cls, directory: Path, name: str) -> Record:
        """That of a directory as it is now."""
        with access.open_folder(directory) as folder:
            return cls(name, os.fstat(folder.fd).st_ino, os.fstatvfs(folder.fd).f_fsid)

    @classmethod
    def parse(cls, document: Any) -> Record:
        """Raises KeyError, TypeError or ValueError if it is not one, or has changed."""
        name, directory = document["lineage"], document.get("directory", 0)
        if not is_hex32(name):
            raise ValueError(f"lineage {short(name)}")
        if directory == 0:
            return cls(name)
        found = cls(name, directory, document["filesystem"], document["changed_ns"])
        if document["digest"] != found.document()["digest"]:
            raise ValueError("the digest does not hold")
        return found

    def document(self) -> dict[str, Any]:
        """For JSON; the digest is the xxh3-64 of the other values, joined by colons."""
        values = asdict(self)
        values = {"lineage": values.pop("name"), **values}
        return {**values, "digest": xxhash.xxh3_64_hexdigest(":".join(map(str, values.values())).encode())}

    def is_of(self, directory: Path) -> bool:
        """True unless a directory is another one than that which was recorded."""
        if not self.directory:
            return True
        here = Record.of(directory, self.name)
        if self.directory != here.directory:
            return False
        return self.filesystem == here.filesystem or self.changed_ns == _changed_ns(directory)


@dataclass(frozen=True, slots=True)
class Lineage:
    """The name of a directory.

    Attributes:
        record: for the lock file.
        copy_of: the lineage of the directory of which this one is a copy; "" if it is none.
        damage: what was wrong with the record, which has been written anew; "" if nothing was.
    """

    record: Record
    copy_of: str = ""
    damage: str = ""


def take_lineage(directory: Path, lock_fd: int) -> Lineage:
    """The directory's lineage, made on first use; of several jobs that make it at once, all get that of one of them.

    ``lock_fd`` is the open lock file, with what the last job has written there.
    """
    noted, damage = _noted(directory, lock_fd), ""
    try:
        found = _read_or_make(directory, noted)
    except CorruptFileError as error:
        if not stat.S_ISREG(access.lstat(directory / LINEAGE_NAME).st_mode):
            raise
        found, damage = None, error.found or error.summary
    copied = found is not None and not found.is_of(directory)
    name = noted or (found.name if found is not None and not copied else uuid.uuid4().hex)
    here = Record.of(directory, name)
    if found != here:
        copy_of = {"copy_of": found.name} if found is not None and copied else {}
        PosixStore(directory).replace(LINEAGE_NAME, _encoded(here, copy_of))
    original = found.name if found is not None and name != found.name else ""
    return Lineage(replace(here, changed_ns=_changed_ns(directory)), original, damage)


def is_copy(directory: Path) -> bool:
    """True if a directory is a copy that no job has used yet: what lies on nodes is the original's."""
    record = _read(directory)
    return record is not None and not _is_of(record, directory) and _noted_in(directory) is None


def read_lineage(directory: Path) -> str | None:
    """The lineage of a directory, or None where there is no record."""
    record = _read(directory)
    if record is None:
        return None
    return record.name if _is_of(record, directory) else _noted_in(directory) or record.name


def _is_of(record: Record, directory: Path) -> bool:
    try:
        return record.is_of(directory)
    except OSError as error:
        raise storage_error("cannot look at a checkpoint directory", error, directory) from error


def _changed_ns(directory: Path) -> int:
    return access.lstat(directory / LINEAGE_NAME).st_ctime_ns


def _noted_in(directory: Path) -> str | None:
    try:
        descriptor = access.open_file(directory / LOCK_NAME)
    except OSError:  # there is none, or it is for its owner alone
        return None
    try:
        return _noted(directory, descriptor)
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _noted(directory: Path, lock_fd: int) -> str | None:
    """The lineage that the last job in this directory has noted; None if it is not known."""
    try:
        record = Record.parse(parse_json(os.pread(lock_fd, SMALL_FILE_BYTES, 0))[NOTE])
        return record.name if record.directory and record.is_of(directory) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _encoded(record: Record, more: dict[str, str]) -> bytes:
    document = {"format": "deeppart", "version": 2, "created": now(), **more, **record.document()}
    return json.dumps(document, indent=1).encode() + b"\n"


def _read_or_make(directory: Path, noted: str | None) -> Record:
    for look in range(_LOOKS):
        try:
            if (found := _read(directory)) is not None:
                return found
            made = _encoded(Record.of(directory, noted or uuid.uuid4().hex), {})
            PosixStore(directory).put_new(LINEAGE_NAME, made)
            continue
        except CorruptFileError:  # perhaps claimed by another job, which is about to fill it
            if look == _LOOKS - 1:
                raise
        except StorageError as error:
            if error.errno != errno.EEXIST:
                raise
        time.sleep(_PAUSE_S)
    raise StorageError("persistent_dir has lost its lineage record", where=str(directory / LINEAGE_NAME))


def _read(directory: Path) -> Record | None:
    try:
        return Record.parse(parse_json(PosixStore(directory).get(LINEAGE_NAME, SMALL_FILE_BYTES)))
    except MissingError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFileError(
            "the directory's lineage record cannot be read",
            found=f"{type(error).__name__}: {error}",
            where=str(directory / LINEAGE_NAME),
            todo="start a job there: it writes the record anew; committed steps stay as they are",
        ) from error
