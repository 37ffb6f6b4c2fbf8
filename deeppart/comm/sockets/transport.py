"""Messages between the processes of one session, over ZeroMQ: encrypted, except for long ones, and from nobody else.

A rank has two sockets that others connect to, when they first have something for it. Both take only what proves to be a
rank of this session: *messages* by CURVE, whose public keys the ranks exchange when they meet; *pieces* of long
messages, which would be three times as slow encrypted, by a password that the receiver gives the sender in a message.
So a long one is offered first, and sent when its receiver is ready for it. A receiver that may read the sender's
memory, as ranks of one host mostly may, does so instead.

Nothing moves but in :meth:`Transport.progress`, which every operation calls while it waits, in whatever thread; and in
ZeroMQ's own thread, which needs no lock of the interpreter.

Sources: rfc.zeromq.org/spec/23 (ZMTP), 25 (CURVE), 24 (PLAIN), 27 (ZAP).
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

import numpy as np
import zmq
from zmq.utils import z85

from deeppart.comm.base import Int64s, Operation, immediately, rank_names
from deeppart.comm.sockets.card import Card
from deeppart.comm.sockets.doors import Doors, Socket, has_something
from deeppart.comm.sockets.long_messages import (
    HEADER_BYTES,
    Bytes,
    Incoming,
    Key,
    Kind,
    Outgoing,
    packed,
    prove,
    unpacked,
)
from deeppart.comm.sockets.peer_memory import Place
from deeppart.comm.sockets.peers import Peers
from deeppart.errors import CommError, RanksDisagreeError

#: A message of at most so many bytes is sent at once; a longer one is offered.
SHORT_BYTES = 32 << 10
#: How much is read from another process between two looks at everything else.
READ_BYTES = 8 << 20
#: Messages taken in before others get the lock.
_AT_ONCE = 64
#: Where several operations wait side by side, the first one looks for all: nothing has come in so short a time.
_STILL_S = 30e-6
_LOOK_S = 10e-3
#: What is waited for is passed on after so long.
_TELL_S = 0.1
#: What is still to be sent when the session is closed has so long.
_CLOSING_MS = 1000


class Transport:
    """Of one rank in one session.

    Attributes:
        card: how others reach this rank.
    """

    def __init__(self, doors: Doors) -> None:
        self._lock = threading.Lock()  # guards all that follows, and the sockets
        self._doors, self.card = doors, doors.card
        self._peers = Peers(doors)
        self._roll_call = RollCall(0)
        self._busy: set[int] = set()  # to whom long messages are on their way
        self._outgoing: weakref.WeakValueDictionary[tuple[int, Key], Outgoing] = weakref.WeakValueDictionary()
        self._incoming: weakref.WeakValueDictionary[tuple[int, Key], Incoming] = weakref.WeakValueDictionary()
        #: What has come before it was waited for: a short message, or where a long one lies.
        self._early: dict[tuple[int, Key], Bytes | Place] = {}
        #: Of a channel, what is waited for and has been offered. Guarded by the interpreter: single operations.
        self._offered: defaultdict[int, deque[weakref.ref[Incoming]]] = defaultdict(deque)
        self._left_channels: set[int] = set()
        self._emptied_at, self._looked_at, self._told_at = 0.0, 0.0, 0.0
        self._closed = False
        # For a session that never started, or that nobody closes. By a weak reference, not by __del__: of objects that
        # refer to each other, the collector ends any first, and the sockets are to be closed in order.
        self._finalizer = weakref.finalize(self, _shut, self._peers, doors, 0)
        self._finalizer.atexit = False

    def know(self, cards: Sequence[Card], rank: int, version: int) -> None:
        """The peers, in rank order, once they have met; again if one was replaced."""
        keys = [z85.decode(card.public_key) for card in cards]
        with self._lock:
            self._busy -= self._peers.know(cards, rank, version)
            self._roll_call = RollCall(len(cards))
        self._doors.doorkeeper.let_in(keys)

    def send(self, to: int, key: Key, data: Bytes | bytes) -> Operation[None]:
        """Send a message. The transfer starts at the call; ``data`` must stay as it is until it ends."""
        array = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
        if not array.flags.c_contiguous:
            raise ValueError("a message has to lie in one stretch of memory")
        with self._lock:
            self._refuse_closed()
            if to == self._peers.own_rank:
                self._come_in(to, key, array.copy())
                return immediately(None)
            if array.size <= SHORT_BYTES:
                self._peers.put(to, packed(Kind.SHORT, key), array.tobytes())
                return immediately(None)
            outgoing = self._outgoing[to, key] = Outgoing(key, array.data)  # lives as long as the operation
            self._peers.put(to, packed(Kind.OFFER, key), outgoing.place().encode())
        return self._sending(to, outgoing)

    def _sending(self, to: int, outgoing: Outgoing) -> Operation[None]:
        while not outgoing.is_complete:
            before = outgoing.sent
            has_all = self._go_on(outgoing.key)
            if not outgoing.is_complete:
                if has_all:
                    self._check(to)
                yield outgoing.sent > before

    def receive(self, source: int, key: Key, buffer: Bytes | None = None) -> Operation[Bytes]:
        """A message; into the buffer, if there is one. The transfer starts at the call."""
        incoming = Incoming(source, key, buffer)
        with self._lock:
            self._refuse_closed()
            self._incoming[source, key] = incoming
            if (early := self._early.pop((source, key), None)) is not None:
                self._come_in(source, key, early)
            if source != self._peers.own_rank:
                self._peers.need(source)  # only who is connected to it notices that it is gone
        return self._receiving(incoming)

    def _receiving(self, incoming: Incoming) -> Operation[Bytes]:
        seen = 0
        while not incoming.is_complete:
            has_all = self._go_on(incoming.key)
            if not incoming.is_complete:
                if has_all:
                    self._check(incoming.source)
                moved, seen = incoming.come > seen, incoming.come
                yield moved
        if incoming.problem is not None:
            raise incoming.problem
        assert incoming.buffer is not None
        return incoming.buffer

    def _go_on(self, key: Key) -> bool:
        """See what has come, and go on with something that was offered in the same channel; see :meth:`progress`."""
        is_still = not self._busy and time.monotonic() - self._emptied_at < _STILL_S
        has_all = is_still or self.progress()
        offered = self._offered.get(key[0])
        if offered and (incoming := offered.popleft()()) is not None:
            self._accept(incoming)
            if incoming.offer is not None:
                offered.appendleft(weakref.ref(incoming))
        return has_all

    def _accept(self, incoming: Incoming) -> None:
        """Go on with what was offered: read it where it lies, or have it sent."""
        source, key, offer = incoming.source, incoming.key, incoming.offer
        assert offer is not None
        card = self._peers.cards[source]
        is_read = card.host == self.card.host and incoming.read(card.pid, READ_BYTES)
        if is_read and incoming.come < offer.nbytes:
            return
        incoming.offer = None
        with self._lock:
            self._refuse_closed()
            if is_read:
                incoming.is_complete = True
                self._peers.put(source, packed(Kind.TAKEN, key))
                return
            incoming.come = 0
            keeper = self._doors.doorkeeper
            self._peers.put(source, packed(Kind.READY, key), keeper.password(source) + keeper.proof_key(source))

    def _check(self, other: int) -> None:
        """Whether there is any sense in waiting."""
        if self._peers.gone:
            raise CommError(
                f"{rank_names(self._peers.gone)} of this job: gone",
                found="the process has ended, or its host says nothing any more",
                where=f"rank {self._peers.own_rank}",
                todo="end the job and start it again; committed checkpoints are not affected",
            )
        if other in self._peers.ended:
            raise RanksDisagreeError(
                f"rank {other} has ended its session",
                expected="that it takes part in an exchange",
                where=f"rank {self._peers.own_rank}",
                todo="have all ranks make the same calls before they close their checkpointers",
            )
        with self._lock:
            self._refuse_closed()

    def tell(self, channel: int, row: Int64s) -> None:
        """Tell the others what is waited for in a channel; see :class:`RollCall`."""
        with self._lock:
            if not self._closed:
                self._roll_call.merge(channel, row)
                self._pass_on()

    def told(self, channel: int) -> Int64s:
        """What all ranks together have told of a channel, as far as it has come here."""
        self.progress()
        with self._lock:
            return self._roll_call.row(channel)

    def leave_channel(self, channel: int) -> None:
        """Nothing will be received in it any more."""
        with self._lock:
            self._left_channels.add(channel)
            self._roll_call.forget(channel)
            self._offered.pop(channel, None)
            for place in [place for place in self._early if place[1][0] == channel]:
                del self._early[place]

    def progress(self) -> bool:
        """Take in what has come, and send on, without waiting. Another thread that is at it does it for this one."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._closed or not self._peers.cards:
                return True
            has_all = self._take(self._doors.messages, self._on_message)
            has_all = self._take(self._doors.pieces, self._on_piece) and has_all
            for rank in list(self._busy):
                if not self._peers.push(rank):
                    self._busy.discard(rank)
            now = time.monotonic()
            self._emptied_at = now if has_all else 0.0
            if now - self._looked_at > _LOOK_S:
                self._looked_at = now
                self._peers.look_after(now)
                if now - self._told_at > _TELL_S:
                    self._told_at = now
                    self._pass_on()
            return has_all
        finally:
            self._lock.release()

    def close(self) -> None:
        """Tell the others that this rank ends the session, and give everything back. Waits two seconds at most."""
        if os.getpid() != self.card.pid:  # a forked child has none of it, and another thread may have held the lock
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._peers.cards:
                self._take(self._doors.messages, self._on_message)  # some may have ended the session: they hear nothing
                self._peers.look_after(time.monotonic())
                self._peers.say(Kind.ENDS, 0)
            self._finalizer.detach()
            _shut(self._peers, self._doors, _CLOSING_MS)

    # From here on everything is called with the lock.

    def _pass_on(self) -> None:
        """Tell the others what is new in the roll call."""
        for channel, row in self._roll_call.news():
            self._peers.tell_around(packed(Kind.WAITS, (channel, 0, 0)), row)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise CommError("the session has ended on this rank", where=f"rank {self._peers.own_rank}")

    def _take(self, socket: Socket, handle: Callable[[int, Sequence[zmq.Frame]], None]) -> bool:
        """Take in some of what has come; True if that was all."""
        for _ in range(_AT_ONCE):
            if not has_something(socket):
                return True
            frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            handle(int(frames[-1].get("User-Id")), frames)
        return not has_something(socket)

    def _on_message(self, rank: int, frames: Sequence[zmq.Frame]) -> None:
        route, message = (frame.bytes for frame in frames)
        kind, key, first, _ = unpacked(message)
        self._peers.connected[route] = rank
        if kind == Kind.SHORT:
            self._come_in(rank, key, np.frombuffer(message, dtype=np.uint8, offset=HEADER_BYTES))
        elif kind == Kind.OFFER:
            self._come_in(rank, key, Place.decode(message[HEADER_BYTES:]))
        elif kind == Kind.WAITS:
            if key[0] not in self._left_channels:
                self._roll_call.merge(key[0], np.frombuffer(message, dtype=np.int64, offset=HEADER_BYTES))
        elif kind in (Kind.ENDS, Kind.GONE):
            self._peers.hear(rank, kind, key)
        elif kind == Kind.STOOD:
            if (incoming := self._incoming.get((rank, key))) is not None:
                incoming.is_complete = True
        elif (outgoing := self._outgoing.get((rank, key))) is not None:  # otherwise it was given up
            if kind == Kind.TAKEN:
                outgoing.is_complete = True
                if first:
                    self._peers.put(rank, packed(Kind.STOOD, key))
            else:
                self._begin(rank, outgoing, message[HEADER_BYTES:])

    def _come_in(self, rank: int, key: Key, what: Bytes | Place) -> None:
        """A short message has come, or the offer of a long one."""
        incoming = self._incoming.get((rank, key))
        if incoming is None:
            if key[0] not in self._left_channels:
                self._early[rank, key] = what
            return
        nbytes = what.nbytes
        if incoming.buffer is None:
            incoming.buffer = np.empty(nbytes, dtype=np.uint8)
        if incoming.buffer.size != nbytes:
            incoming.problem = CommError(
                "another rank has sent a message of another length",
                expected=f"{incoming.buffer.size} bytes",
                found=f"{nbytes} bytes",
                where=f"from rank {rank} to rank {self._peers.own_rank}",
            )
            incoming.is_complete = True
        elif isinstance(what, Place):
            incoming.offer = what
            self._offered[key[0]].append(weakref.ref(incoming))
        else:
            incoming.buffer[:] = what
            incoming.come, incoming.is_complete = nbytes, True

    def _on_piece(self, rank: int, frames: Sequence[zmq.Frame]) -> None:
        route, header, data = frames
        kind, key, offset, _ = unpacked(header.buffer)
        if kind == Kind.HELLO:
            proof = prove(self._doors.doorkeeper.proof_key(rank), data.bytes)
            self._doors.pieces.send_multipart([route.bytes, packed(Kind.PROOF, key), proof], zmq.NOBLOCK)
            return
        incoming = self._incoming.get((rank, key))
        if incoming is None or incoming.buffer is None:
            return  # it was given up
        piece = np.frombuffer(data.buffer, dtype=np.uint8)
        incoming.buffer[offset : offset + piece.size] = piece
        incoming.come += piece.size
        if incoming.come == incoming.buffer.size:
            self._peers.put(rank, packed(Kind.TAKEN, key, 1))

    def _begin(self, to: int, outgoing: Outgoing, password: bytes) -> None:
        """A rank is ready for a long message: with what it lets this one in, and with what it proves who it is."""
        half = len(password) // 2
        self._peers.open_pieces(to, password[:half], password[half:]).waiting.append(weakref.ref(outgoing))
        self._busy.add(to)


