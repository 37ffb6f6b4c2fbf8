"""One checkpoint in the pipeline of one rank, and what its stages hand to each other.

Nothing here changes once it is made, but for :class:`Progress` and :class:`StagingLease`, which have locks, and
``Job.opened``, which the store resolves once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from deeppart.comm import Comm
from deeppart.errors import CheckpointError, DeeppartError
from deeppart.model import REDUNDANT_LEVELS, Attempt, Level
from deeppart.part import PartSummary
from deeppart.pending import DONE, Pending
from deeppart.save.encoding import Encoding
from deeppart.save.growing_file import GrowingFile
from deeppart.state.capture import DeferredCopy, ShareLayout
from deeppart.state.document import PartDocument
from deeppart.storage import DurableFile

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Staged:
    """A captured share.

    Attributes:
        layout: its spans and chunks.
        data: the raw stream, ``layout.nbytes`` bytes of staging memory.
        document: the description of the bytes; encoded when the part is written.
        deferred: copies into ``data`` that are still to be made (``capture="lazy"``), or None.
    """

    layout: ShareLayout
    data: npt.NDArray[np.uint8]
    document: PartDocument
    deferred: DeferredCopy | None = None

    @property
    def per_rank_bytes(self) -> int:
        """How many of the bytes are this rank's own."""
        return sum(chunk.length for chunk in self.layout.chunks if chunk.per_rank)


class Reader(Enum):
    """A reader of staging memory."""

    CAPTURE = "capture"
    STORE = "store"
    FLUSH = "flush"
    HEAL = "heal"


class StagingLease(Generic[T]):
    """Who may still read the share in staging memory, which is free again when the last one is done. Thread-safe.

    States, in this order; a lease without memory is over from the start:

    * *held*: the store and, if the persistent level is due, the flush may read it.
    * *stored*: the share is complete in a file. The store is done, and so is the flush, unless it claimed the memory.
    * *over*: nothing reads it. A claim comes too late.

    What :meth:`keep` was called for is never done: the memory stays taken for good.
    """

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
        """A level needs no more files; it is settled when what it replaces is gone."""
        with self._lock:
            self._complete.add(level)

    def report(self, level: str) -> None:
        """This rank has begun to tell the others how it went."""
        with self._lock:
            self._reported.add(level)

    def unreported(self, levels: Collection[str]) -> set[str]:
        """Those of which the other ranks wait to hear; redundant ones are not among them."""
        with self._lock:
            return set(levels) - self._reported - {*REDUNDANT_LEVELS}

    def settle(self, level: str) -> bool:
        """A level is over; returns whether it was the last."""
        with self._lock:
            self._open.discard(level)
            return not self._open


@dataclass(frozen=True, slots=True, eq=False)
class LocalPart:
    """The local part file of a checkpoint, while it is written and after; the flush thread follows it.

    Attributes:
        file: being written.
        growing: the file that is written and read back.
        encoding: how it is encoded.
        digests: of the raw bytes of each chunk; None if not known.
    """

    file: DurableFile
    growing: GrowingFile
    encoding: Encoding
    digests: Sequence[bytes] | None


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """The message of the store thread to the flush thread before it writes.

    Attributes:
        failure: the reason why there is no share to write, or None.
        digests: of the raw bytes of each chunk, where some of them may be unchanged; None if nothing is known.
        local: the local part file; None without one.
    """

    failure: DeeppartError | None
    digests: Sequence[bytes] | None = None
    local: LocalPart | None = None


#: What a rank has done at a level: its part, the files that it has stored for others, or why not.
Outcome = PartSummary | list[Path] | DeeppartError


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One checkpoint.

    Attributes:
        attempt: which checkpoint.
        due: levels it goes to.
        pending: the handle that gets the reports of progress.
        lease: of the staging memory, with the share in it; without one if it could not be captured.
        layout, document: of the captured share; None if it could not be captured.
        failure: the reason why the share could not be captured, or None.
        deferred: copies into staging memory that are still to be made, or None.
        opened: resolved by the store, once, before it writes.
        progress: of its levels.
    """

    attempt: Attempt
    due: frozenset[str]
    pending: Pending
    lease: StagingLease[Staged]
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
        """A checkpoint that has been captured, or could not be."""
        readers = (Reader.STORE, Reader.FLUSH) if Level.PERSISTENT in due else (Reader.STORE,)
        if isinstance(captured, DeeppartError):
            return cls(attempt, due, pending, StagingLease(None, ()), None, None, captured, None, Progress(due))
        share = captured.layout, captured.document
        return cls(
            attempt, due, pending, StagingLease(captured, readers), *share, None, captured.deferred, Progress(due)
        )

    @property
    def local(self) -> LocalPart | None:
        """Its local part file, as far as the store has come."""
        return self.opened.result().local if self.opened.done() else None

    @property
    def local_summary(self) -> PartSummary | None:
        """Of its local part, once that is complete."""
        return None if self.local is None else self.local.growing.summary

    def description(self) -> tuple[ShareLayout, PartDocument]:
        """Layout and document of the captured share."""
        if self.layout is None or self.document is None:
            raise CheckpointError("there is no share to write")
        return self.layout, self.document

    def check_capture(self) -> None:
        """Before a part gets its name."""
        error = None if self.deferred is None else self.deferred.look_again()
        if error is not None:
            raise error

    def is_on_nodes(self) -> bool:
        """True if it went to nodes' storage, and is complete at all levels there to which it went."""
        levels = self.due - {Level.PERSISTENT}
        return bool(levels) and all(self.pending.report.levels[level].state == DONE for level in levels)


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """The message of the capture to the store thread: a complete share in staging memory, or the reason why there is
    none.
    """

    job: Job
    failure: DeeppartError | None


@dataclass(frozen=True, slots=True, eq=False)
class Repair:
    """Redundancy to rebuild.

    Attributes:
        attempt: whose; it is not retired meanwhile.
        what: for messages.
        run: does it: given a channel, what drives operations on it, and what gives the staging memory back.
        lease: of the staging memory, where it begins with parts that lie there.
    """

    attempt: Attempt
    what: str
    run: Callable[[Comm, Callable[..., Any], Callable[[], None]], None]
    lease: StagingLease[Any]
