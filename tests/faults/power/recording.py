"""Records every change to files below a directory, in the order in which they happen.

Works on the functions of :mod:`os`, one operation at a time. Bytes that are written through a mapping are seen when
the file is synced, renamed or closed next. That nothing else was missed is checked at the end: what was recorded has to
give what lies there.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any

from deeppart.storage import exclusive

_WATCHED = ("open", "write", "pwrite", "ftruncate", "fsync", "fdatasync", "close", "rename", "link", "unlink", "mkdir")
_WATCHED_TOO = ("rmdir", "replace", "remove")
#: Functions of ``os``, and ``renameat2(2)``, which it does not have.
_PLACES: tuple[tuple[ModuleType, str], ...] = (
    *((os, name) for name in (*_WATCHED, *_WATCHED_TOO)),
    (exclusive, "rename_noreplace"),
)
_RENAMES = ("rename", "replace", "rename_noreplace")


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a directory, or one that is gone.

    Attributes:
        directory, name: below the recorded directory; "." is that itself.
        inode: of a file; 0 of a directory; None: the name is gone.
    """

    directory: str
    name: str
    inode: int | None


@dataclass(frozen=True, slots=True)
class Event:
    """One change, or one promise.

    Attributes:
        kind: "entries" (names change together), "data" (a file's bytes are these now), "sync" (and stay), "sync
            directory" (its entries stay), "told" (the job was told that a step is complete).
        entries: of "entries".
        inode, content: of "data" and "sync".
        directory: of "sync directory".
        site: where in the library a sync was asked for, and for what.
        step: of "told".
    """

    kind: str
    entries: tuple[Entry, ...] = ()
    inode: int = 0
    content: bytes = b""
    directory: str = ""
    site: str = ""
    step: int = 0


class Recorder:
    """A context manager.

    Args:
        root: an existing directory, empty but for directories.

    Attributes:
        events: so far.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.events: list[Event] = []
        self._real: dict[str, Callable[..., Any]] = {}
        self._lock = threading.RLock()
        self._inodes: dict[int, bytes] = {}
        self.first = [str(path.relative_to(self.root)) for path in sorted(self.root.rglob("*"))]

    def told(self, step: int) -> None:
        """From here on somebody counts on a step."""
        with self._lock:
            self.events.append(Event("told", step=step))

    def __enter__(self) -> Recorder:
        for module, name in _PLACES:
            self._real[name] = getattr(module, name)
            setattr(module, name, self._recorded(name, self._real[name]))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for module, name in _PLACES:
            setattr(module, name, self._real[name])

    def _recorded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        note: Callable[..., Any] = getattr(self, f"_{'rename' if name in _RENAMES else name}", self._unlink)
        by_descriptor = name in ("write", "pwrite", "ftruncate", "fsync", "fdatasync", "close")

        def recorded(*arguments: Any, **options: Any) -> Any:
            directory = options.get("dir_fd", options.get("src_dir_fd"))
            target = self._below(arguments[0], by_descriptor, directory)
            if name in (*_RENAMES, "link"):
                arguments_seen = (*arguments[:1], self._below(arguments[1], False, options.get("dst_dir_fd")))
            else:
                arguments_seen = arguments
            if target is None:
                return function(*arguments, **options)
            with self._lock:
                if name in ("fsync", "fdatasync", "close"):
                    note(target, arguments_seen)
                    return function(*arguments, **options)
                before = self._inode_of(target) if name in ("open", "unlink", "remove", *_RENAMES) else None
                result = function(*arguments, **options)
                note(target, arguments_seen, before)
                return result

        return recorded

    # --- one method for each operation; "before" is the inode that the name had ---

    def _open(self, path: str, arguments: Any, before: int | None) -> None:
        flags = arguments[1] if len(arguments) > 1 else 0
        if before is None and flags & os.O_CREAT:
            self._entries(self._entry(path, self._inode_of(path)))
        if flags & os.O_TRUNC:
            self._look(path)

    def _write(self, path: str, arguments: Any, before: int | None) -> None:
        self._look(path)

    _pwrite = _ftruncate = _write

    def _fsync(self, path: str, arguments: Any) -> None:
        whole = self.root / path
        site = _site(sys._getframe(2), whole)
        if whole.is_dir():
            self.events.append(Event("sync directory", directory=path, site=site))
        elif (inode := self._look(path)) is not None:
            self.events.append(Event("sync", inode=inode, content=self._inodes[inode], site=site))

    _fdatasync = _fsync

    def _close(self, path: str, arguments: Any) -> None:
        if (self.root / path).is_file():
            self._look(path)

    def _rename(self, path: str, arguments: Any, before: int | None) -> None:
        target = arguments[1]
        assert target is not None and before is not None
        self._look(target)
        gone, there = self._entry(path, None), self._entry(target, before)
        if gone.directory == there.directory:
            self._entries(gone, there)
        else:
            self._entries(gone)
            self._entries(there)

    def _link(self, path: str, arguments: Any, before: int | None) -> None:
        target = arguments[1]
        assert target is not None
        self._look(path)
        self._entries(self._entry(target, self._inode_of(target)))

    def _unlink(self, path: str, arguments: Any, before: int | None) -> None:
        self._entries(self._entry(path, None))

    def _mkdir(self, path: str, arguments: Any, before: int | None) -> None:
        self._entries(self._entry(path, 0))

    def _entries(self, *entries: Entry) -> None:
        self.events.append(Event("entries", entries=entries))

    def _entry(self, path: str, inode: int | None) -> Entry:
        return Entry(os.path.dirname(path) or ".", os.path.basename(path), inode)

    def _look(self, path: str) -> int | None:
        """Take down a file's bytes if they are other ones than when it was looked at last; its inode."""
        inode = self._inode_of(path)
        if inode is None:
            return None
        content = (self.root / path).read_bytes()
        if self._inodes.get(inode) != content:
            self._inodes[inode] = content
            self.events.append(Event("data", inode=inode, content=content))
        return inode

    def _inode_of(self, path: str) -> int | None:
        try:
            return os.stat(self.root / path, follow_symlinks=False).st_ino
        except OSError:
            return None

    def _below(self, target: Any, by_descriptor: bool, directory: int | None = None) -> str | None:
        try:
            if by_descriptor or isinstance(target, int):
                text = os.readlink(f"/proc/self/fd/{int(target)}")
            else:
                start = "" if directory is None else os.readlink(f"/proc/self/fd/{directory}")
                text = os.path.abspath(os.path.join(start, os.fsdecode(target)))
        except OSError:
            return None
        prefix = os.path.join(str(self.root), "")
        if text == str(self.root):
            return "."
        return text[len(prefix) :] if text.startswith(prefix) and not text.endswith(" (deleted)") else None


def _site(frame: FrameType | None, path: Path) -> str:
    """Who asks for a sync, without numbers and names of steps: ``DurableFile.commit: part``."""
    prefix, asks = "", ""
    while frame is not None and not asks:
        file = frame.f_code.co_filename
        if "/deeppart/access/" in file and not file.endswith("hanging.py"):  # which only carries it out
            prefix = "sync_directory of "
        elif "/deeppart/" in file and not file.endswith("hanging.py"):
            asks = frame.f_code.co_qualname
        frame = frame.f_back
    return f"{prefix}{asks}: {_kind(path)}"


def _kind(path: Path) -> str:
    name = path.name.lstrip(".")
    if path.is_dir():
        return "step directory" if name.startswith("step-") else "directory"
    for kind in ("part", "manifest", "base", "deeppart.json", "deeppart.lock", "probe"):
        if name.startswith(kind):
            return kind
    return "file"