def _shut(peers: Peers, doors: Doors, linger_ms: int) -> None:
    """Close all sockets. What is still to be sent has so long."""
    if os.getpid() == doors.card.pid:  # a forked child has none of them
        peers.close(linger_ms)
        doors.close(linger_ms)


class RollCall:
    """Who waits in which channel, as far as ranks have told each other: an error can name those that do not. Pure.

    A row has the number of the operation that each rank waits in, or 0; the larger number holds. What is new is passed
    on, so that all hear of all, though each rank talks to a few.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._rows: dict[int, Int64s] = {}
        self._new: set[int] = set()

    def merge(self, channel: int, row: Int64s) -> None:
        """What another rank, or this one, tells of a channel."""
        old = self._rows.setdefault(channel, np.zeros(self._size, dtype=np.int64))
        if row.size == old.size and (row > old).any():
            self._rows[channel] = np.maximum(old, row)
            self._new.add(channel)

    def row(self, channel: int) -> Int64s:
        """What is known of a channel."""
        return self._rows.get(channel, np.zeros(self._size, dtype=np.int64)).copy()

    def forget(self, channel: int) -> None:
        """Nobody will wait in it any more."""
        self._rows.pop(channel, None)
        self._new.discard(channel)

    def news(self) -> list[tuple[int, bytes]]:
        """Channels of which more is known than at the last call, and the row of each."""
        found = [(channel, self._rows[channel].tobytes()) for channel in sorted(self._new)]
        self._new.clear()
        return found
