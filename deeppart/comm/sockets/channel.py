"""The communicator over sockets: a channel between the ranks of a session, over its :class:`Transport`."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from deeppart.comm.base import ABANDONED, GAVE_UP, Comm, Int64s, Operation, abandoned_value, rank_names
from deeppart.comm.sockets import trees
from deeppart.comm.sockets.address import Address
from deeppart.comm.sockets.transport import Transport
from deeppart.errors import CommError

#: Tag of messages of collectives; callers' tags are not negative.
_COLLECTIVE_TAG = -1
#: Channel number of messages before there is a channel; channels are numbered from 1.
_NO_CHANNEL = 0
#: More messages than any collective sends to one rank.
_MESSAGES_OF_ONE = 64


class SocketComm:
    """One channel."""

    def __init__(self, link: Link, number: int) -> None:
        self.rank, self.size = link.rank, link.size
        self._link, self._transport, self._number = link, link.transport, number
        self._lock = threading.Lock()  # guards the counts
        self._operations = 0
        self._sent, self._received = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
        self._is_released = False
        self.broken: CommError | None = None

    def channel(self) -> Operation[Comm]:
        yield from self.allgather(b"")  # all ranks have called it
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

    def release(self) -> None:
        if os.getpid() != self._transport.address.pid:  # in a forked child another thread may have held the lock
            return
        with self._lock:
            if self._is_released:
                return
            self._is_released = True
        self._transport.release_channel(self._number)
        self._link.released()

    def heartbeat(self) -> None:
        self._transport.heartbeat(self._number, self._own_row())

    def present(self) -> set[int]:
        row = self._transport.presence(self._number)
        here = np.flatnonzero((row >= self._operations) & (row < ABANDONED))
        return {int(rank) for rank in here} | {self.rank}

    def abandon(self, error: CommError) -> None:
        if self.broken is None:
            self.broken, self._operations = error, abandoned_value(error)
            self.heartbeat()

    def abandoned_by(self) -> set[int]:
        return self._that_say(ABANDONED)

    def given_up_by(self) -> set[int]:
        return self._that_say(GAVE_UP)

    def _that_say(self, number: int) -> set[int]:
        return {int(rank) for rank in np.flatnonzero(self._transport.presence(self._number) == number)} - {self.rank}

    def _own_row(self) -> Int64s:
        row = np.zeros(self.size, dtype=np.int64)
        row[self.rank] = self._operations
        return row

    def _collective(self) -> CollectiveMessages:
        with self._lock:
            self._operations += 1
            return CollectiveMessages(self._transport, self.rank, self.size, self._number, self._operations)


class Link:
    """Shared by the channels of a session: the transport, which is closed when all of them have been released."""

    def __init__(self, transport: Transport, rank: int, size: int) -> None:
        self.transport, self.rank, self.size = transport, rank, size
        self._lock = threading.Lock()  # guards the counts
        self._channels, self._in_use = 0, 0

    def next_channel(self) -> SocketComm:
        """A new channel; all ranks create them in the same order."""
        with self._lock:
            self._channels += 1
            self._in_use += 1
            return SocketComm(self, self._channels)

    def released(self) -> None:
        """One channel has been released."""
        with self._lock:
            self._in_use -= 1
            is_last = not self._in_use
        if is_last:
            self.transport.close()


class CollectiveMessages:
    """The messages of one collective, which has a unique number."""

    def __init__(self, transport: Transport, rank: int, size: int, channel: int, operation: int) -> None:
        self.rank, self.size = rank, size
        self._transport, self._channel, self._first = transport, channel, operation * _MESSAGES_OF_ONE

    def send(self, to: int, number: int, data: bytes) -> Operation[None]:
        return self._transport.send(to, (self._channel, _COLLECTIVE_TAG, self._first + number), data)

    def receive(self, source: int, number: int) -> Operation[bytes]:
        found = yield from self._transport.receive(source, (self._channel, _COLLECTIVE_TAG, self._first + number))
        return found.tobytes()


def connect_all(
    transport: Transport, rank: int, addresses: Sequence[Address], version: int = 1
) -> Operation[SocketComm]:
    """The first channel of a session, once every rank has the same version of the addresses (collective)."""
    _check_hosts(addresses)
    transport.set_addresses(addresses, rank, version)
    size = len(addresses)
    messages = CollectiveMessages(transport, rank, size, _NO_CHANNEL, version)
    agreeing = trees.maximum(messages, np.zeros(1, dtype=np.int64))

    def connected() -> Operation[SocketComm]:
        yield from agreeing
        return Link(transport, rank, size).next_channel()

    return connected()


def _check_hosts(addresses: Sequence[Address]) -> None:
    """Check that other hosts can reach the addresses."""
    if len({address.host for address in addresses}) == 1:
        return
    local = [rank for rank, each in enumerate(addresses) if each.messages.startswith(("tcp://127.", "tcp://[::1]"))]
    if local:
        raise CommError(
            f"{rank_names(local)} listen where only their own host can reach them",
            expected="the address of an interface that the nodes reach each other on",
            found=addresses[local[0]].messages,
            todo="set MASTER_ADDR to a name that is no local one, or GLOO_SOCKET_IFNAME to the interface's name",
        )


def _nothing(operation: Operation[npt.NDArray[np.uint8]]) -> Operation[None]:
    yield from operation
