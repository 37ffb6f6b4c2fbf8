"""Headers of messages; and long messages: received in memory order, sent in pieces, a few at a time."""

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
    """A long message to be sent. Its memory must not change until it is complete; an abandoned one releases it.

    Attributes:
        mark: the mark that is in memory with it.
        sent: bytes given to the socket.
        is_complete: true once the receiver has confirmed it.
    """

    key: Key
    data: memoryview
    mark: Mark = field(default_factory=Mark)
    sent: int = 0
    is_complete: bool = False

    def __del__(self) -> None:
        self.mark.wipe()  # before the memory is released

    def block(self) -> MemoryBlock:
        """The memory block in which it is offered."""
        return MemoryBlock(np.asarray(self.data).ctypes.data, self.data.nbytes, self.mark.address, self.mark.content)


@dataclass(slots=True, weakref_slot=True)
class Incoming:
    """A message that is waited for. The buffer is filled, if there is one.

    Attributes:
        come: bytes received so far.
        problem: why it will never arrive.
        offer: its block in the sender's memory, until it has been read there or requested.
    """

    source: int
    key: Key
    buffer: Bytes | None
    come: int = 0
    problem: CommError | None = None
    offer: MemoryBlock | None = None
    is_complete: bool = False

    def read(self, pid: int, most: int) -> bool:
        """Read more of it from the sender's memory; False if that is forbidden, or the memory has changed."""
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
    """The connection to one rank for long messages. Nothing is sent before the other end has proved to be that rank.

    The password makes that rank accept this one; but another process may have the port by now, and accept anyone.

    Attributes:
        socket: connected to that rank; never connects to another process afterwards.
        monitor: monitor of the socket.
        proof_key: the key that the rank has sent to this one.
        waiting: messages for which the rank is ready, in this order, until they are abandoned.
        flying: pieces that the socket has not sent yet.
    """

    socket: Socket
    monitor: Socket
    proof_key: bytes
    waiting: deque[weakref.ref[Outgoing]] = field(default_factory=deque)
    flying: deque[zmq.MessageTracker] = field(default_factory=deque)
    _nonce: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _is_proved: bool = False

    def greet(self) -> None:
        """Request the proof. A refused connection gives none; that the rank has gone is detected elsewhere."""
        with contextlib.suppress(zmq.Again):
            self.socket.send_multipart([packed(Kind.HELLO, (0, 0, 0)), self._nonce], zmq.NOBLOCK)

    def push(self) -> bool:
        """Continue to send, without waiting; True if there is more to do."""
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
        """Close the socket; messages may be sent for ``linger_ms``."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(linger_ms)


def prove(proof_key: bytes, nonce: bytes) -> bytes:
    """The answer to a greeting, which requires the key."""
    return hmac.digest(proof_key, nonce, "sha256")


#: Channel, tag and number of a message: unique between two ranks of a session.
Key = tuple[int, int, int]
_HEADER = struct.Struct("<BIqqQQ")
HEADER_BYTES = _HEADER.size


class Kind(IntEnum):
    """Kinds of messages; in brackets, the meaning of the two further numbers.

    SHORT is a whole message. OFFER: a long one is available, in this block of the sender's memory. READY: send it,
    with this password, to the process with this proof. TAKEN: the receiver has all of it [1 if it came in pieces].
    STOOD: it was offered until the last piece had arrived. PIECE: a part of it [its offset]. HELLO, PROOF: the first
    messages on a connection for pieces. WAITS: the row of a channel. ENDS: the sender ends the session with this
    version of the roster. GONE: a rank has gone.
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
    """Kind, key and the two further numbers of the header at the beginning of a message."""
    kind, channel, tag, number, first, second = _HEADER.unpack_from(message)
    return _KINDS[kind], (channel, tag, number), first, second


_KINDS = tuple(Kind)  # in the order of their numbers
