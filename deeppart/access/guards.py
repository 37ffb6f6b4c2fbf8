"""The rules that hold below the directories of a job or a command, and these directories, held open.

A directory stays open as long as its path leads to it; where the path comes to lead elsewhere (a file system was
mounted, somebody has exchanged it), all of the way is checked again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deeppart.access.descriptors import close_descriptor
from deeppart.access.path_walk import walk
from deeppart.access.rules import Rules


class Held:
    """A descriptor of a directory that was checked; whoever lets go of it last closes it."""

    def __init__(self, descriptor: int) -> None:
        self.fd = descriptor
        status = os.fstat(descriptor)
        self.identity = status.st_dev, status.st_ino

    def __del__(self) -> None:
        close_descriptor(self.fd)


_lock = threading.Lock()
#: Directory -> the rules that hold below it. Replaced as a whole, under the lock; read without it.
_guarded: dict[str, tuple[Rules, ...]] = {}
#: Those that were found sound by these rules, open. Single operations only, which the interpreter does not interrupt.
_held: dict[tuple[str, Rules], Held] = {}


def guard(directory: Path, rules: Rules) -> None:
    """From now on these rules hold in a directory and below it, for the whole process; end it with :func:`release`.

    Those of a directory further down come first. Of several for one directory, a job's come before a command's.
    """
    global _guarded
    with _lock:
        key = str(directory.absolute())
        found = (*_guarded.get(key, ()), rules)
        _guarded = {**_guarded, key: tuple(sorted(found, key=lambda each: each.reading))}


def release(directory: Path, rules: Rules) -> None:
    """Undo one :func:`guard`."""
    global _guarded
    with _lock:
        key = str(directory.absolute())
        left = list(_guarded.get(key, ()))
        if rules in left:
            left.remove(rules)
        _guarded = {name: found for name, found in {**_guarded, key: tuple(left)}.items() if found}
        if rules not in left:
            _held.pop((key, rules), None)


@contextmanager
def guarded(directory: Path, rules: Rules) -> Iterator[None]:
    """:func:`guard` for the length of a block."""
    guard(directory, rules)
    try:
        yield
    finally:
        release(directory, rules)


class Guards:
    """Directories that a job guards, until it ends."""

    def __init__(self) -> None:
        self._guarded: list[tuple[Path, Rules]] = []

    def add(self, directory: Path, rules: Rules) -> None:
        """:func:`guard`."""
        guard(directory, rules)
        self._guarded.append((directory, rules))

    def release(self) -> None:
        """:func:`release` all of them; a second call does nothing."""
        while self._guarded:
            release(*self._guarded.pop())


def rules_for(path: str) -> tuple[str, Rules] | None:
    """The nearest guarded directory at or above a path, and its rules."""
    known = _guarded
    while known:
        if path in known:
            return path, known[path][0]
        above = os.path.dirname(path)
        if above == path:
            break
        path = above
    return None


def held(root: str, rules: Rules) -> Held:
    """A guarded directory, open; the way to it is walked where that was not done yet, or leads elsewhere now."""
    known = _held.get((root, rules))
    if known is not None:
        status = os.stat(root)
        if known.identity == (status.st_dev, status.st_ino):
            return known
    found = _held[root, rules] = Held(walk(root, rules))
    return found


def forget(root: str, rules: Rules) -> None:
    """Walk all of the way the next time: what is held may be stale."""
    _held.pop((root, rules), None)
