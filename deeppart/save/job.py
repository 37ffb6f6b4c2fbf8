"""The records that describe one checkpoint in the pipeline of one rank.

All are immutable except :class:`Progress` and :class:`StagingLease`, which have locks, and ``Job.opened``, which the
store thread resolves once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deeppart.comm import Comm
from deeppart.errors import CheckpointError, DeeppartError
from deeppart.model import REDUNDANT_LEVELS, Attempt, Level
from deeppart.part import PartSummary
from deeppart.pending import DONE, Pending
from deeppart.save.growing_file import GrowingFile
from deeppart.state.capture import DeferredCopy, ShareLayout
from deeppart.state.document import PartDocument


@dataclass(frozen=True, slots=True)
class Staged:
    """A captured share.

    Attributes:
        layout: its spans and chunks.
        data: the raw stream, ``layout.nbytes`` bytes of staging memory.
        document: the description of the bytes; encoded when the part is written.
        deferred: remaining copies into ``data`` (``capture="lazy"``), or None.
    """

    layout: ShareLayout
    data: npt.NDArray[np.uint8]
    document: PartDocument
    deferred: DeferredCopy | None = None

    @property
    def per_rank_bytes(self) -> int:
        """How many of the bytes are per rank."""
        return sum(chunk.length for chunk in self.layout.chunks if chunk.per_rank)


class Reader(Enum):
    """A reader of staging memory."""

    CAPTURE = "capture"
    STORE = "store"
    FLUSH = "flush"


class StagingLease:
    """Tracks the readers of the share in staging memory, which is free again after the last one. Thread-safe.

    States, in this order; a lease without memory is over from the start:

    * *held*: the store and, if the persistent level is due, the flush may read it.
    * *stored*: the share is complete in a file. The store is done, and so is the flush, unless it claimed the memory.
    * *over*: nothing reads it. A claim comes too late.

    A reader for which :meth:`keep` was called is never done: the memory is never reused.
    """

    def __init__(self, memory: Staged | None, readers: Iterable[Reader]) -> None:
        self._lock = threading.Lock()
        #: Guarded by the lock, like the attributes after it.
        self._memory = memory
        self._readers = set(readers) if memory is not None else set()
        self._claimed = False
        self._when_over: Callable[[], None] = lambda: None

    @property
    def memory(self) -> Staged | None:
        """The memory to read; None once the lease is over."""
        with self._lock:
            return self._memory

    @property
    def over(self) -> bool:
        """True if the memory may be reused."""
        with self._lock:
            return not self._readers

    def when_over(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when the lease is over; at once if it is already."""
        with self._lock:
            if self._readers:
                self._when_over = callback
                return
        callback()

    def claim(self) -> Staged | None:
        """Keep the memory for the flush thread, and return it; None if the lease is over (for this thread)."""
        with self._lock:
            if Reader.FLUSH in self._readers:
                self._claimed = True
                return self._memory
            return None

    def keep(self, reader: Reader) -> None:
        """Never free the memory: an operation that cannot be stopped may still write to it."""
        with self._lock:
            if self._readers:
                self._readers.add(reader)

    def stored(self) -> None:
        """The share is complete in a file, which the flush thread reads unless it has claimed the memory."""
        self._release({Reader.STORE}, stored=True)

    def done(self, *readers: Reader) -> None:
        """These readers have finished."""
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


