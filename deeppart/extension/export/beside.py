"""Writes files beside their final path, and renames them when they are complete and durable."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from deeppart import access
from deeppart.access import storage_error
from deeppart.errors import StorageError
from deeppart.save import Workers, WriteBehind
from deeppart.storage import Appending

#: Files in directories that an export makes; nothing else is ever removed with one that is replaced.
_MADE = re.compile(r"model(-[0-9]{5}-of-[0-9]{5})?\.safetensors(\.index\.json)?|\.metadata|__[0-9]+_[0-9]+\.distcp")


class Stream:
    """Takes bytes, and counts them.

    Attributes:
        nbytes: how many it has taken.
    """

    def __init__(self, behind: WriteBehind) -> None:
        self._behind, self.nbytes = behind, 0

    def write(self, buffer: memoryview | bytes, /) -> int:
        """Append all of the buffer."""
        view = memoryview(buffer).cast("B")
        self._behind.write(view)
        self.nbytes += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        """Nothing: all is written at the end."""


class _Appending(Appending):
    """An open file, by its descriptor."""

    def __init__(self, path: Path, temporary: Path, descriptor: int) -> None:
        super().__init__(path, temporary, direct=True, limit=None)
        self._fd = descriptor
        with suppress(OSError):  # a file system that has no such thing says so here, or at the first write
            fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
            self._direct = True


class BesideFile:
    """A file, which is removed when the block is left without :meth:`finish`.

    Attributes:
        out: as given.
        fd: the file, open for writing.
        path: leads to the file that was made here, whatever others call by its name meanwhile.
    """

    def __init__(self, folder: access.Folder, name: str, out: Path) -> None:
        self._folder, self._final, self.out = folder, name, out
        self._name = f".{name}.{os.urandom(8).hex()}.tmp"
        try:
            self.fd = folder.create(self._name)
        except OSError as error:
            raise storage_error("cannot write the archive", error, out) from error
        self.path = Path(f"/proc/self/fd/{self.fd}")

    @contextmanager
    def stream(self) -> Iterator[Stream]:
        """What is written to it inside goes to the device around the page cache, on another thread; to be used once."""
        workers = Workers(1, "deeppart-behind")
        try:
            appending = _Appending(self.out, self.out, self.fd)
            with WriteBehind(appending, workers) as behind:
                yield Stream(behind)
            appending.flush()
        finally:
            workers.close()

    def finish(self) -> int:
        """Make it durable and give it its name; returns its length."""
        try:
            os.fsync(self.fd)
            self._folder.rename(self._name, self._folder, self._final)
            self._folder.sync()
            return os.fstat(self.fd).st_size
        except OSError as error:
            raise storage_error("cannot make the archive durable", error, self.out) from error

    def __enter__(self) -> BesideFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            os.close(self.fd)
        if kind is not None:
            with suppress(OSError):
                self._folder.remove(self._name)


class BesideFolder:
    """A directory of files, likewise. One that it takes the place of is removed afterwards.

    Attributes:
        out: as given.
        path: leads to the directory that was made here.
    """

    def __init__(self, folder: access.Folder, name: str, out: Path) -> None:
        self._folder, self._final, self.out = folder, name, out
        self._name = f".{name}.{os.urandom(8).hex()}.tmp"
        try:
            folder.make(self._name)
            self._made = folder.enter(self._name)
        except OSError as error:
            raise storage_error("cannot write the archive", error, out) from error
        self.path = Path(f"/proc/self/fd/{self._made.fd}")

    def file(self, name: str) -> BesideFile:
        """A file in it, which gets its name there when it is complete."""
        return BesideFile(self._made, name, self.out / name)

    def finish(self) -> int:
        """Make it durable and give it its name; returns the bytes of its files."""
        try:
            self._made.sync()
            old = self._set_aside()
            self._folder.rename(self._name, self._folder, self._final)
            self._folder.sync()
            if old:
                _remove_made(self._folder, old)
            there = self._made
            return sum(there.lstat(name).st_size for name in there.names())
        except OSError as error:
            raise storage_error("cannot make the archive durable", error, self.out) from error

    def _set_aside(self) -> str:
        """Rename an existing directory of the same name, and return its new name; "" if there is none."""
        if not self._folder.has(self._final):
            return ""
        with self._folder.enter(self._final) as there:
            others = sorted(name for name in there.names() if _MADE.fullmatch(name) is None)
        if others:
            raise StorageError(
                "the directory to replace holds more than an export makes",
                errno=errno.ENOTEMPTY,
                found=", ".join(others[:4]),
                where=str(self.out),
                todo="choose another name, or move these away",
            )
        old = f"{self._name}.old"
        self._folder.rename(self._final, self._folder, old)
        return old

    def __enter__(self) -> BesideFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._made.close()
        if kind is not None:
            with suppress(OSError):
                _remove_made(self._folder, self._name)


def _remove_made(folder: access.Folder, name: str) -> None:
    """Remove a directory that an export has made."""
    with folder.enter(name) as there:
        for each in there.names():
            there.remove(each)
    folder.remove_directory(name)
