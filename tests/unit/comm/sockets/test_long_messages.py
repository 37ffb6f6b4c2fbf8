"""Pieces of long messages: as many on their way as may be, and memory that is kept as long as it is needed."""

from __future__ import annotations

from typing import Any

import zmq

from deeppart.comm.sockets.doors import PIECES_AT_ONCE
from deeppart.comm.sockets.header import unpacked
from deeppart.comm.sockets.long_messages import PIECE_BYTES, Outgoing, Pieces


class Tracker:
    done = False


class Socket:
    """Takes so many pieces, then none."""

    def __init__(self, room: int) -> None:
        self.room, self.sent = room, list[tuple[bytes, int, Tracker]]()

    def send_multipart(self, frames: Any, flags: int, *, copy: bool, track: bool) -> Tracker:
        assert flags == zmq.NOBLOCK and track and not copy
        if not self.room:
            raise zmq.Again
        self.room -= 1
        self.sent.append((bytes(frames[0]), len(frames[1]), Tracker()))
        return self.sent[-1][2]


def test_pieces() -> None:
    socket = Socket(room=3)
    pieces = Pieces(socket)  # type: ignore[arg-type]
    first, second = (Outgoing((1, 0, n), memoryview(bytes(5 * PIECE_BYTES + 7))) for n in (1, 2))
    pieces.waiting.extend([first, second])
    assert pieces.push() and len(socket.sent) == 3 and first.sent == 3 * PIECE_BYTES
    socket.room = 100
    assert pieces.push() and len(socket.sent) == PIECES_AT_ONCE and second.sent == 2 * PIECE_BYTES
    assert first.sent == first.data.nbytes
    for _, _, tracker in socket.sent[:6]:
        tracker.done = True
    assert pieces.push() and second.sent == second.data.nbytes
    for _, _, tracker in socket.sent:
        tracker.done = True
    assert not pieces.push()
    assert not first.is_complete and not second.is_complete, "that is for the receiver to say"
    offsets = [(unpacked(header)[1][2], unpacked(header)[2], nbytes) for header, nbytes, _ in socket.sent]
    lengths = [PIECE_BYTES] * 5 + [7]
    assert offsets == [(n, i * PIECE_BYTES, length) for n in (1, 2) for i, length in enumerate(lengths)]
