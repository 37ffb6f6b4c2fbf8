"""The protocol of a communicator, as deeppart uses it, and of an operation.

Every operation is a generator that yields until it has finished and returns its result, so that one thread can run
several at once; :mod:`deeppart.comm.waiting` drives them to their end.

Invariants
----------
* A channel is used by one thread at a time; background threads use channels of their own.
* No wait is unbounded: :func:`deeppart.comm.waiting.finish` takes a timeout, and its error names the missing ranks.
* After a timeout a channel is broken and raises at once: its collectives can no longer be matched between ranks. It
  stays broken; the next session of the process has new ones.
* A rank that abandons a channel notifies the others, whose waits on it end within
  :data:`deeppart.comm.waiting.PATIENCE_MOST_S`.
* Traffic of different channels never mixes, and never mixes with the caller's own communicator.

This module imports neither mpi4py nor torch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from deeppart.errors import CommError, PeerTimeoutError

T = TypeVar("T")
#: A running operation: advance it with ``next``; its result is the generator's return value. One with several steps may
#: yield True when it has made progress: the timeout for other ranks then starts again.
Operation = Generator[bool, None, T]
Int64s = npt.NDArray[np.int64]

#: In the heartbeat of a rank that has abandoned a channel, in place of the number of its operation: because of an error
#: there; because its wait for others has timed out.
ABANDONED = 1 << 62
GAVE_UP = ABANDONED - 1


class Comm(Protocol):
    """One channel between the ranks of a job; rank 0 is the root of every gather.

    Attributes:
        rank, size: this rank and the number of ranks.
        broken: the error that made the channel unusable, or None.
    """

    rank: int
    size: int
    broken: CommError | None

    def channel(self) -> Operation[Comm]:
        """A new independent channel between the same ranks (collective)."""

    def maximum(self, values: Int64s) -> Operation[Int64s]:
        """Element-wise maximum over all ranks; every rank passes the same number of values."""

    def allgather(self, data: bytes) -> Operation[list[bytes]]:
        """The data of all ranks, in rank order, on every rank."""

    def gather(self, data: bytes) -> Operation[list[bytes] | None]:
        """The data of all ranks, in rank order, on rank 0; None elsewhere."""

    def broadcast(self, data: bytes | None, root: int = 0) -> Operation[bytes]:
        """The root's data on every rank."""

    def send(self, buffer: npt.NDArray[np.uint8], to: int, tag: int) -> Operation[None]:
        """Send bytes to one rank. The transfer starts at the call; the buffer must not change until it ends."""

    def receive_into(self, buffer: npt.NDArray[np.uint8], source: int, tag: int) -> Operation[None]:
        """Fill the buffer from one rank. The transfer starts at the call."""

    def release(self) -> None:
        """Return the channel: the next session may reuse it once no rank uses it."""

    def heartbeat(self) -> None:
        """Tell the other ranks that this one waits in the channel's current operation."""

    def present(self) -> set[int]:
        """Ranks known to wait in the channel's current operation (this one included)."""

    def abandon(self, error: CommError) -> None:
        """Stop using the channel because of an error on this rank; the other ranks are notified."""

    def abandoned_by(self) -> set[int]:
        """Other ranks known to have abandoned the channel, because of an error there."""

    def given_up_by(self) -> set[int]:
        """Other ranks known to have abandoned the channel after a timeout (they count as present)."""


def abandoned_value(error: CommError) -> int:
    """The heartbeat value of a rank that abandons a channel because of an error."""
    return GAVE_UP if isinstance(error, PeerTimeoutError) else ABANDONED


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
    """Run several operations concurrently until all have finished."""
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
    """An operation that has finished already."""
    yield from ()  # makes this a generator
    return value
