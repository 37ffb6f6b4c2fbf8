"""Headers of messages; and long ones on their way: in as they are waited for, out in pieces, a few at a time."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import struct
import weakref
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import zmq

from deeppart.comm.sockets.peer_memory import Mark, MemoryBlock
from deeppart.comm.sockets.rank_sockets import PIECES_AT_ONCE, Socket, has_something
from deeppart.errors import CommError

Bytes = npt.NDArray[np.uint8]
PIECE_BYTES = 1 << 20


@dataclass(slots=True, weakref_slot=True)
class Outgoing:
    """A long message. Its memory must stay as it is until it is complete; who has given it up holds it no more.

    Attributes:
        mark: with it in memory.
        sent: bytes that have been given to the socket.
        is_complete: the receiver has it, and has said so.
    """

    key: Key
    data: memoryview
    mark: Mark = field(default_factory=Mark)
    sent: int = 0
    is_complete: bool = False

    def __del__(self) -> None:
        self.mark.wipe()  # before the memory is let go

    def block(self) -> MemoryBlock:
        """Where it is offered."""
        return MemoryBlock(np.asarray(self.data).ctypes.data, self.data.nbytes, self.mark.address, self.mark.content)


@dataclass(slots=True, weakref_slot=True)
class Incoming:
    """A message that is waited for. The buffer is filled, if there is one.

    Attributes:
        come: bytes of it that are there.
        problem: why it will never come.
        offer: where it lies in the sender's memory, until it has been read there or asked for.
    """

    source: int
    key: Key
    buffer: Bytes | None
    come: int = 0
    problem: CommError | None = None
    offer: MemoryBlock | None = None
    is_complete: bool = False

    def read(self, pid: int, most: int) -> bool:
        """Read on where it lies; False if that is forbidden, or something else lies there by now."""
        assert self.offer is not None
        assert self.buffer is not None
        part = self.buffer[self.come : self.come + most]
        try:
            self.offer.read(pid, self.come, part)
            self.come += part.size
            return self.come < self.offer.nbytes or self.offer.still_stands(pid)
        except OSError:
            return False


@dataclass(slots=True)
class Pieces:
    """The way to one rank for long messages. Nothing is sent before the other end has proved to be that rank.

    The password has let this rank in; but the port may belong to another process by now, which lets in everybody.

    Attributes:
        socket: to that rank; connected to nobody else afterwards.
        monitor: of the socket.
        proof_key: which that rank has given to this one.
        waiting: messages that it is ready for, in this order, as long as nobody has given them up.
        flying: pieces that the socket still has.
    """

    socket: Socket
    monitor: Socket
    proof_key: bytes
    waiting: deque[weakref.ref[Outgoing]] = field(default_factory=deque)
    flying: deque[zmq.MessageTracker] = field(default_factory=deque)
    _nonce: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _is_proved: bool = False

    def greet(self) -> None:
        """Ask for the proof. Who refuses the connection at once never gives one; that it is gone is told elsewhere."""
        with contextlib.suppress(zmq.Again):
            self.socket.send_multipart([packed(Kind.HELLO, (0, 0, 0)), self._nonce], zmq.NOBLOCK)

    def push(self) -> bool:
        """Send on, without waiting; True if there is more to do."""
        if not self._is_proved and not self._hear_proof():
            return True
        while self.flying and self.flying[0].done:
            self.flying.popleft()
        while self.waiting and len(self.flying) < PIECES_AT_ONCE:
            outgoing = self.waiting[0]()
            if outgoing is None or outgoing.sent == outgoing.data.nbytes:
                self.waiting.popleft()
            elif not self._send_piece(outgoing):
                break
        return bool(self.waiting or self.flying)

    def _hear_proof(self) -> bool:
        if has_something(self.socket):
            header, found = self.socket.recv_multipart(zmq.NOBLOCK)
            expected = prove(self.proof_key, self._nonce)
            self._is_proved = unpacked(header)[0] == Kind.PROOF and hmac.compare_digest(found, expected)
        return self._is_proved

    def _send_piece(self, outgoing: Outgoing) -> bool:
        at = outgoing.sent
        piece = outgoing.data[at : at + PIECE_BYTES]
        try:
            tracker = self.socket.send_multipart(
                [packed(Kind.PIECE, outgoing.key, at), piece], zmq.NOBLOCK, copy=False, track=True
            )
        except zmq.Again:
            return False
        assert tracker is not None
        outgoing.sent += piece.nbytes
        self.flying.append(tracker)
        return True

    def close(self, linger_ms: int) -> None:
        """What is still to be sent has so long."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(linger_ms)


def prove(proof_key: bytes, nonce: bytes) -> bytes:
    """The answer to a greeting, which only who has the key can give."""
    return hmac.digest(proof_key, nonce, "sha256")


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
