"""Storage operations in progress: the system call in which each thread of this process is, and since when.

A file system that hangs returns no error. A checkpoint's report can at least list the operations that have been in
progress for long.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Operations in progress for longer are reported; most take milliseconds.
LONG_S = 1.0


@dataclass(frozen=True, slots=True)
class Operation:
    """One system call.

    Attributes:
        name: the function of ``os``.
        path: its path.
        began: start, in seconds of the monotonic clock.
        thread: name of the thread.
    """

    name: str
    path: str
    began: float
    thread: str


# By thread. No lock: a thread only writes its own entry, and dict operations are atomic.
_under_way: dict[int, Operation] = {}
os.register_at_fork(after_in_child=_under_way.clear)


@contextmanager
def storage_operation(name: str, path: Path | str) -> Iterator[None]:
    """Record that this thread is in a storage operation within the block."""
    me = threading.get_ident()
    outer = _under_way.get(me)
    _under_way[me] = Operation(name, str(path), time.monotonic(), threading.current_thread().name)
    try:
        yield
    finally:
        if outer is None:
            del _under_way[me]
        else:
            _under_way[me] = outer


def call(name: str, path: Path | str, /, *arguments: Any, **options: Any) -> Any:
    """Call ``os.<name>(*arguments, **options)`` within a :func:`storage_operation`."""
    with storage_operation(name, path):
        return getattr(os, name)(*arguments, **options)


def hanging() -> tuple[str, ...]:
    """A line for every storage operation of this process that has been in progress for longer than :data:`LONG_S`."""
    now = time.monotonic()
    found = sorted(_under_way.copy().values(), key=lambda each: each.began)
    return tuple(
        f"{each.name} of {each.path} has not returned for {now - each.began:.1f} s ({each.thread})"
        for each in found
        if now - each.began > LONG_S
    )
