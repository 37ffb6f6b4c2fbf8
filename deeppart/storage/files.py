"""Writes files so that a crash never leaves an incomplete one.

A file gets its name only when it is on stable storage: temporary name, write, sync, rename, sync of the directory. An
existing file of that name stays (:mod:`deeppart.storage.exclusive`), unless the caller chooses otherwise.

Large sequential writes that bypass the page cache (``O_DIRECT``) are 2-3 times faster than buffered ones on the
machines measured, and take no processor time from training (docs/benchmarks.md).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from deeppart import access
from deeppart._pages import block_memory
from deeppart.access import storage_error
from deeppart.access.hanging import call, storage_operation
from deeppart.errors import StorageError
from deeppart.mapped import bytes_in_memory, file_memory
from deeppart.storage.exclusive import rename_new
from deeppart.storage.rate import RateLimit
from deeppart.storage.spares import Recycled

#: What a new file may replace. "damaged": a file that differs in any byte.
Over = Literal["nothing", "damaged", "anything"]
#: Bytes gathered before one direct write; also the unit in which a bandwidth limit is applied.
BLOCK_BYTES = 8 << 20
#: Pieces of at least this size that are aligned in memory and in the file are written without a copy.
AS_IT_LIES_BYTES = 1 << 20
#: Alignment of direct writes: no file system in use requires more.
ALIGNMENT = 4096
#: With a bandwidth limit, a buffered file is synced each time it grows by this much: little is left for the final sync.
SYNC_EVERY_BYTES = 256 << 20
#: Errors that mean that the file system does not support O_DIRECT.
NO_DIRECT = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
#: Errors for lack of space, or of the user's quota.
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


class Appending:
    """A file to which bytes are appended.

    Args:
        path: final path of the file.
        temporary: path of the file while it is being written.
        direct: bypass the page cache if the file system supports it.
        limit: bandwidth limit, or None.

    Attributes:
        path, temporary: as given.
        nbytes: bytes written so far.
        busy_s: seconds spent on writing them, and on making them durable.

    Raises:
        StorageError: from every method, when the operating system refuses.
    """

    def __init__(self, path: Path, temporary: Path, *, direct: bool, limit: RateLimit | None) -> None:
        self.path, self.temporary = path, temporary
        self.nbytes = 0
        self.busy_s = 0.0
        self._limit = limit
        self._since_sync = 0
        self._block = block_memory(BLOCK_BYTES) if direct else None
        self._filled = 0
        self._fd, self._direct = -1, False

    def write(self, buffer: memoryview | bytes, /) -> None:
        """Append all of the buffer."""
        began = time.monotonic()
        self._append(memoryview(buffer).cast("B"))
        self.busy_s += time.monotonic() - began

    def _append(self, data: memoryview) -> None:
        memory = self._block
        if memory is None:
            self._write_out(data)
            return
        block = np.frombuffer(memory, dtype=np.uint8)  # a copy through numpy lets other threads run
        source = np.frombuffer(data, dtype=np.uint8)
        at = 0
        while at < len(source):
            count = min(len(source) - at, BLOCK_BYTES) // ALIGNMENT * ALIGNMENT
            if self._direct and count >= AS_IT_LIES_BYTES and not self._filled % ALIGNMENT and _is_aligned(source[at:]):
                if self._filled:
                    self._flush_block(memory, self._filled)
                self._write_out(data[at : at + count])
                at += count
                continue
            count = min(BLOCK_BYTES - self._filled, len(source) - at)
            block[self._filled : self._filled + count] = source[at : at + count]
            self._filled += count
            at += count
            if self._filled == BLOCK_BYTES:
                self._flush_block(memory, BLOCK_BYTES)

    def flush(self) -> None:
        """Write out the gathered bytes."""
        if self._block is not None and self._filled:
            self._flush_block(self._block, self._filled)

    def _flush_block(self, memory: memoryview, filled: int) -> None:
        """Write the block: directly up to a multiple of the alignment, the rest through the page cache."""
        aligned = filled - filled % ALIGNMENT if self._direct else filled
        view = memoryview(memory)
        try:
            self._write_out(view[:aligned])
            if aligned < filled:
                self._leave_direct()
                self._write_out(view[aligned:filled])
        finally:
            view.release()
        self._filled = 0

    def _leave_direct(self) -> None:
        fcntl.fcntl(self._fd, fcntl.F_SETFL, fcntl.fcntl(self._fd, fcntl.F_GETFL) & ~os.O_DIRECT)
        self._direct = False

    def _make_space(self) -> bool:
        """Free space after ENOSPC. Returns whether anything was freed, so that a retry makes sense."""
        return False

    def _put(self, data: memoryview) -> memoryview:
        """Store as many bytes as possible without a system call. Returns the rest."""
        return data

    def _write_out(self, data: memoryview) -> None:
        data = self._put(data)
        while data:
            piece = data[:BLOCK_BYTES]
            if self._limit is not None:
                self._limit.take(len(piece))
            try:
                written = call("write", self.temporary, self._fd, piece)
                self._start_writeback(written)
            except OSError as error:
                if self._direct and error.errno in NO_DIRECT:
                    self._leave_direct()
                    continue
                if error.errno in NO_SPACE and self._make_space():
                    continue
                raise storage_error("cannot write a checkpoint file", error, self.temporary) from error
            if self._direct and written % ALIGNMENT:
                self._leave_direct()  # a partial write: the rest is no longer aligned
            self.nbytes += written
            data = data[written:]

    def _start_writeback(self, written: int) -> None:
        self._since_sync += written
        if self._limit is not None and not self._direct and self._since_sync >= SYNC_EVERY_BYTES:
            call("fdatasync", self.temporary, self._fd)
            self._since_sync = 0


class DurableFile(Appending):
    """A file that is being written, such as a part.

    Args:
        path: final path; the file does not have it before :meth:`commit`.
        direct: bypass the page cache if the file system supports it.
        limit: bandwidth limit, or None.
        recycled: files of which one is overwritten, if there is one, because its memory or blocks need not be allocated
            again. They are freed when space runs out.
        over: the kind of file that this one may replace.
        make_parent: true to make the directory if it does not exist.
        durable: false to skip syncs.

    Attributes:
        nbytes: bytes written so far.
        busy_s: seconds spent on writing them, and on making them durable.

    Raises:
        StorageError: from every method, when the operating system refuses.
    """

    def __init__(
        self,
        path: Path,
        *,
        direct: bool = False,
        limit: RateLimit | None = None,
        recycled: Recycled | None = None,
        over: Over = "nothing",
        make_parent: bool = True,
        durable: bool = True,
    ) -> None:
        super().__init__(path, temporary_path(path), direct=direct, limit=limit)
        self._over, self._recycled, self._durable = over, recycled, durable
        self._mappable = 0
        try:
            while self._fd < 0:
                try:
                    self._begin(direct, make_parent)
                except OSError as error:
                    if error.errno not in NO_SPACE or not self._make_space():
                        raise
        except OSError as error:
            self.abort()
            raise storage_error("cannot create a checkpoint file", error, self.temporary) from error

    def _begin(self, direct: bool, make_parent: bool) -> None:
        # Not its parents: if they are missing, a file system is not mounted, and nothing may be created in its place.
        if make_parent:
            access.make_folder(self.path.parent)
        spare = None if self._recycled is None else self._recycled.take(self.temporary)
        if spare is not None:
            self._fd, self._direct = spare, False
            self._mappable = bytes_in_memory(self._fd)
        else:
            self._fd, self._direct = self._create(direct)

    def _make_space(self) -> bool:
        return self._recycled is not None and self._recycled.give_back()

    def _create(self, direct: bool) -> tuple[int, bool]:
        if direct and hasattr(os, "O_DIRECT"):
            try:
                return access.create(self.temporary, os.O_WRONLY | os.O_DIRECT), True
            except OSError as error:
                if error.errno not in NO_DIRECT:
                    raise
                with contextlib.suppress(OSError):  # the file may have been created although open failed
                    access.remove(self.temporary)
        return access.create(self.temporary, os.O_WRONLY), False

    def commit(self) -> None:
        """Make the file durable and give it its name.

        Raises:
            StorageError: the operating system refused; ``EEXIST`` if the name is taken by a file that must stay.
        """
        began = time.monotonic()
        try:
            self.flush()
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
            if self._durable:
                call("fsync", self.temporary, self._fd)
            descriptor, self._fd = self._fd, -1  # the descriptor is released even if close fails
            call("close", self.temporary, descriptor)
            with storage_operation("rename", self.path):
                was_free = self._take_name()
            if was_free:
                self.temporary = self.path  # so that abort() removes it if the name cannot be made durable
            if self._durable:
                access.sync_directory(self.path.parent)
        except OSError as error:
            self.abort()
            raise storage_error("cannot make a checkpoint file durable", error, self.path) from error
        self.busy_s += time.monotonic() - began

    def _take_name(self) -> bool:
        """Rename the file, or drop it if an equal file has the name. Returns whether the name was free.

        A file that has replaced another one is not removed after an error, since nothing would be left.
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
        """Discard what was written, and start again.

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
        """Close and remove the temporary file, ignoring errors."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1
        with contextlib.suppress(OSError):
            access.remove(self.temporary)

    def fill(self, pieces: Iterable[memoryview | bytes]) -> None:
        """Write and commit the whole content, or abort on any error."""
        try:
            for piece in pieces:
                self.write(piece)
            self.commit()
        except BaseException:
            self.abort()
            raise

    def _put(self, data: memoryview) -> memoryview:
        """Copy bytes onto the pages of a recycled file that are in memory. Returns the rest.

        This is two to three times faster than ``write`` on a tmpfs, and cannot fail for lack of space.
        """
        while data and self.nbytes < self._mappable:
            piece = data[: min(BLOCK_BYTES, self._mappable - self.nbytes)]
            pages = file_memory(self._fd, self.nbytes, len(piece))
            if pages is None:
                self._mappable = 0
                break
            if self._limit is not None:
                self._limit.take(len(piece))
            pages[:] = np.frombuffer(piece, dtype=np.uint8)  # a copy through numpy lets other threads run
            try:
                os.lseek(self._fd, self.nbytes + len(piece), os.SEEK_SET)
            except OSError as error:
                raise storage_error("cannot write a checkpoint file", error, self.temporary) from error
            self.nbytes += len(piece)
            data = data[len(piece) :]
        return data


def temporary_path(path: Path) -> Path:
    """A unique temporary name next to a path; process ids alone are not unique across hosts."""
    return path.with_name(f".{path.name}.tmp-{os.getpid()}-{os.urandom(4).hex()}")


def _are_alike(path: Path, other: Path) -> bool:
    """True if two files have equal content; False if one cannot be read."""
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


def _is_aligned(data: npt.NDArray[np.uint8]) -> bool:
    return int(data.ctypes.data) % ALIGNMENT == 0
