"""Collectives from messages between pairs of ranks: pure, for any number of ranks.

Each rank exchanges messages with ranks at distances that are powers of two, forwards and backwards, whatever the root:
at most ``2 * ceil(log2(size))`` others, in ``ceil(log2(size))`` rounds. So 4,096 ranks need 24 connections each.

Sources: the dissemination of Hensgen, Finkel and Manber (1988) for the maximum, which may take a value in twice; the
allgather of Bruck, Ho, Kipnis, Upfal and Weathersby (1997); binomial trees for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from deeppart.comm.base import Int64s, Operation, interleaved
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

    def send(self, to: int, number: int, data: bytes) -> Operation[None]:
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
    rank, size, blocks = messages.rank, messages.size, [data]  # of this rank and those that follow it
    for number, distance in enumerate(_distances(size)):
        sending = messages.send((rank - distance) % size, number, _joined(blocks[: size - distance]))
        blocks += _split((yield from messages.receive((rank + distance) % size, number)))
        yield from sending
    return [blocks[(other - rank) % size] for other in range(size)]


def gather(messages: Collective, data: bytes) -> Operation[list[bytes] | None]:
    """The data of all ranks, in rank order, on rank 0; None elsewhere."""
    rank, size, blocks = messages.rank, messages.size, [data]
    for distance in _distances(size):
        if rank & distance:
            yield from messages.send(rank - distance, 0, _joined(blocks))
            return None
        if rank + distance < size:
            blocks += _split((yield from messages.receive(rank + distance, 0)))
    return blocks


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


def _joined(blocks: Sequence[bytes]) -> bytes:
    """Several blocks as one message: their number, their lengths, and the blocks."""
    lengths = np.array([len(blocks), *map(len, blocks)], dtype=np.int64)
    return b"".join((lengths.tobytes(), *blocks))


def _split(message: bytes) -> list[bytes]:
    count = int(np.frombuffer(message, dtype=np.int64, count=1)[0])
    lengths = np.frombuffer(message, dtype=np.int64, count=1 + count)[1:]
    ends = 8 * (1 + count) + np.cumsum(lengths)
    return [message[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
