"""Messages between the processes of one session, over ZeroMQ: encrypted, except for long ones, and from nobody else.

A rank has two sockets that others connect to, when they first have something for it. Both take only what proves to be a
rank of this session: *messages* by CURVE, whose public keys the ranks exchange when they meet; *pieces* of long
messages, which would be four times as slow encrypted, by a password that the receiver gives to the sender in a message.
So a long one is offered first, and sent when its receiver is ready for it. A receiver that may read the sender's
memory, as ranks of one host mostly may, does so instead.

Nothing moves but in :meth:`Transport.progress`, which every operation calls while it waits, in whatever thread; and in
ZeroMQ's own thread, which needs no lock of the interpreter.

Sources: rfc.zeromq.org/spec/23 (ZMTP), 25 (CURVE), 24 (PLAIN), 27 (ZAP).
"""

from __future__ import annotations

import os
import secrets
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from deeppart.comm.base import Int64s, Operation, immediately, rank_names
from deeppart.comm.sockets.card import Card, host_name
from deeppart.comm.sockets.doorkeeper import MESSAGES, PIECES, Doorkeeper
from deeppart.comm.sockets.peer_memory import read_memory
from deeppart.comm.sockets.trees import neighbours
from deeppart.errors import CommError

Bytes = npt.NDArray[np.uint8]
#: Channel, tag and number of a message: between two ranks no two messages of a session have the same.
Key = tuple[int, int, int]

#: A message of at most so many bytes is sent at once; a longer one is offered.
SHORT_BYTES = 32 << 10
#: A long one is cut into pieces, of which so many are on their way to one rank at a time.
PIECE_BYTES, PIECES_AT_ONCE = 1 << 20, 8
#: How much is read from another process between two looks at everything else.
READ_BYTES = 8 << 20
#: Messages taken in before others get the lock.
_AT_ONCE = 64
_LOOK_S = 10e-3
#: What is waited for is passed on after so long: to everybody where there are few ranks, otherwise to neighbours.
_TELL_S, _FEW = 0.1, 64
_CLOSING_MS = 2000
_RETRY_MS, _MOST_RETRIES = 100, 5
_HEARTBEAT_MS = 5000

#: kind, channel, tag, number, length or offset, address in the sender's memory
_HEADER = struct.Struct("<BIqqQQ")
_SHORT, _OFFER, _READY, _TAKEN, _PIECE, _WAITS, _ENDS, _GONE = range(8)
_EVENTS = zmq.Event.DISCONNECTED | zmq.Event.CONNECT_RETRIED | zmq.Event.HANDSHAKE_SUCCEEDED


@dataclass(slots=True, weakref_slot=True)
class _Incoming:
    """A message that is waited for. The buffer is filled, if there is one."""

    buffer: Bytes | None
    come: int = 0
    problem: CommError | None = None
    is_near: bool = True  # it may be possible to read the sender's memory
    #: In the sender's memory: address and length of what was offered.
    offer: tuple[int, int] | None = None
    is_complete: bool = False


@dataclass(slots=True)
class _Outgoing:
    """A long message. It is kept until the receiver has it."""

    key: Key
    data: memoryview
    password: bytes | None = None
    sent: int = 0
    flying: int = 0
    is_complete: bool = False


@dataclass(slots=True)
class _Peer:
    """Another rank, as far as this one has had to do with it."""

    messages: zmq.Socket[bytes]
    monitor: zmq.Socket[bytes]
    pieces: zmq.Socket[bytes] | None = None
    retries: int = 0
    is_needed: bool = False
    #: Long messages that it is ready for, in this order; and pieces that are on their way, of which message.
    sending: deque[_Outgoing] = field(default_factory=deque)
    flying: deque[tuple[zmq.MessageTracker, _Outgoing]] = field(default_factory=deque)

    def close(self, linger_ms: int) -> None:
        """What is still to be sent to it has so long."""
        self.messages.disable_monitor()
        for socket in (self.monitor, self.messages, self.pieces):
            if socket is not None:
                socket.close(linger_ms)


