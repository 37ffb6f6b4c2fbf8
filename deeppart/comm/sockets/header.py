"""What stands before the bytes of a message: what it is, and which one."""

from __future__ import annotations

import struct
from enum import IntEnum

#: Channel, tag and number of a message: between two ranks no two messages of a session have the same.
Key = tuple[int, int, int]

_HEADER = struct.Struct("<BIqqQQ")
HEADER_BYTES = _HEADER.size


class Kind(IntEnum):
    """Kinds of messages; in brackets, what the two further numbers are.

    SHORT is one as a whole. OFFER: a long one is there, at this place in the sender's memory. READY: send it, with this
    password, to whoever has this proof. TAKEN: the receiver has all of it [1 if that came in pieces]. STOOD: and until
    the last piece had come it was still offered. PIECE: a part of it [its offset]. HELLO, PROOF: the first messages on
    a connection for pieces. WAITS:
    what ranks wait for in a channel. ENDS: the sender ends the session, of this version of the roster. GONE: a rank is
    gone.
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


def packed(kind: Kind, key: Key, first: int = 0, second: int = 0) -> bytes:
    """The bytes of a header."""
    return _HEADER.pack(kind, *key, first, second)


def unpacked(message: memoryview | bytes) -> tuple[Kind, Key, int, int]:
    """Kind, key and the two further numbers of the header with which a message begins."""
    kind, channel, tag, number, first, second = _HEADER.unpack_from(message)
    return _KINDS[kind], (channel, tag, number), first, second


_KINDS = tuple(Kind)  # in the order of their numbers
