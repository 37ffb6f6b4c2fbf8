"""Keeps Python's garbage collector from running while many objects live for a moment.

The documents of a state with 16,384 leaves are as many lists. Made while the collector may run, they cause a full
collection every time, of everything that torch and the training job have: 0.12 s in which no other thread runs
(docs/benchmarks.md, "Garbage collection").
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_pauses = 0
_was_enabled = False


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause garbage collection, on all threads.

    Not for code that may wait for storage or other ranks while the job trains. ``restore()`` may: the job waits.
    """
    global _pauses, _was_enabled
    with _lock:
        if _pauses == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses = max(0, _pauses - 1)  # not in a process that was forked meanwhile
            if _pauses == 0 and _was_enabled:
                gc.enable()


def _after_fork() -> None:
    """Reset in a forked child: another thread of the parent may have held the lock, or have paused the collector."""
    global _lock, _pauses
    _lock = threading.Lock()
    if _pauses and _was_enabled:
        gc.enable()
    _pauses = 0


os.register_at_fork(after_in_child=_after_fork)
