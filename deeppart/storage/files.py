"""Files of a storage level: written so that a crash never shows half of one, and read.

A file appears under its name only when all of it is on stable storage: temporary name, write, sync, rename, sync of
the directory. What has the name already stays (:mod:`deeppart.storage.exclusive`), unless the caller says otherwise.
Large sequential writes bypass the page cache where asked for and possible (:mod:`deeppart.storage.appending`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from deeppart import access
from deeppart.access.hanging import call, storage_operation
from deeppart.errors import StorageError
from deeppart.storage.appending import BLOCK_BYTES, NO_DIRECT, NO_SPACE, Appending
from deeppart.storage.exclusive import rename_new
from deeppart.storage.mapped import bytes_in_memory, file_memory
from deeppart.storage.rate import RateLimit
from deeppart.storage.refusals import storage_error
from deeppart.storage.spares import take_spare

#: What a new file may take the place of. "damaged": of a file that is not the same byte for byte.
Over = Literal["nothing", "damaged", "anything"]


def make_directory(path: Path, rules: access.Rules) -> None:
    """Create a directory and its parents, and make their entries durable; one that is there is checked."""
    try:
        access.make_directory(path, rules)
    except OSError as error:
        raise storage_error("cannot use a checkpoint directory", error, path) from error


class DurableFile(Appending):
    """A file being written, that of a part for instance.

    Args:
        path: final name. Nothing of this file is under it before :meth:`commit`.
        direct: bypass the page cache if the file system can.
        limit: bandwidth limit to obey, or None.
        spares: directory of recycled files. One of them is written over, if there is one: its memory or
            blocks need not be found and cleared again.
        over: the kind of file that this one may replace.
        make_parent: true to make the directory, if it is not there.
        make_space: gives back what can be done without where there is no space left, and says whether there was any.

    Attributes:
        nbytes: bytes written so far.
        busy_s: seconds spent on writing them, and on making them durable.

    Raises:
        StorageError: from every method, when the operating system refuses.

    Example:
        >>> from pathlib import Path
        >>> from deeppart.testing import DurableFile
        >>> file = DurableFile(Path("part").absolute())
        >>> file.write(b"all or nothing")
        >>> Path("part").exists(), file.commit(), Path("part").read_bytes()
        (False, None, b'all or nothing')
    """

    def __init__(
        self,
        path: Path,
        *,
        direct: bool = False,
        limit: RateLimit | None = None,
        spares: Path | None = None,
        over: Over = "nothing",
        make_parent: bool = True,
        make_space: Callable[[], bool] = lambda: False,
    ) -> None:
        # Process numbers of two hosts may be the same: nobody else has this name, or can open the file by it.
        temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}-{os.urandom(4).hex()}")
        super().__init__(path, temporary, direct=direct, limit=limit)
        self._over, self._make_space_by = over, make_space
        self._mappable = 0
        try:
            while self._fd < 0:
                try:
                    self._begin(direct, spares, make_parent)
                except OSError as error:
                    if error.errno not in NO_SPACE or not make_space():
                        raise
        except OSError as error:
            self.abort()
            raise storage_error("cannot create a checkpoint file", error, self.temporary) from error

    def _begin(self, direct: bool, spares: Path | None, make_parent: bool) -> None:
        # Not its parents: where those are gone, a file system is not mounted: no directory must take its place.
        if make_parent:
            access.make_folder(self.path.parent)
        spare = None if spares is None else take_spare(spares, self.temporary)
        if spare is not None:
            self._fd, self._direct = spare, False
            self._mappable = bytes_in_memory(self._fd)
        else:
            self._fd, self._direct = self._create(direct)

    def _make_space(self) -> bool:
        return self._make_space_by()

    def _create(self, direct: bool) -> tuple[int, bool]:
        if direct and hasattr(os, "O_DIRECT"):
            try:
                return access.create(self.temporary, os.O_WRONLY | os.O_DIRECT), True
            except OSError as error:
                if error.errno not in NO_DIRECT:
                    raise
                with contextlib.suppress(OSError):  # a file that cannot be opened so may have been made all the same
                    access.remove(self.temporary)
        return access.create(self.temporary, os.O_WRONLY), False

    def commit(self) -> None:
        """Make the file durable and give it its name.

        Raises:
            StorageError: the operating system refused; ``EEXIST`` if something has the name that must not be replaced.
        """
        began = time.monotonic()
        try:
            self._flush()
            found = call("fstat", self.temporary, self._fd).st_size
            if found > self.nbytes:  # a recycled file was longer
                call("ftruncate", self.temporary, self._fd, self.nbytes)
                found = call("fstat", self.temporary, self._fd).st_size
            if found != self.nbytes:
                raise StorageError(
                    "a checkpoint file did not get all that was written to it",
                    expected=f"{self.nbytes} bytes",
                    found=f"{found} bytes",
                    where=str(self.temporary),
                )
            call("fsync", self.temporary, self._fd)
            descriptor, self._fd = self._fd, -1  # even a close that fails has given the number back
            call("close", self.temporary, descriptor)
            with storage_operation("rename", self.path):
                was_free = self._take_name()
            if was_free:
                self.temporary = self.path  # if its name cannot be made durable, it must not stay under it
            access.sync_directory(self.path.parent)
        except OSError as error:
            self.abort()
            raise storage_error("cannot make a checkpoint file durable", error, self.path) from error
        self.busy_s += time.monotonic() - began

    def _take_name(self) -> bool:
        """Rename the file, unless the same bytes are under its name already; whether nothing was there.

        What took another one's place is not taken back: nothing would be left.
        """
        if self._over == "anything":
            access.rename(self.temporary, self.path)
            return False
        try:
            rename_new(self.temporary, self.path)
        except FileExistsError:
            if self._over == "nothing":
                raise
            if _are_alike(self.temporary, self.path):
                access.remove(self.temporary)
            else:
                access.rename(self.temporary, self.path)
            return False
        return True

    def restart(self) -> None:
        """Forget what was written and begin again.

        Raises:
            StorageError: the operating system refused.
        """
        try:
            os.ftruncate(self._fd, 0)
            os.lseek(self._fd, 0, os.SEEK_SET)
        except OSError as error:
            raise storage_error("cannot begin a checkpoint file again", error, self.temporary) from error
        self.nbytes = self._filled = self._mappable = 0

    def abort(self) -> None:
        """Give up: close and remove the temporary file, as far as the system lets us."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1
        with contextlib.suppress(OSError):
            access.remove(self.temporary)

    def memory(self, start: int, length: int) -> npt.NDArray[np.uint8] | None:
        """Memory to fill instead of writing: the bytes of the file from ``start``; None where it has no such.

        Only memory of a recycled file is given out. What was filled, in the order of the file, is to be told to
        :meth:`skip`.
        """
        if start + length > self._mappable or not length:
            return None
        return file_memory(self._fd, start, length)

    @property
    def inode(self) -> int:
        """Of the file, by whatever name.

        Raises:
            StorageError: the operating system refused.
        """
        try:
            return int(call("fstat", self.temporary, self._fd).st_ino)
        except OSError as error:
            raise storage_error("cannot look at a checkpoint file", error, self.temporary) from error

    def skip(self, length: int) -> None:
        """The next ``length`` bytes have been filled in by way of :meth:`memory`, or by other writers."""
        try:
            os.lseek(self._fd, self.nbytes + length, os.SEEK_SET)
        except OSError as error:
            raise storage_error("cannot write a checkpoint file", error, self.temporary) from error
        self.nbytes += length

    def _put(self, data: memoryview) -> memoryview:
        """Copy as much as lies over pages that a recycled file has in memory; returns the rest.

        Two to three times faster than ``write`` on a tmpfs, and cannot fail for lack of space: the pages are there.
        """
        while data and self.nbytes < self._mappable:
            piece = data[: min(BLOCK_BYTES, self._mappable - self.nbytes)]
            pages = self.memory(self.nbytes, len(piece))
            if pages is None:
                self._mappable = 0
                break
            if self._limit is not None:
                self._limit.take(len(piece))
            pages[:] = np.frombuffer(piece, dtype=np.uint8)  # a copy through numpy lets other threads run
            self.skip(len(piece))
            data = data[len(piece) :]
        return data


def _are_alike(path: Path, other: Path) -> bool:
    """True if two files have the same bytes; False for one that cannot be read."""
    try:
        with (
            os.fdopen(access.open_file(path), "rb") as one,
            os.fdopen(access.open_file(other), "rb") as two,
            storage_operation("read", path),
        ):
            if os.fstat(one.fileno()).st_size != os.fstat(two.fileno()).st_size:
                return False
            while piece := one.read(BLOCK_BYTES):
                if piece != two.read(len(piece)):
                    return False
    except OSError:
        return False
    return True


def fill(file: DurableFile, pieces: Iterable[memoryview | bytes]) -> None:
    """Write all of a file and give it its name; it appears complete, or not at all."""
    try:
        for piece in pieces:
            file.write(piece)
        file.commit()
    except BaseException:
        file.abort()
        raise
