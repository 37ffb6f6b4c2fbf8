"""Pieces of long messages: as many on their way as may be, to nobody but the rank that they are for."""

from __future__ import annotations

import weakref
from typing import Any

import zmq
from hypothesis import given
from hypothesis import strategies as st

from deeppart.comm.sockets.long_messages import (
    HEADER_BYTES,
    PIECE_BYTES,
    Kind,
    Outgoing,
    Pieces,
    packed,
    prove,
    unpacked,
)

KEY = b"known to two ranks"


class Tracker:
    done = False


class Socket:
    """Takes so many pieces, then none."""

    def __init__(self, room: int) -> None:
        self.room, self.sent = room, list[tuple[bytes, int, Tracker]]()
        self.nonce, self.answer = b"", b""

    def send_multipart(self, frames: Any, flags: int, *, copy: bool = True, track: bool = False) -> Tracker | None:
        assert flags == zmq.NOBLOCK
        if not track:
            assert unpacked(frames[0])[0] == Kind.HELLO
            self.nonce = frames[1]
            return None
        assert not copy
        if not self.room:
            raise zmq.Again
        self.room -= 1
        self.sent.append((bytes(frames[0]), len(frames[1]), Tracker()))
        return self.sent[-1][2]

    def get(self, option: int) -> int:
        return zmq.POLLIN if option == zmq.EVENTS and self.answer else 0

    def recv_multipart(self, flags: int) -> list[bytes]:
        found, self.answer = self.answer, b""
        return [packed(Kind.PROOF, (0, 0, 0)), found]


def made(room: int, kind: type[Socket] = Socket) -> tuple[Socket, Pieces]:
    socket = kind(room)
    pieces = Pieces(socket, socket, KEY)  # type: ignore[arg-type]
    pieces.greet()
    return socket, pieces


def outgoing(number: int) -> Outgoing:
    return Outgoing((1, 0, number), memoryview(bytes(5 * PIECE_BYTES + 7)))


def test_nothing_is_sent_to_whoever_has_no_proof() -> None:
    socket, pieces = made(room=100)
    message = outgoing(1)
    pieces.waiting.append(weakref.ref(message))
    for answer in (b"x" * 32, prove(b"another key", socket.nonce), prove(KEY, b"another nonce"), socket.nonce):
        socket.answer = answer
        assert pieces.push() and not socket.sent
    assert made(1)[0].nonce != made(1)[0].nonce


_signed, _unsigned = st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**64 - 1)


@given(st.sampled_from(Kind), st.integers(0, 2**32 - 1), _signed, _signed, _unsigned, _unsigned)
def test_everything_comes_back(kind: Kind, channel: int, tag: int, number: int, first: int, second: int) -> None:
    header = packed(kind, (channel, tag, number), first, second)
    assert len(header) == HEADER_BYTES
    found = unpacked(header + b"what follows")
    assert found == (kind, (channel, tag, number), first, second)
