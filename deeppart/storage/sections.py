"""Sections of a node file while it is written: each by its own rank, into room that was set aside for it.

The lowest rank of a node creates the file, under a temporary name, and gives it its real one when all sections and the
table are durable. The other ranks open it by the temporary name, which nobody else can know or have used, and write
only where their own section lies: that they stay there is checked here, at every write.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from deeppart import access
from deeppart.access.hanging import call
from deeppart.errors import StorageError
from deeppart.part import NodeTable
from deeppart.storage.appending import NO_DIRECT, Appending
from deeppart.storage.files import DurableFile
from deeppart.storage.rate import RateLimit
from deeppart.storage.refusals import storage_error


@dataclass(frozen=True, slots=True)
class Room:
    """The place of a section in a node file that is being written.

    Attributes:
        temporary: the name of the file until it is complete.
        inode: of the file that the lowest rank has made. Device numbers of a network file system differ between hosts.
        offset: where the section begins.
        nbytes: the most that it may take.
    """

    temporary: Path
    inode: int
    offset: int
    nbytes: int


class SectionFile(Appending):
    """A section of a node file, written by the rank whose part it is."""

    def __init__(self, path: Path, room: Room, *, limit: RateLimit | None = None) -> None:
        super().__init__(path, room.temporary, direct=True, limit=limit)
        self._room = room
        try:
            self._fd, self._direct = self._open()
            self._check_file()
            self.restart()
        except OSError as error:
            self.abort()
            raise storage_error("cannot open a node file to write to", error, self.temporary) from error
        except BaseException:
            self.abort()
            raise

    def _open(self) -> tuple[int, bool]:
        if hasattr(os, "O_DIRECT"):
            try:
                return access.open_file(self.temporary, os.O_WRONLY | os.O_DIRECT), True
            except OSError as error:
                if error.errno not in NO_DIRECT:
                    raise
        return access.open_file(self.temporary, os.O_WRONLY), False

    def _check_file(self) -> None:
        found = call("fstat", self.temporary, self._fd).st_ino
        if found != self._room.inode:
            raise StorageError(
                "another file lies where the lowest rank of this node has made the node file",
                expected=f"inode {self._room.inode}",
                found=f"inode {found}",
                where=str(self.temporary),
                todo="give every rank of a node the same persistent_dir",
            )

    def write(self, buffer: memoryview | bytes, /) -> None:
        """Append all of the buffer, if there is room for it."""
        needed = self.nbytes + self._filled + memoryview(buffer).nbytes
        if needed > self._room.nbytes:
            raise StorageError(
                "a part is longer than the room that was set aside for it in a node file",
                expected=f"at most {self._room.nbytes} bytes",
                found=f"at least {needed} bytes",
                where=str(self.path),
                todo='set files = "rank", and report this: the room is meant for the longest part possible',
            )
        super().write(buffer)

    def commit(self) -> None:
        """Make the section durable, and leave the file; it gets its name when all sections are."""
        began = time.monotonic()
        try:
            self._flush()
            call("fsync", self.temporary, self._fd)
            descriptor, self._fd = self._fd, -1  # even a close that fails has given the number back
            call("close", self.temporary, descriptor)
        except OSError as error:
            self.abort()
            raise storage_error("cannot make a section of a node file durable", error, self.temporary) from error
        self.busy_s += time.monotonic() - began

    def restart(self) -> None:
        """Forget what was written and begin again. What stays in the file beyond the new end has no meaning."""
        try:
            os.lseek(self._fd, self._room.offset, os.SEEK_SET)
        except OSError as error:
            raise storage_error("cannot begin a section of a node file again", error, self.temporary) from error
        self.nbytes = self._filled = 0

    def abort(self) -> None:
        """Leave the file; who has made it removes it."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1


def complete(file: DurableFile, table: NodeTable) -> None:
    """Put the table behind the sections of a node file, make it durable and give it its name."""
    try:
        data = table.encode()
        file.skip(table.offset - file.nbytes)
        file.write(data)
        file.commit()
    except BaseException:
        file.abort()
        raise