class Progress:
    """The levels of a checkpoint that are reported and settled. Thread-safe."""

    def __init__(self, due: Iterable[str]) -> None:
        self._lock = threading.Lock()
        self._open = set(due)  # guarded by the lock
        self._reported: set[str] = set()  # guarded by the lock
        self._complete: set[str] = set()  # guarded by the lock

    def needs(self, level: str | None = None) -> bool:
        """True if any level may still need files of the checkpoint on nodes."""
        with self._lock:
            return bool(self._open - self._complete - {level})

    def complete(self, level: str) -> None:
        """A level needs no more files; it is settled when the steps that it replaces are removed."""
        with self._lock:
            self._complete.add(level)

    def report(self, level: str) -> None:
        """This rank has begun to report its outcome to the others."""
        with self._lock:
            self._reported.add(level)

    def unreported(self, levels: Collection[str]) -> set[str]:
        """The levels whose outcomes the other ranks still wait for, without redundant ones."""
        with self._lock:
            return set(levels) - self._reported - {*REDUNDANT_LEVELS}

    def settle(self, level: str) -> bool:
        """A level has ended; returns whether it was the last one."""
        with self._lock:
            self._open.discard(level)
            return not self._open


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """The message of the store thread to the flush thread before it writes.

    Attributes:
        failure: the reason why there is no share to write, or None.
        digests: of the raw bytes of each chunk, if some chunks may be unchanged; otherwise None.
        local: the local part file, if there is one.
    """

    failure: DeeppartError | None
    digests: Sequence[bytes] | None = None
    local: GrowingFile | None = None


#: The outcome of a rank at a level: its part, the files that it has stored for other ranks, or an error.
Outcome = PartSummary | list[Path] | DeeppartError


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One checkpoint.

    Attributes:
        attempt: the attempt.
        due: the levels to which it is saved.
        pending: the caller's handle, which receives the progress.
        lease: the lease of the staging memory with the share; without memory if the capture failed.
        layout, document: of the captured share; None if the capture failed.
        failure: the reason why the capture failed, or None.
        deferred: remaining copies into staging memory, or None.
        opened: resolved by the store thread, once, before it writes.
        progress: the progress of its levels.
    """

    attempt: Attempt
    due: frozenset[str]
    pending: Pending
    lease: StagingLease
    layout: ShareLayout | None
    document: PartDocument | None
    failure: DeeppartError | None
    deferred: DeferredCopy | None
    progress: Progress
    opened: Future[Opened] = field(default_factory=Future)

    @classmethod
    def of(
        cls,
        attempt: Attempt,
        due: frozenset[str],
        pending: Pending,
        captured: Staged | DeeppartError,
    ) -> Job:
        """A checkpoint with a captured share, or with the error of the capture."""
        readers = (Reader.STORE, Reader.FLUSH) if Level.PERSISTENT in due else (Reader.STORE,)
        if isinstance(captured, DeeppartError):
            return cls(attempt, due, pending, StagingLease(None, ()), None, None, captured, None, Progress(due))
        share = captured.layout, captured.document
        return cls(
            attempt, due, pending, StagingLease(captured, readers), *share, None, captured.deferred, Progress(due)
        )

    @property
    def local(self) -> GrowingFile | None:
        """Its local part file; None until the store has opened it, or without one."""
        return self.opened.result().local if self.opened.done() else None

    @property
    def local_summary(self) -> PartSummary | None:
        """The summary of its local part, once that is complete."""
        return None if self.local is None else self.local.summary

    def description(self) -> tuple[ShareLayout, PartDocument]:
        """Layout and document of the captured share."""
        if self.layout is None or self.document is None:
            raise CheckpointError("there is no share to write")
        return self.layout, self.document

    def check_capture(self) -> None:
        """Raise if the capture has failed; called before a part gets its name."""
        error = None if self.deferred is None else self.deferred.recheck()
        if error is not None:
            raise error

    def is_on_nodes(self) -> bool:
        """True if it was saved to levels on nodes, and is complete at all of these."""
        levels = self.due - {Level.PERSISTENT}
        return bool(levels) and all(self.pending.report.levels[level].state == DONE for level in levels)


@dataclass(frozen=True, slots=True, eq=False)
class Repair:
    """Redundancy to rebuild.

    Attributes:
        attempt: the checkpoint, which is not retired meanwhile.
        what: a description for messages.
        run: rebuilds it, given a channel and a function that drives operations on it.
    """

    attempt: Attempt
    what: str
    run: Callable[[Comm, Callable[..., Any]], None]
