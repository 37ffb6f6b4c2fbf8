"""The lineage: an id that connects files on nodes with their persistent directory.

It is stored in ``deeppart.json`` with the inode number and file system of the directory. A directory where these differ
is a copy (``cp -r``, a restored backup), which gets a new lineage: two jobs must not use each other's parts on nodes.
The lock file has a second copy of the record, in case the first is lost, damaged or copied from elsewhere; and the
``ctime`` of the record, which cannot be forged, because some file systems have a different id on each node. A record
without a directory, for example one written by hand, is accepted as it is.
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
#: Advice if one of the two files is missing.
LOST_TODO = (
    "check that the file system is mounted; if someone removed the file alone, end the job and start it: committed "
    "steps stay as they are"
)
#: Limit for the size of the records of a directory.
SMALL_FILE_BYTES = 64 << 10
#: How often, and after which pause, to read a record again that another job may be about to fill.
_LOOKS, _PAUSE_S = 5, 0.02
#: Key of the record in the lock file.
NOTE = "lineage"


@dataclass(frozen=True, slots=True)
class Record:
    """A lineage and its directory.

    Attributes:
        name: the lineage, 32 hex digits.
        directory: inode number of the directory; 0 if not recorded.
        filesystem: ``f_fsid``.
        changed_ns: ``st_ctime`` of ``deeppart.json``; 0 in that file itself.
    """

    name: str
    directory: int = 0
    filesystem: int = 0
    changed_ns: int = 0

    @classmethod
    def of(cls, directory: Path, name: str) -> Record:
        """The record of a directory as it is now."""
        with access.open_folder(directory) as folder:
            return cls(name, os.fstat(folder.fd).st_ino, os.fstatvfs(folder.fd).f_fsid)

    @classmethod
    def parse(cls, document: Any) -> Record:
        """Parse a record; KeyError, TypeError or ValueError if it is invalid or its digest is wrong."""
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
        """The record for JSON; the digest is the xxh3-64 of the other values, joined by colons."""
        values = asdict(self)
        values = {"lineage": values.pop("name"), **values}
        return {**values, "digest": xxhash.xxh3_64_hexdigest(":".join(map(str, values.values())).encode())}

    def is_of(self, directory: Path) -> bool:
        """True unless the recorded directory is a different one."""
        if not self.directory:
            return True
        here = Record.of(directory, self.name)
        if self.directory != here.directory:
            return False
        return self.filesystem == here.filesystem or self.changed_ns == _changed_ns(directory)


@dataclass(frozen=True, slots=True)
class Lineage:
    """The lineage of a directory, as :func:`take_lineage` has found or made it.

    Attributes:
        record: for the lock file.
        copy_of: the lineage of the original if this directory is a copy, otherwise "".
        damage: what was wrong with the record, which was then written again; "" if nothing.
    """

    record: Record
    copy_of: str = ""
    damage: str = ""


def take_lineage(directory: Path, lock_fd: int) -> Lineage:
    """Read the directory's lineage, or make it at first use. Jobs that do so at the same time all get the same one.

    ``lock_fd`` is the open lock file, with the content that the last job has written.
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
    """True if a directory is a copy that no job has used yet, so that files on nodes belong to the original."""
    record = _read(directory)
    return record is not None and not _is_of(record, directory) and _noted_in(directory) is None


def read_lineage(directory: Path) -> str | None:
    """The lineage of a directory; None if there is no record."""
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
    except OSError:  # it does not exist, or only its owner may read it
        return None
    try:
        return _noted(directory, descriptor)
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _noted(directory: Path, lock_fd: int) -> str | None:
    """The lineage in the lock file, if it was recorded for this directory; otherwise None."""
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
        except CorruptFileError:  # another job may be about to fill it
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
