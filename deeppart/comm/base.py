"""The protocol of a communicator, as deeppart uses it, and of an operation.

Every operation is a generator that yields while it is not finished and returns its result: the same code can be
driven to its end by a thread (:mod:`deeppart.comm.waiting`) or advanced a little at a time from calls of the training
thread, which is what MPI libraries without ``MPI_THREAD_MULTIPLE`` need.

Invariants
----------
* No wait is unbounded: :class:`RunningOperation` takes a timeout and ends in an error that names the ranks waited for.
* After a timeout a channel is broken and says so at once: its collectives can no longer be matched between ranks.
* A rank that abandons a channel notifies the others, whose waits there end within :data:`PATIENCE_MOST_S`.
* Traffic of different channels never mixes, and never mixes with the caller's own communicator.

This module imports neither mpi4py nor torch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from deeppart.errors import CommError, PeerTimeoutError

T = TypeVar("T")
#: An operation under way: advance it with ``next``; its result is the generator's return value. One that takes several
#: steps may yield True when it has come further: the time to wait for other ranks then counts from there.
Operation = Generator[bool, None, T]
Int64s = npt.NDArray[np.int64]

#: After this share of the timeout a waiting rank tells the others that it waits, so that an error can name the rest.
PATIENCE_SHARE = 0.25
PATIENCE_MOST_S = 2.0
#: What a rank that has abandoned a channel announces instead of the number of its operation.
ABANDONED = 1 << 62


class Comm(Protocol):
    """One channel between the ranks of a job; rank 0 is the root of every gather.

    Attributes:
        rank, size: this rank and the number of ranks.
        threads: true if a background thread may use a channel of its own while the training thread uses another.
        broken: the error that made the channel unusable, or None.
    """

    rank: int
    size: int
    threads: bool
    broken: CommError | None

    def channel(self) -> Operation[Comm]:
        """A new independent channel between the same ranks (collective)."""

    def maximum(self, values: Int64s) -> Operation[Int64s]:
        """Element-wise maximum over all ranks; every rank passes the same number of values."""

    def allgather(self, data: bytes) -> Operation[list[bytes]]:
        """Everyone's data, in rank order, on every rank."""

    def gather(self, data: bytes) -> Operation[list[bytes] | None]:
        """Everyone's data, in rank order, on rank 0; None elsewhere."""

    def broadcast(self, data: bytes | None, root: int = 0) -> Operation[bytes]:
        """The root's data on every rank."""

    def send(self, buffer: npt.NDArray[np.uint8], to: int, tag: int) -> Operation[None]:
        """Send bytes to one rank. The transfer starts at the call; the buffer must stay until it ends."""

    def receive_into(self, buffer: npt.NDArray[np.uint8], source: int, tag: int) -> Operation[None]:
        """Fill the buffer from one rank. The transfer starts at the call."""

    def give_back(self) -> None:
        """This rank needs the channel no more; the next session may have it once the others do not either."""

    def announce(self) -> None:
        """Tell the other ranks that this one waits in the channel's current operation."""

    def heard(self) -> set[int]:
        """Ranks known to wait in the channel's current operation (this one included)."""

    def abandon(self, error: CommError) -> None:
        """Take no further part in the channel, because of an error on this rank alone; the other ranks are notified."""

    def abandoned_by(self) -> set[int]:
        """Other ranks known to have abandoned the channel."""


class RunningOperation(Generic[T]):
    """An operation on its way to its end, one look after another.

    Attributes:
        result: the result of the operation, once :meth:`advance` has said that it is finished.
        moved: true if the last :meth:`advance` got further.
    """

    result: T
    moved: bool

    def __init__(self, comm: Comm, operation: Operation[T], what: str, timeout: float) -> None:
        self._comm, self._operation, self._what, self._timeout = comm, operation, what, timeout
        self._patience = min(PATIENCE_MOST_S, PATIENCE_SHARE * timeout)
        self._announced = False
        self.moved = False

    def advance(self, waited_s: float) -> bool:
        """Go on as far as possible without waiting; True when finished."""
        if self._comm.broken is not None:
            raise CommError(
                f"{self._what}: this job's ranks can no longer communicate with each other",
                found=self._comm.broken.summary,
                todo="end the job and start it again; committed checkpoints are not affected",
            )
        try:
            self.moved = next(self._operation)
        except StopIteration as stop:
            self.result = stop.value
            return True
        if self.moved:
            self._announced = False
            return False
        if waited_s > self._patience:
            if not self._announced:
                self._announced = True
                self._comm.announce()
            if ranks := self._comm.abandoned_by():
                raise _abandoned(self._comm, self._what, ranks)
        if waited_s > self._timeout:
            raise _timed_out(self._comm, self._what, waited_s)
        return False


def _abandoned(comm: Comm, what: str, ranks: set[int]) -> CommError:
    comm.broken = CommError(
        f"{what}: {rank_names(ranks)} cannot take part any more",
        found="an error there, after which the ranks' exchanges would not match",
        where=f"rank {comm.rank}",
        todo=f"look at what {rank_names(ranks)} reports; committed checkpoints are not affected",
    )
    return comm.broken


def _timed_out(comm: Comm, what: str, waited_s: float) -> PeerTimeoutError:
    missing = sorted(set(range(comm.size)) - comm.heard())
    names = rank_names(missing) if missing else "a rank that arrived and did not finish"
    error = PeerTimeoutError(
        f"{what}: waited {waited_s:.1f} s for {names}",
        expected=f"all {comm.size} ranks to take part within the configured timeout",
        found=f"{len(missing)} ranks were not heard of" if missing else "all arrived",
        where=f"rank {comm.rank}",
        todo="look for a rank that died, is stuck or did not make this call; raise `timeout` if it was only slow",
    )
    comm.broken = error
    return error


def rank_names(ranks: Iterable[int]) -> str:
    """Readable list of ranks, runs folded: ``ranks 0-3 and 7``."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    if not texts:
        return "no rank"
    noun = "rank" if len(runs) == 1 and runs[0][0] == runs[0][1] else "ranks"
    return f"{noun} " + (texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " and " + texts[-1])


def interleaved(operations: Iterable[Operation[Any]]) -> Operation[None]:
    """Advance several operations side by side until all are finished."""
    rest = list(operations)
    while rest:
        moved = False
        for operation in list(rest):
            try:
                moved = next(operation) or moved
            except StopIteration:
                rest.remove(operation)
                moved = True
        if rest:
            yield moved


def immediately(value: T) -> Operation[T]:
    """An operation that is finished already."""
    yield from ()  # makes this a generator
    return value