class Transport:
    """Of one rank in one session.

    Args:
        interface: the address of this machine, or the name of the interface, on which others reach it.
        call: see :class:`Card`.
        silence_s: after so long a host that says nothing is taken for gone.

    Attributes:
        card: how others reach this rank.
        gone: ranks whose process, or host, is not there any more.
        ended: ranks that have ended the session.

    Raises:
        CommError: there is no such interface, or no socket to be had.
    """

    def __init__(self, interface: str, call: str, silence_s: float) -> None:
        self._lock = threading.Lock()  # guards all that follows, and the sockets
        self._rank, self._cards, self._version = -1, tuple[Card, ...](), 0
        self._peers: dict[int, _Peer] = {}
        self._busy: set[int] = set()  # to whom long messages are on their way
        self._outgoing: dict[tuple[int, Key], _Outgoing] = {}
        self._incoming: weakref.WeakValueDictionary[tuple[int, Key], _Incoming] = weakref.WeakValueDictionary()
        #: What has come before it was waited for: a short message, or the address and length of a long one.
        self._early: dict[tuple[int, Key], Bytes | tuple[int, int]] = {}
        self._closed_channels: set[int] = set()
        self._waits: dict[int, Int64s] = {}
        self._untold: set[int] = set()  # channels whose row of the above has changed
        self._connected: dict[bytes, int] = {}  # routing id of those that have sent something -> rank
        self._looked_at, self._told_at = 0.0, 0.0
        self._closed, self._pid = False, os.getpid()
        self.gone: set[int] = set()
        self.ended: set[int] = set()
        self._public, self._private = zmq.curve_keypair()
        self._silence_ms = max(2 * _HEARTBEAT_MS, int(1000 * silence_s))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        try:
            self._doorkeeper = Doorkeeper(self._context, secrets.token_bytes(32))
            self._messages = self._bound(interface, MESSAGES)
            self._pieces = self._bound(interface, PIECES)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise CommError(
                "cannot listen for the other ranks",
                found=str(error),
                where=f"interface {interface}",
                todo="set GLOO_SOCKET_IFNAME to the interface on which the nodes reach each other (`ip address`)",
            ) from error
        address, bulk = (socket.getsockopt_string(zmq.LAST_ENDPOINT) for socket in (self._messages, self._pieces))
        self.card = Card(address, bulk, self._public.decode(), host_name(), self._pid, call)

    def _bound(self, interface: str, domain: bytes) -> zmq.Socket[bytes]:
        socket = self._new_socket(zmq.ROUTER, interface)
        socket.zap_domain, socket.zap_enforce_domain = domain, 1
        if domain == MESSAGES:
            socket.curve_server, socket.curve_secretkey = 1, self._private
        else:
            socket.plain_server = 1
        socket.router_handover = 1
        socket.rcvhwm = PIECES_AT_ONCE  # what has not been taken waits at its sender
        host = f"[{interface}]" if ":" in interface else interface
        socket.bind(f"tcp://{host}:*")
        return socket

    def _new_socket(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.linger, socket.ipv6 = _CLOSING_MS, int(":" in address.removeprefix("tcp://").rpartition(":")[0])
        socket.heartbeat_ivl, socket.heartbeat_timeout = _HEARTBEAT_MS, self._silence_ms
        socket.sndhwm, socket.backlog = 0, 4096
        return socket

    def know(self, cards: Sequence[Card], rank: int, version: int) -> None:
        """The ranks have met: who they are, in rank order. May be called again, if another one has come in one's place.

        Args:
            cards: of all ranks.
            rank: this one.
            version: of the cards; what others say of those that were here before is nothing any more.

        Raises:
            ValueError: a key that is none.
        """
        keys = [z85.decode(card.public_key) for card in cards]
        with self._lock:
            for place, (old, new) in enumerate(zip(self._cards, cards, strict=False)):
                if old != new:
                    self._forget(place)
            self._rank, self._cards, self._version = rank, tuple(cards), version
        self._doorkeeper.let_in(keys)

    def _forget(self, rank: int) -> None:
        peer = self._peers.pop(rank, None)
        self.gone.discard(rank)
        self.ended.discard(rank)
        if peer is not None:
            peer.close(0)

    def send(self, to: int, key: Key, data: Bytes | bytes) -> Operation[None]:
        """Send a message. The transfer starts at the call; ``data`` must stay as it is until it ends."""
        view = memoryview(data).cast("B")
        with self._lock:
            self._refuse_closed()
            if to == self._rank:
                self._come_in(to, key, np.frombuffer(bytes(view), dtype=np.uint8))
                return immediately(None)
            if view.nbytes <= SHORT_BYTES:
                self._put(to, _SHORT, key, 0, 0, bytes(view))
                return immediately(None)
            outgoing = self._outgoing[to, key] = _Outgoing(key, view)
            address = np.frombuffer(view, dtype=np.uint8).ctypes.data
            self._put(to, _OFFER, key, view.nbytes, address)
        return self._sending(to, outgoing)

    def _sending(self, to: int, outgoing: _Outgoing) -> Operation[None]:
        try:
            while True:
                before = outgoing.sent
                self.progress()
                if outgoing.is_complete:
                    return
                self._check(to)
                yield outgoing.sent > before
        finally:
            with self._lock:
                self._outgoing.pop((to, outgoing.key), None)

    def receive(self, source: int, key: Key, buffer: Bytes | None = None) -> Operation[Bytes]:
        """A message; into the buffer, if there is one. The transfer starts at the call."""
        incoming = _Incoming(buffer)
        with self._lock:
            self._refuse_closed()
            self._incoming[source, key] = incoming
            if (early := self._early.pop((source, key), None)) is not None:
                self._come_in(source, key, early)
            if source != self._rank:
                self._peer(source).is_needed = True  # only who is connected to it notices that it is gone
        return self._receiving(source, key, incoming)

    def _receiving(self, source: int, key: Key, incoming: _Incoming) -> Operation[Bytes]:
        while not incoming.is_complete:
            before = incoming.come
            if incoming.offer is not None:
                self._accept(source, key, incoming)
            self.progress()
            if not incoming.is_complete:
                self._check(source)
                yield incoming.come > before
        if incoming.problem is not None:
            raise incoming.problem
        assert incoming.buffer is not None
        return incoming.buffer

    def _accept(self, source: int, key: Key, incoming: _Incoming) -> None:
        """Go on with what was offered: read it where it lies, or have it sent."""
        assert incoming.offer is not None
        assert incoming.buffer is not None
        address, nbytes = incoming.offer
        card = self._cards[source]
        if card.host == self.card.host and incoming.is_near:
            part = incoming.buffer[incoming.come : incoming.come + READ_BYTES]
            try:
                read_memory(card.pid, address + incoming.come, part)
            except OSError:
                incoming.is_near, incoming.come = False, 0
                return
            incoming.come += part.size
            if incoming.come < nbytes:
                return
            incoming.is_complete = True
        incoming.offer = None
        with self._lock:
            self._refuse_closed()
            if incoming.is_complete:
                self._put(source, _TAKEN, key, 0, 0)
            else:
                self._put(source, _READY, key, 0, 0, self._doorkeeper.password(source))

    def _check(self, other: int) -> None:
        """Whether there is any sense in waiting.

        Raises:
            CommError: there is none.
        """
        if self.gone:
            raise CommError(
                f"{rank_names(self.gone)} of this job: gone",
                found="the process has ended, or its host says nothing any more",
                where=f"rank {self._rank}",
                todo="end the job and start it again; committed checkpoints are not affected",
            )
        if other in self.ended:
            raise CommError(
                f"rank {other} has ended its session",
                expected="that it takes part in an exchange",
                where=f"rank {self._rank}",
                todo="have all ranks make the same calls before they close their checkpointers",
            )
        with self._lock:
            self._refuse_closed()

    def tell(self, channel: int, waits: Int64s) -> None:
        """Tell the others what is waited for in a channel: of each rank the operation, or 0."""
        with self._lock:
            self._merge(channel, waits)

    def told(self, channel: int) -> Int64s:
        """What all ranks together have told of a channel, as far as it has come here."""
        self.progress()
        with self._lock:
            return self._waits.get(channel, np.zeros(len(self._cards), dtype=np.int64)).copy()

    def leave_channel(self, channel: int) -> None:
        """Nothing will be received in it any more."""
        with self._lock:
            self._closed_channels.add(channel)
            self._waits.pop(channel, None)
            for place in [place for place in self._early if place[1][0] == channel]:
                del self._early[place]

    def progress(self) -> None:
        """Take in what has come, and send on, without waiting. Another thread that is at it does it for this one."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._closed or not self._cards:
                return
            self._take(self._messages, self._on_message)
            self._take(self._pieces, self._on_piece)
            self._push()
            now = time.monotonic()
            if now - self._looked_at > _LOOK_S:
                self._looked_at = now
                self._look_after_peers(now)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Tell the others that this rank ends the session, and give everything back. Waits two seconds at most."""
        with self._lock:
            if self._closed or os.getpid() != self._pid:  # a forked child has none of it
                return
            self._closed = True
            if self._cards:
                self._take(self._messages, self._on_message)  # some may have ended the session: they hear nothing
                self._look_after_peers(time.monotonic())
                self._say(_ENDS, (0, self._version, 0))
            self._shut(_CLOSING_MS)

    def __del__(self) -> None:
        """Nobody has given it back: a session that never started, or was dropped."""
        if not getattr(self, "_closed", True) and os.getpid() == self._pid:
            self._closed = True
            self._shut(linger_ms=0)

    # From here on everything is called with the lock.

    def _shut(self, linger_ms: int) -> None:
        """Close all sockets. What is still to be sent has so long."""
        for peer in self._peers.values():
            peer.close(linger_ms)
        self._messages.close(linger_ms)
        self._pieces.close(linger_ms)
        self._doorkeeper.let_in(())
        self._context.term()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise CommError("the session has ended on this rank", where=f"rank {self._rank}")

    def _peer(self, rank: int) -> _Peer:
        """Another rank; connects to it the first time."""
        peer = self._peers.get(rank)
        if peer is None:
            card = self._cards[rank]
            socket = self._new_socket(zmq.DEALER, card.address)
            socket.curve_serverkey = card.public_key.encode()
            socket.curve_publickey, socket.curve_secretkey = self._public, self._private
            socket.reconnect_ivl = _RETRY_MS
            monitor = socket.get_monitor_socket(_EVENTS)
            socket.connect(card.address)
            peer = self._peers[rank] = _Peer(socket, monitor)
        return peer

    def _put(
        self, to: int, kind: int, key: Key, first: int, second: int, data: bytes = b"", needed: bool = True
    ) -> None:
        peer = self._peer(to)
        peer.is_needed |= needed
        peer.messages.send_multipart([_HEADER.pack(kind, *key, first, second), data])

    def _take(self, socket: zmq.Socket[bytes], handle: Callable[[int, Sequence[zmq.Frame]], None]) -> None:
        for _ in range(_AT_ONCE):
            if not socket.get(zmq.EVENTS) & zmq.POLLIN:
                return
            frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            handle(int(frames[-1].get("User-Id")), frames)

    def _on_message(self, rank: int, frames: Sequence[zmq.Frame]) -> None:
        route, header, data = frames
        kind, *three, first, second = _HEADER.unpack(header.buffer)
        key = (three[0], three[1], three[2])
        self._connected[route.bytes] = rank
        if kind == _SHORT:
            self._come_in(rank, key, np.frombuffer(data.bytes, dtype=np.uint8))
        elif kind == _OFFER:
            self._come_in(rank, key, (second, first))
        elif kind in (_READY, _TAKEN):
            if (outgoing := self._outgoing.get((rank, key))) is None:
                return  # it was given up
            if kind == _TAKEN:
                outgoing.is_complete = True
            else:
                self._begin(rank, outgoing, data.bytes)
        else:
            self._on_word(rank, kind, key, data.bytes)

    def _on_word(self, rank: int, kind: int, key: Key, data: bytes) -> None:
        if kind == _WAITS:
            if key[0] not in self._closed_channels:
                self._merge(key[0], np.frombuffer(data, dtype=np.int64))
        elif key[1] != self._version:
            return  # of a rank in whose place another has come
        elif kind == _ENDS:
            self.ended.add(rank)
        elif kind == _GONE:
            self._lose(key[0])

    def _come_in(self, rank: int, key: Key, what: Bytes | tuple[int, int]) -> None:
        """A short message has come, or the offer of a long one."""
        incoming = self._incoming.get((rank, key))
        if incoming is None:
            if key[0] not in self._closed_channels:
                self._early[rank, key] = what
            return
        nbytes = what[1] if isinstance(what, tuple) else what.size
        if incoming.buffer is None:
            incoming.buffer = np.empty(nbytes, dtype=np.uint8)
        if incoming.buffer.size != nbytes:
            incoming.problem = CommError(
                "another rank has sent a message of another length",
                expected=f"{incoming.buffer.size} bytes",
                found=f"{nbytes} bytes",
                where=f"from rank {rank} to rank {self._rank}",
            )
            incoming.is_complete = True
        elif isinstance(what, tuple):
            incoming.offer = what
        else:
            incoming.buffer[:] = what
            incoming.come, incoming.is_complete = nbytes, True

    def _on_piece(self, rank: int, frames: Sequence[zmq.Frame]) -> None:
        _, header, data = frames
        _, *three, offset, _ = _HEADER.unpack(header.buffer)
        incoming = self._incoming.get((rank, (three[0], three[1], three[2])))
        if incoming is None or incoming.buffer is None:
            return  # it was given up
        piece = np.frombuffer(data.buffer, dtype=np.uint8)
        incoming.buffer[offset : offset + piece.size] = piece
        incoming.come += piece.size
        incoming.is_complete = incoming.come == incoming.buffer.size

    def _begin(self, to: int, outgoing: _Outgoing, password: bytes) -> None:
        """A rank is ready for a long message."""
        peer = self._peer(to)
        if peer.pieces is None:
            address = self._cards[to].bulk_address
            peer.pieces = self._new_socket(zmq.DEALER, address)
            peer.pieces.plain_username, peer.pieces.plain_password = str(self._rank).encode(), password
            peer.pieces.sndhwm, peer.pieces.reconnect_ivl = PIECES_AT_ONCE, _RETRY_MS
            peer.pieces.connect(address)
        peer.sending.append(outgoing)
        self._busy.add(to)

    def _push(self) -> None:
        """Send pieces of long messages, as many as may be on their way."""
        for rank in list(self._busy):
            peer = self._peers[rank]
            while peer.flying and peer.flying[0][0].done:
                _, outgoing = peer.flying.popleft()
                outgoing.flying -= 1
                outgoing.is_complete = outgoing.sent == outgoing.data.nbytes and not outgoing.flying
            while peer.sending and len(peer.flying) < PIECES_AT_ONCE and self._send_piece(peer, peer.sending[0]):
                if peer.sending[0].sent == peer.sending[0].data.nbytes:
                    peer.sending.popleft()
            if not peer.sending and not peer.flying:
                self._busy.discard(rank)

    def _send_piece(self, peer: _Peer, outgoing: _Outgoing) -> bool:
        assert peer.pieces is not None
        at = outgoing.sent
        header = _HEADER.pack(_PIECE, *outgoing.key, at, 0)
        piece = outgoing.data[at : at + PIECE_BYTES]
        try:
            tracker = peer.pieces.send_multipart([header, piece], zmq.NOBLOCK, copy=False, track=True)
        except zmq.Again:
            return False
        outgoing.sent += piece.nbytes
        outgoing.flying += 1
        peer.flying.append((tracker, outgoing))
        return True

    def _merge(self, channel: int, waits: Int64s) -> None:
        old = self._waits.setdefault(channel, np.zeros(len(self._cards), dtype=np.int64))
        if waits.size == old.size and (waits > old).any():
            self._waits[channel] = np.maximum(old, waits)
            self._untold.add(channel)

    def _look_after_peers(self, now: float) -> None:
        """What need not be done at once: who is gone, and what is to be passed on."""
        for rank, peer in list(self._peers.items()):
            self._hear(peer, rank)
            while peer.monitor.get(zmq.EVENTS) & zmq.POLLIN:
                event = recv_monitor_message(peer.monitor, zmq.NOBLOCK)["event"]
                peer.retries += event == zmq.Event.CONNECT_RETRIED
                self._hear(peer, rank)  # what it has said before it went
                is_gone = event == zmq.Event.DISCONNECTED or (peer.is_needed and peer.retries > _MOST_RETRIES)
                if is_gone and rank not in self.ended:
                    self._lose(rank)
        if self._untold and now - self._told_at > _TELL_S:
            self._told_at = now
            near = neighbours(self._rank, len(self._cards))
            to = near if len(self._cards) > _FEW else [each for each in range(len(self._cards)) if each != self._rank]
            for channel in self._untold:
                for rank in set(to) - self.ended - self.gone:
                    self._put(rank, _WAITS, (channel, 0, 0), 0, 0, self._waits[channel].tobytes(), needed=False)
            self._untold.clear()

    def _hear(self, peer: _Peer, rank: int) -> None:
        """What a rank has sent the other way."""
        while peer.messages.get(zmq.EVENTS) & zmq.POLLIN:
            header, data = peer.messages.recv_multipart(zmq.NOBLOCK)
            kind, *three, _, _ = _HEADER.unpack(header)
            self._on_word(rank, kind, (three[0], three[1], three[2]), data)

    def _lose(self, rank: int) -> None:
        """A rank is gone: all whom this one is connected to hear of it, and pass it on."""
        if rank in self.gone or rank == self._rank:
            return
        self.gone.add(rank)
        self._say(_GONE, (rank, self._version, 0))

    def _say(self, kind: int, key: Key) -> None:
        """Tell all whom this rank is connected with."""
        over = self.gone | self.ended
        for rank in self._peers.keys() - over:
            self._put(rank, kind, key, 0, 0, needed=False)
        for route, rank in self._connected.items():
            if rank not in self._peers and rank not in over:
                self._messages.send_multipart([route, _HEADER.pack(kind, *key, 0, 0), b""])
