"""The lease of the staging memory: who may still read the share in it. The memory is free again when the last is done.

States, in this order; a lease without memory is over from the start:

* *held*: the store and, if the persistent level is due, the flush may read it.
* *stored*: the share is complete in a file. The store is done, and so is the flush, unless it has claimed the memory.
* *over*: nobody reads it. A claim comes too late.

What :meth:`StagingLease.keep` was called for is never done: the memory stays taken for good.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T")


class Reader(Enum):
    """A reader of staging memory."""

    CAPTURE = "capture"
    STORE = "store"
    FLUSH = "flush"
    HEAL = "heal"


class StagingLease(Generic[T]):
    """Thread-safe."""

    def __init__(self, memory: T | None, readers: Iterable[Reader]) -> None:
        self._lock = threading.Lock()
        #: Guarded by the lock, as is all that follows.
        self._memory = memory
        self._readers = set(readers) if memory is not None else set()
        self._claimed = False
        self._when_over: Callable[[], None] = lambda: None

    @property
    def memory(self) -> T | None:
        """The memory to read; None once the lease is over."""
        with self._lock:
            return self._memory

    @property
    def over(self) -> bool:
        """True if the memory may be used for something else."""
        with self._lock:
            return not self._readers

    def when_over(self, callback: Callable[[], None]) -> None:
        """Have something called, once, when the lease is over; at once if it is."""
        with self._lock:
            if self._readers:
                self._when_over = callback
                return
        callback()

    def claim(self) -> T | None:
        """Keep the memory for the flush thread, and return it; None if the lease is over (for this thread)."""
        with self._lock:
            if Reader.FLUSH in self._readers:
                self._claimed = True
                return self._memory
            return None

    def keep(self, reader: Reader) -> None:
        """Never give the memory back: something that cannot be stopped may still write to it."""
        with self._lock:
            if self._readers:
                self._readers.add(reader)

    def stored(self) -> None:
        """Note that the share is complete in a file, which the flush thread reads unless it has claimed the memory."""
        self._release({Reader.STORE}, stored=True)

    def done(self, *readers: Reader) -> None:
        """These read the memory no more."""
        self._release(set(readers), stored=False)

    def _release(self, readers: set[Reader], *, stored: bool) -> None:
        with self._lock:
            held = bool(self._readers)
            self._readers -= readers
            if stored and not self._claimed:
                self._readers.discard(Reader.FLUSH)
            if self._readers or not held:
                return
            self._memory = None
            callback, self._when_over = self._when_over, lambda: None
        callback()
