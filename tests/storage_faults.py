"""Storage that misbehaves on demand: chosen operations below a directory are refused, or hang for a while.

Works on the functions of :mod:`os`, for the whole process, for as long as the context lasts; operations elsewhere are
passed through. Reads through Python's own file objects are not seen.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from deeppart.storage import exclusive

#: Functions of ``os`` that are watched; what the first argument is.
BY_PATH = ("open", "rename", "link", "unlink", "mkdir", "rmdir", "listdir", "stat")
BY_DESCRIPTOR = ("write", "pwrite", "fsync", "fdatasync", "ftruncate", "lseek", "fstat", "preadv", "close")
#: ``renameat2(2)``, which :mod:`os` does not have.
_WATCHED: tuple[tuple[ModuleType, str], ...] = (
    *((os, name) for name in (*BY_PATH, *BY_DESCRIPTOR)),
    (exclusive, "rename_noreplace"),
)


class StorageFaults:
    """Counts the storage operations below a directory, and refuses chosen ones.

    Args:
        root: operations on files and directories below it are counted; those elsewhere, and on itself, are not.

    Attributes:
        log: (operation, path below ``root``) of every operation since the last :meth:`clear`, refused ones included.
        refused: how many of them were refused, or have hung.
    """

    def __init__(self, root: Path) -> None:
        self._root = os.path.join(os.path.realpath(root), "")
        # Garbage is collected anywhere, and lets go of descriptors: the thread that has the lock closes one.
        self._lock = threading.RLock()
        self._real: dict[str, Callable[..., Any]] = {}
        self._goes_on = threading.Event()
        self.clear()

    def clear(self) -> None:
        """Refuse nothing any more, and count from 0; what hangs goes on."""
        self._goes_on.set()
        self._goes_on = threading.Event()
        self.log: list[tuple[str, str]] = []
        self.refused = 0
        self._first, self._last, self._errno = -1, -1, 0
        self._hang_s = 0.0
        self._only: frozenset[str] = frozenset()

    def refuse(self, first: int, code: int, *, count: int | None = 1, only: tuple[str, ...] = ()) -> None:
        """Refuse ``count`` operations from number ``first`` on, counting from 0 at this call.

        Args:
            code: an errno, such as ``errno.ENOSPC``.
            count: None for all from ``first`` on.
            only: the operations to count and refuse; none given: all.
        """
        with self._lock:
            self.clear()
            self._first, self._errno = first, code
            self._last = first + count if count is not None else 1 << 62
            self._only = frozenset(only)

    def hang(self, first: int, seconds: float, *, count: int | None = 1, only: tuple[str, ...] = ()) -> None:
        """The same, but these operations are carried out, ``seconds`` late, or once :meth:`clear` is called."""
        self.refuse(first, 0, count=count, only=only)
        self._hang_s = seconds

    def __enter__(self) -> StorageFaults:
        for module, name in _WATCHED:
            self._real[name] = getattr(module, name)
            setattr(module, name, self._watched(name, self._real[name]))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for module, name in _WATCHED:
            setattr(module, name, self._real[name])

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **options: Any) -> Any:
            directory = options.get("dir_fd", options.get("src_dir_fd"))
            path = self._below_root(name, arguments[0] if arguments else ".", directory)
            hang_s, goes_on = self._hang_s, self._goes_on
            if path is None or not self._refuses(name, path):
                return function(*arguments, **options)
            if hang_s:
                goes_on.wait(hang_s)
                return function(*arguments, **options)
            if name == "close":  # as on Linux: the descriptor is gone, whatever close returns
                function(*arguments)
            raise OSError(self._errno, os.strerror(self._errno), path)

        return watched

    def _below_root(self, name: str, target: Any, directory: int | None = None) -> str | None:
        try:
            if name in BY_DESCRIPTOR or isinstance(target, int):
                text = _path_of(int(target))
            elif directory is not None:
                text = os.path.abspath(os.path.join(_path_of(directory), os.fsdecode(target)))
            else:
                text = os.path.abspath(os.fsdecode(target))
                if text.startswith("/proc/self/"):  # as a process sees it; what is asked for is where it is
                    text = os.path.realpath(text)
        except OSError:
            return None
        return text[len(self._root) :] if text.startswith(self._root) else None

    def _refuses(self, name: str, path: str) -> bool:
        with self._lock:
            if self._only and name not in self._only:
                return False
            number = len(self.log)
            self.log.append((name, path))
            chosen = self._first <= number < self._last
            self.refused += chosen
            return chosen


def _path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(" (deleted)")


#: What a full, a failing and a write-protected file system say.
TYPICAL_ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)
