"""Long messages over sockets: offered in the sender's memory, or sent in pieces, a few at a time."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import weakref
from collections import deque
from dataclasses import dataclass, field

import zmq

from deeppart.comm.messages import Key, Kind, packed, unpacked
from deeppart.comm.sockets.rank_sockets import PIECES_AT_ONCE, Socket, has_something

PIECE_BYTES = 1 << 20


@dataclass(slots=True, weakref_slot=True)
class Outgoing:
    """A long message to be sent. Its memory must not change until it is complete; an abandoned one does not exist.

    Attributes:
        sent: bytes given to the socket.
        is_complete: true once the receiver has confirmed it.
    """

    key: Key
    data: memoryview
    sent: int = 0
    is_complete: bool = False


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
