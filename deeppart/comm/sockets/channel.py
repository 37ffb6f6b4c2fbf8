"""The communicator without MPI: a channel between the ranks of a session, over its :class:`Transport`."""

from __future__ import annotations

import os
import threading
from collections import Counter

import numpy as np
import numpy.typing as npt

from deeppart.comm.base import ABANDONED, Comm, Int64s, Operation
from deeppart.comm.sockets import trees
from deeppart.comm.sockets.transport import Transport
from deeppart.errors import CommError

#: Tag of what collectives send; those of callers are not negative.
_COLLECTIVE_TAG = -1
#: More messages than any collective sends to one rank.
_MESSAGES_OF_ONE = 64


class SocketComm:
    """One channel."""

    def __init__(self, link: Link, number: int) -> None:
        self.rank, self.size, self.threads = link.rank, link.size, True
        self._link, self._transport, self._number = link, link.transport, number
        self._lock = threading.Lock()  # guards the counts
        self._operations = 0
        self._sent, self._received = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
        self._is_left = False
        self.broken: CommError | None = None

    @property
    def sent(self) -> int:
        """Messages to one rank so far."""
        return self._sent.total()

    @property
    def received(self) -> int:
        """Messages from one rank that have been waited for."""
        return self._received.total()

    def channel(self) -> Operation[Comm]:
        yield from self.allgather(b"")  # all of them have come this far
        return self._link.next_channel()

    def maximum(self, values: Int64s) -> Operation[Int64s]:
        return (yield from trees.maximum(self._collective(), values))

    def allgather(self, data: bytes) -> Operation[list[bytes]]:
        return (yield from trees.allgather(self._collective(), data))

    def gather(self, data: bytes) -> Operation[list[bytes] | None]:
        return (yield from trees.gather(self._collective(), data))

    def broadcast(self, data: bytes | None, root: int = 0) -> Operation[bytes]:
        return (yield from trees.broadcast(self._collective(), data, root))

    def send(self, buffer: npt.NDArray[np.uint8], to: int, tag: int) -> Operation[None]:
        with self._lock:
            self._sent[to, tag] += 1
            number = self._sent[to, tag]
        return self._transport.send(to, (self._number, tag, number), buffer)

    def receive_into(self, buffer: npt.NDArray[np.uint8], source: int, tag: int) -> Operation[None]:
        with self._lock:
            self._received[source, tag] += 1
            number = self._received[source, tag]
        return _nothing(self._transport.receive(source, (self._number, tag, number), buffer))

    def give_back(self) -> None:
        if os.getpid() != self._transport.card.pid:  # in a forked child another thread may have held the lock
            return
        with self._lock:
            if self._is_left:
                return
            self._is_left = True
        self._transport.leave_channel(self._number)
        self._link.left()

    def announce(self) -> None:
        self._transport.tell(self._number, self._own_row())

    def heard(self) -> set[int]:
        row = self._transport.told(self._number)
        here = np.flatnonzero((row >= self._operations) & (row < ABANDONED))
        return {int(rank) for rank in here} | {self.rank}

    def abandon(self, error: CommError) -> None:
        if self.broken is None:
            self.broken, self._operations = error, ABANDONED
            self.announce()

    def abandoned_by(self) -> set[int]:
        return {int(rank) for rank in np.flatnonzero(self._transport.told(self._number) == ABANDONED)} - {self.rank}

    def _own_row(self) -> Int64s:
        row = np.zeros(self.size, dtype=np.int64)
        row[self.rank] = self._operations
        return row

    def _collective(self) -> CollectiveMessages:
        with self._lock:
            self._operations += 1
            return CollectiveMessages(self._transport, self.rank, self.size, self._number, self._operations)


class Link:
    """What the channels of a session share: the transport, which is closed when all of them have been given back."""

    def __init__(self, transport: Transport, rank: int, size: int) -> None:
        self.transport, self.rank, self.size = transport, rank, size
        self._lock = threading.Lock()  # guards the counts
        self._channels, self._in_use = 0, 0

    def next_channel(self) -> SocketComm:
        """A new one; all ranks ask for it in the same order."""
        with self._lock:
            self._channels += 1
            self._in_use += 1
            return SocketComm(self, self._channels)

    def left(self) -> None:
        """One has been given back."""
        with self._lock:
            self._in_use -= 1
            is_last = not self._in_use
        if is_last:
            self.transport.close()


class CollectiveMessages:
    """The messages of one collective; those of another one have another number."""

    def __init__(self, transport: Transport, rank: int, size: int, channel: int, operation: int) -> None:
        self.rank, self.size = rank, size
        self._transport, self._channel, self._first = transport, channel, operation * _MESSAGES_OF_ONE

    def send(self, to: int, number: int, data: bytes) -> Operation[None]:
        return self._transport.send(to, (self._channel, _COLLECTIVE_TAG, self._first + number), data)

    def receive(self, source: int, number: int) -> Operation[bytes]:
        found = yield from self._transport.receive(source, (self._channel, _COLLECTIVE_TAG, self._first + number))
        return found.tobytes()


def _nothing(operation: Operation[npt.NDArray[np.uint8]]) -> Operation[None]:
    yield from operation
