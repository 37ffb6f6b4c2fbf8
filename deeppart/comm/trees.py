"""Collectives from messages between pairs of ranks: pure, for any number of ranks.

Each rank exchanges messages with ranks at distances that are powers of two, forwards and backwards, whatever the root:
at most ``2 * ceil(log2(size))`` others, in ``ceil(log2(size))`` rounds. So 4,096 ranks need 24 connections each.

Sources: the dissemination of Hensgen, Finkel and Manber (1988) for the maximum, which may take a value in twice; the
allgather and the exchange ("index") of Bruck, Ho, Kipnis, Upfal and Weathersby (1997); binomial trees for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from deeppart.comm.base import Int64s, Operation, interleaved
from deeppart.comm.messages import Bytes
from deeppart.errors import CommError

if TYPE_CHECKING:
    from deeppart.comm.transport import Transport

#: Tag of messages of collectives; callers' tags are not negative.
_TAG = -1
#: More messages than any collective sends to one rank.
_MESSAGES_OF_ONE = 64


class Collective:
    """The messages of one collective, which has a unique number.

    Attributes:
        rank, size: this rank and the number of ranks.
    """

    def __init__(self, transport: Transport, channel: int, operation: int) -> None:
        self.rank, self.size = transport.rank, transport.size
        self._transport, self._channel, self._first = transport, channel, operation * _MESSAGES_OF_ONE

    def send(self, to: int, number: int, data: bytes) -> Operation[Bytes]:
        """Send the message of that number to a rank. The transfer starts at the call."""
        return self._transport.send(to, (self._channel, _TAG, self._first + number), data)

    def receive(self, source: int, number: int) -> Operation[bytes]:
        """The message of that number from a rank."""
        found = yield from self._transport.receive(source, (self._channel, _TAG, self._first + number))
        return found.tobytes()


def maximum(messages: Collective, values: Int64s) -> Operation[Int64s]:
    """Element-wise maximum over all ranks."""
    rank, size, found = messages.rank, messages.size, values.astype(np.int64)
    for number, distance in enumerate(_distances(size)):
        sending = messages.send((rank + distance) % size, number, found.tobytes())
        other = np.frombuffer((yield from messages.receive((rank - distance) % size, number)), dtype=np.int64)
        if other.size != found.size:
            raise CommError(
                "ranks compare different numbers of values",
                expected=f"{found.size}, as on rank {rank}",
                found=f"{other.size}",
                where=f"rank {(rank - distance) % size}, or one that it has heard of",
            )
        yield from sending
        found = np.maximum(found, other)
    return found


def allgather(messages: Collective, data: bytes) -> Operation[list[bytes]]:
    """The data of all ranks, in rank order, on every rank."""
    rank, size, blocks = messages.rank, messages.size, _blocks({0: data})  # by the distance to the rank they are of
    for number, distance in enumerate(_distances(size)):
        further = {ahead: block for ahead, block in blocks.items() if ahead < size - distance}
        sending = messages.send((rank - distance) % size, number, _joined(further))
        received = _split((yield from messages.receive((rank + distance) % size, number)))
        blocks |= {ahead + distance: block for ahead, block in received.items()}
        yield from sending
    return [blocks.get((other - rank) % size, b"") for other in range(size)]


def gather(messages: Collective, data: bytes) -> Operation[list[bytes] | None]:
    """The data of all ranks, in rank order, on rank 0; None elsewhere."""
    rank, size, blocks = messages.rank, messages.size, _blocks({messages.rank: data})
    for distance in _distances(size):
        if rank & distance:
            yield from messages.send(rank - distance, 0, _joined(blocks))
            return None
        if rank + distance < size:
            blocks |= _split((yield from messages.receive(rank + distance, 0)))
    return [blocks.get(other, b"") for other in range(size)]


def exchange(messages: Collective, data: Sequence[bytes]) -> Operation[list[bytes]]:
    """Data for each rank, in rank order; returns what each has for this rank.

    The blocks travel by way of the ranks between: half of ``log2(size)`` hops on average, in as few messages as any
    other collective takes.
    """
    rank, size = messages.rank, messages.size
    blocks = _blocks({(other - rank) % size: block for other, block in enumerate(data)})  # by how far they go in all
    for number, distance in enumerate(_distances(size)):
        moving = {whole: block for whole, block in blocks.items() if whole & distance}
        sending = messages.send((rank + distance) % size, number, _joined(moving))
        received = _split((yield from messages.receive((rank - distance) % size, number)))
        blocks = {whole: block for whole, block in blocks.items() if whole not in moving} | received
        yield from sending
    return [blocks.get((rank - other) % size, b"") for other in range(size)]


def broadcast(messages: Collective, data: bytes | None, root: int) -> Operation[bytes]:
    """The root's data on every rank."""
    size = messages.size
    place = (messages.rank - root) % size
    below = []
    for distance in _distances(size):
        if place & distance:
            data = yield from messages.receive((messages.rank - distance) % size, 0)
            break
        below.append(distance)
    assert data is not None
    to = [(messages.rank + distance) % size for distance in reversed(below) if place + distance < size]
    yield from interleaved([messages.send(rank, 0, data) for rank in to])
    return data


def neighbours(rank: int, size: int) -> list[int]:
    """The ranks with which a rank exchanges messages."""
    found = {(rank + sign * distance) % size for distance in _distances(size) for sign in (1, -1)}
    return sorted(found - {rank})


def _distances(size: int) -> Iterator[int]:
    distance = 1
    while distance < size:
        yield distance
        distance *= 2


def _blocks(blocks: Mapping[int, bytes]) -> dict[int, bytes]:
    """Those that are not empty: what most ranks have nothing to say about costs nothing."""
    return {number: block for number, block in blocks.items() if block}


def _joined(blocks: Mapping[int, bytes]) -> bytes:
    """Blocks as one message: how many, their numbers, their lengths, and the blocks."""
    head = np.array([len(blocks), *blocks, *map(len, blocks.values())], dtype=np.int64)
    return b"".join((head.tobytes(), *blocks.values()))


def _split(message: bytes) -> dict[int, bytes]:
    count = int(np.frombuffer(message, dtype=np.int64, count=1)[0])
    numbers, lengths = np.frombuffer(message, dtype=np.int64, count=2 * count, offset=8).reshape(2, count)
    ends = 8 * (1 + 2 * count) + np.cumsum(lengths)
    found = zip(numbers.tolist(), ends.tolist(), lengths.tolist(), strict=True)
    return {number: message[end - length : end] for number, end, length in found}
