"""The communicator: a channel of a session, over its :class:`Transport`.

Invariants
----------
* A channel is used by one thread at a time; background threads use channels of their own.
* No wait is unbounded: :func:`deeppart.comm.waiting.finish` takes a timeout, and its error names the missing ranks.
* After a timeout a channel is broken and raises at once: its collectives can no longer be matched between ranks. It
  stays broken; the next session of the process has new ones.
* A rank that abandons a channel notifies the others, whose waits on it end within
  :data:`deeppart.comm.waiting.PATIENCE_MOST_S`.
* Traffic of different channels never mixes, and never mixes with the caller's own communicator.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from deeppart.comm import trees
from deeppart.comm.base import Int64s, Operation
from deeppart.comm.messages import Bytes
from deeppart.comm.transport import Transport
from deeppart.errors import CommError, PeerTimeoutError

#: In the heartbeat of a rank that has abandoned a channel, in place of the number of its operation: because of an error
#: there; because its wait for others has timed out.
_ABANDONED = 1 << 62
_GAVE_UP = _ABANDONED - 1


class Comm:
    """One channel between the ranks of a job; rank 0 is the root of every gather.

    Ranks make the channels of a session in the same order.

    Attributes:
        rank, size: this rank and the number of ranks.
        broken: the error that made the channel unusable, or None.
    """

    def __init__(self, transport: Transport) -> None:
        self.rank, self.size = transport.rank, transport.size
        self._transport, self._number = transport, transport.add_channel()
        self._lock = threading.Lock()  # guards the counts
        self._operations = 0
        self._sent, self._received = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
        self.broken: CommError | None = None

    def channel(self) -> Operation[Comm]:
        """A new independent channel between the same ranks (collective)."""
        yield from self.allgather(b"")  # all ranks have called it
        return Comm(self._transport)

    def maximum(self, values: Int64s) -> Operation[Int64s]:
        """Element-wise maximum over all ranks; every rank passes the same number of values."""
        return (yield from trees.maximum(self._collective(), values))

    def allgather(self, data: bytes) -> Operation[list[bytes]]:
        """The data of all ranks, in rank order, on every rank. Empty data cost nothing."""
        return (yield from trees.allgather(self._collective(), data))

    def exchange(self, data: Sequence[bytes]) -> Operation[list[bytes]]:
        """Data for every rank, in rank order; returns what each has for this one. Empty data cost nothing."""
        return (yield from trees.exchange(self._collective(), data))

    def gather(self, data: bytes) -> Operation[list[bytes] | None]:
        """The data of all ranks, in rank order, on rank 0; None elsewhere."""
        return (yield from trees.gather(self._collective(), data))

    def broadcast(self, data: bytes | None, root: int = 0) -> Operation[bytes]:
        """The root's data on every rank."""
        return (yield from trees.broadcast(self._collective(), data, root))

    def send(self, buffer: Bytes, to: int, tag: int) -> Operation[None]:
        """Send bytes to one rank. The transfer starts at the call; the buffer must not change until it ends."""
        with self._lock:
            self._sent[to, tag] += 1
            number = self._sent[to, tag]
        return _nothing(self._transport.send(to, (self._number, tag, number), buffer))

    def receive(self, source: int, tag: int) -> Operation[Bytes]:
        """Bytes from one rank, however many it sends. The transfer starts at the call."""
        return self._receive(source, tag, None)

    def receive_into(self, buffer: Bytes, source: int, tag: int) -> Operation[None]:
        """Fill the buffer from one rank. The transfer starts at the call."""
        return _nothing(self._receive(source, tag, buffer))

    def _receive(self, source: int, tag: int, buffer: Bytes | None) -> Operation[Bytes]:
        with self._lock:
            self._received[source, tag] += 1
            number = self._received[source, tag]
        return self._transport.receive(source, (self._number, tag, number), buffer)

    def release(self) -> None:
        """Return the channel. With the last one of a session, the session ends on this rank."""
        self._transport.release_channel(self._number)

    def heartbeat(self) -> None:
        """Tell the other ranks that this one waits in the channel's current operation."""
        self._transport.heartbeat(self._number, self._operations)

    def present(self) -> set[int]:
        """Ranks known to wait in the channel's current operation (this one included)."""
        row = self._transport.presence(self._number)
        return _ranks((row >= self._operations) & (row < _ABANDONED)) | {self.rank}

    def abandon(self, error: CommError) -> None:
        """Stop using the channel because of an error on this rank; the other ranks are notified."""
        if self.broken is None:
            self.broken = error
            self._operations = _GAVE_UP if isinstance(error, PeerTimeoutError) else _ABANDONED
            self.heartbeat()

    def abandoned_by(self) -> set[int]:
        """Other ranks known to have abandoned the channel, because of an error there."""
        return _ranks(self._transport.presence(self._number) == _ABANDONED) - {self.rank}

    def given_up_by(self) -> set[int]:
        """Other ranks known to have abandoned the channel after a timeout (they count as present)."""
        return _ranks(self._transport.presence(self._number) == _GAVE_UP) - {self.rank}

    def _collective(self) -> trees.Collective:
        with self._lock:
            self._operations += 1
            return trees.Collective(self._transport, self._number, self._operations)


def _ranks(these: npt.NDArray[np.bool_]) -> set[int]:
    return set(np.flatnonzero(these).tolist())


def _nothing(operation: Operation[Bytes]) -> Operation[None]:
    yield from operation
