"""Messages between two ranks: their headers, and those that are under way."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from deeppart.errors import CommError

Bytes = npt.NDArray[np.uint8]
#: Channel, tag and number of a message: unique between two ranks of a session.
Key = tuple[int, int, int]
_HEADER = struct.Struct("<BIqqQQ")
HEADER_BYTES = _HEADER.size


class Kind(IntEnum):
    """Kinds of messages; in brackets, the meaning of the two further numbers.

    SHORT is a whole message. OFFER: a long one is available [see :class:`Offer`]. WAITS: the row of a channel.

    The others exist over sockets only. READY: send a piece of a long message [its offset]. PIECE: here it is [its
    offset]. TAKEN: the receiver has all of it. STOOD: until then it was offered, so that its bytes are right. ENDS: the
    sender ends the session with this version of the roster. GONE: a rank has gone.
    """

    SHORT = 0
    OFFER = 1
    READY = 2
    PIECE = 3
    TAKEN = 4
    STOOD = 5
    WAITS = 6
    ENDS = 7
    GONE = 8


_KINDS = tuple(Kind)  # in the order of their numbers


def packed(kind: Kind, key: Key, first: int = 0, second: int = 0) -> bytes:
    """The bytes of a header."""
    return _HEADER.pack(kind, *key, first, second)


def unpacked(message: memoryview | bytes) -> tuple[Kind, Key, int, int]:
    """Kind, key and the two further numbers of the header at the beginning of a message."""
    kind, channel, tag, number, first, second = _HEADER.unpack_from(message)
    return _KINDS[kind], (channel, tag, number), first, second


@dataclass(frozen=True, slots=True)
class Offer:
    """A long message that a rank offers.

    Attributes:
        nbytes: its length.
        place: over sockets its address in the sender's memory, over MPI the tag with which it is sent.
        password: over sockets, with which the receiver may request its pieces.
    """

    nbytes: int
    place: int
    password: bytes


@dataclass(slots=True, weakref_slot=True)
class Transfer:
    """A message that is sent or waited for. Unless MPI still uses its memory, it lives as long as its operation.

    Attributes:
        other: the rank that it goes to or comes from.
        buffer: its memory, which must not change while it is sent; None if that of an arriving one is still to be made.
        moved: bytes sent or received so far.
        problem: why it will never arrive.
    """

    other: int
    key: Key
    buffer: Bytes | None
    moved: int = 0
    problem: CommError | None = None
    is_complete: bool = False

    def complete(self) -> None:
        """It has been sent, or is in the buffer."""
        self.is_complete = True
