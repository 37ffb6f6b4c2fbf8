"""Messages between two ranks: their headers, and those that are waited for."""

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

    The others exist over sockets only. READY: send a long message, with this password, to the process with this proof.
    TAKEN: the receiver has all of it. STOOD: until then it was offered, so that its bytes are right. PIECE: a part of
    it [its offset]. HELLO, PROOF: the first messages on a connection for pieces. ENDS: the sender ends the session with
    this version of the roster. GONE: a rank has gone.
    """

    SHORT = 0
    OFFER = 1
    READY = 2
    TAKEN = 3
    STOOD = 4
    PIECE = 5
    HELLO = 6
    PROOF = 7
    WAITS = 8
    ENDS = 9
    GONE = 10


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
    """

    nbytes: int
    place: int


@dataclass(slots=True, weakref_slot=True)
class Incoming:
    """A message that is waited for. The buffer is filled, if there is one.

    Attributes:
        come: bytes received so far.
        problem: why it will never arrive.
    """

    source: int
    key: Key
    buffer: Bytes | None
    come: int = 0
    problem: CommError | None = None
    is_complete: bool = False
