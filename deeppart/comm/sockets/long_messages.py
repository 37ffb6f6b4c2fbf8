"""Long messages on their way out: pieces, as many at a time as may be on their way to one rank."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import zmq

from deeppart.comm.sockets.doors import PIECES_AT_ONCE, Socket
from deeppart.comm.sockets.header import Key, Kind, packed

PIECE_BYTES = 1 << 20


@dataclass(slots=True)
class Outgoing:
    """A long message. Its memory must stay as it is until it is complete.

    Attributes:
        sent: bytes that have been given to the socket.
        is_complete: the receiver has it, and has said so.
    """

    key: Key
    data: memoryview
    sent: int = 0
    is_complete: bool = False


@dataclass(slots=True)
class Pieces:
    """The way to one rank for long messages.

    Attributes:
        socket: to that rank.
        waiting: messages that it is ready for, in this order.
        flying: pieces that the socket still has.
    """

    socket: Socket
    waiting: deque[Outgoing] = field(default_factory=deque)
    flying: deque[zmq.MessageTracker] = field(default_factory=deque)

    def push(self) -> bool:
        """Send on, without waiting; True if there is more to do."""
        while self.flying and self.flying[0].done:
            self.flying.popleft()
        while self.waiting and len(self.flying) < PIECES_AT_ONCE and self._send_piece(self.waiting[0]):
            if self.waiting[0].sent == self.waiting[0].data.nbytes:
                self.waiting.popleft()
        return bool(self.waiting or self.flying)

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
