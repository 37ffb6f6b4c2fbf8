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
from deeppart.comm.sockets.rank_sockets import PIECES_AT_ONCE

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


class Refused(Socket):
    """A connection that has ended before anything was sent."""

    def send_multipart(self, *frames: Any, **how: Any) -> Tracker | None:
        raise zmq.Again


def made(room: int, kind: type[Socket] = Socket) -> tuple[Socket, Pieces]:
    socket = kind(room)
    pieces = Pieces(socket, socket, KEY)  # type: ignore[arg-type]
    pieces.greet()
    return socket, pieces


def outgoing(number: int) -> Outgoing:
    return Outgoing((1, 0, number), memoryview(bytes(5 * PIECE_BYTES + 7)))


def test_who_refuses_the_connection_at_once_is_sent_nothing() -> None:
    """Seen on a busy machine: the operation that began it failed with an error of ZeroMQ's."""
    _, pieces = made(room=3, kind=Refused)
    message = outgoing(1)
    pieces.waiting.append(weakref.ref(message))
    assert pieces.push() and not message.sent


def test_pieces() -> None:
    socket, pieces = made(room=3)
    first, second = outgoing(1), outgoing(2)
    pieces.waiting.extend([weakref.ref(first), weakref.ref(second)])
    assert pieces.push() and not socket.sent
    socket.answer = prove(KEY, socket.nonce)
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


def test_nothing_is_sent_to_whoever_has_no_proof() -> None:
    socket, pieces = made(room=100)
    message = outgoing(1)
    pieces.waiting.append(weakref.ref(message))
    for answer in (b"x" * 32, prove(b"another key", socket.nonce), prove(KEY, b"another nonce"), socket.nonce):
        socket.answer = answer
        assert pieces.push() and not socket.sent
    assert made(1)[0].nonce != made(1)[0].nonce


def test_what_was_given_up_is_not_sent() -> None:
    socket, pieces = made(room=100)
    first, second = outgoing(1), outgoing(2)
    pieces.waiting.extend([weakref.ref(first), weakref.ref(second)])
    del first
    socket.answer = prove(KEY, socket.nonce)
    pieces.push()
    assert {unpacked(header)[1][2] for header, _, _ in socket.sent} == {2}
    assert second.sent == second.data.nbytes


_signed, _unsigned = st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**64 - 1)


@given(st.sampled_from(Kind), st.integers(0, 2**32 - 1), _signed, _signed, _unsigned, _unsigned)
def test_everything_comes_back(kind: Kind, channel: int, tag: int, number: int, first: int, second: int) -> None:
    header = packed(kind, (channel, tag, number), first, second)
    assert len(header) == HEADER_BYTES
    found = unpacked(header + b"what follows")
    assert found == (kind, (channel, tag, number), first, second)
