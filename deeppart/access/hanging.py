"""Storage operations under way: in which call of the operating system each thread of this process is, and since when.

A file system that hangs gives no error. What can be said is where: a report of a checkpoint lists the operations that
have taken long and are not over.
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

#: An operation that takes longer is worth a line; most take milliseconds.
LONG_S = 1.0


@dataclass(frozen=True, slots=True)
class Operation:
    """One call.

    Attributes:
        name: of the function of ``os``.
        path: the path on which it works.
        began: seconds of the monotonic clock.
        thread: its name.
    """

    name: str
    path: str
    began: float
    thread: str


# By thread. Only that thread writes its entry, and a dict's own operations are atomic: no lock.
_under_way: dict[int, Operation] = {}
os.register_at_fork(after_in_child=_under_way.clear)


@contextmanager
def storage_operation(name: str, path: Path | str) -> Iterator[None]:
    """Inside, this thread is in an operation on storage."""
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
    """``os.<name>(*arguments, **options)``, known to be under way on ``path`` meanwhile."""
    with storage_operation(name, path):
        return getattr(os, name)(*arguments, **options)


def hanging() -> tuple[str, ...]:
    """A line about every storage operation of this process that is under way for longer than :data:`LONG_S`."""
    now = time.monotonic()
    found = sorted(_under_way.copy().values(), key=lambda each: each.began)
    return tuple(
        f"{each.name} of {each.path} has not returned for {now - each.began:.1f} s ({each.thread})"
        for each in found
        if now - each.began > LONG_S
    )
