"""Files and directories that are written under temporary names, and renamed once they are durable."""

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

#: Files that an export writes to a directory. A directory with other files is never replaced.
_EXPORTED = re.compile(r"model(-[0-9]{5}-of-[0-9]{5})?\.safetensors(\.index\.json)?|\.metadata|__[0-9]+_[0-9]+\.distcp")


class Stream:
    """A writable stream.

    Attributes:
        nbytes: number of bytes written so far.
    """

    def __init__(self, behind: WriteBehind) -> None:
        self._behind, self.nbytes = behind, 0

    def write(self, buffer: memoryview | bytes, /) -> int:
        """Append the buffer."""
        view = memoryview(buffer).cast("B")
        self._behind.write(view)
        self.nbytes += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        """Nothing: data are written at the end of :meth:`OutputFile.stream`."""


class _Appending(Appending):
    """Appends to an open descriptor, with O_DIRECT where supported."""

    def __init__(self, path: Path, temporary: Path, descriptor: int) -> None:
        super().__init__(path, temporary, direct=True, limit=None)
        self._fd = descriptor
        with suppress(OSError):  # file systems without O_DIRECT fail here, or at the first write
            fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
            self._direct = True


class OutputFile:
    """A file with a temporary name. A context manager: it is removed after an error.

    Attributes:
        out: the final path, for messages.
        fd: the file descriptor.
        path: a path through the descriptor, which nobody can redirect.
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
        """A stream that another thread writes with direct I/O; can be used once."""
        workers = Workers(1, "deeppart-behind")
        try:
            appending = _Appending(self.out, self.out, self.fd)
            with WriteBehind(appending, workers) as behind:
                yield Stream(behind)
            appending.flush()
        finally:
            workers.close()

    def finish(self) -> tuple[int, int]:
        """Make the file durable and rename it; returns 1, and its size."""
        try:
            os.fsync(self.fd)
            self._folder.rename(self._name, self._folder, self._final)
            self._folder.sync()
            return 1, os.fstat(self.fd).st_size
        except OSError as error:
            raise storage_error("cannot make the archive durable", error, self.out) from error

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            os.close(self.fd)
        if kind is not None:
            with suppress(OSError):
                self._folder.remove(self._name)


class OutputFolder:
    """A directory with a temporary name, like :class:`OutputFile`. It may replace an earlier export.

    Attributes:
        out: the final path, for messages.
        path: a path through the descriptor.
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

    def file(self, name: str) -> OutputFile:
        """A file in the directory."""
        return OutputFile(self._made, name, self.out / name)

    def finish(self) -> tuple[int, int]:
        """Make the directory durable and rename it; returns the number of its files, and their total size."""
        try:
            self._made.sync()
            old = self._set_aside()
            self._folder.rename(self._name, self._folder, self._final)
            self._folder.sync()
            if old:
                _remove_made(self._folder, old)
            sizes = [self._made.lstat(name).st_size for name in self._made.names()]
            return len(sizes), sum(sizes)
        except OSError as error:
            raise storage_error("cannot make the archive durable", error, self.out) from error

    def _set_aside(self) -> str:
        """Rename an existing directory with the final name; returns its new name, or "" if there is none."""
        if not self._folder.has(self._final):
            return ""
        with self._folder.enter(self._final) as existing:
            others = sorted(name for name in existing.names() if _EXPORTED.fullmatch(name) is None)
        if others:
            raise StorageError(
                "the directory to replace contains more than an export makes",
                errno=errno.ENOTEMPTY,
                found=", ".join(others[:4]),
                where=str(self.out),
                todo="choose another name, or move these files away",
            )
        old = f"{self._name}.old"
        self._folder.rename(self._final, self._folder, old)
        return old

    def __enter__(self) -> OutputFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._made.close()
        if kind is not None:
            with suppress(OSError):
                _remove_made(self._folder, self._name)


def _remove_made(folder: access.Folder, name: str) -> None:
    """Remove the directory of an export."""
    with folder.enter(name) as removed:
        for each in removed.names():
            removed.remove(each)
    folder.remove_directory(name)
