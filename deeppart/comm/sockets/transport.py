"""Messages between the processes of one session, over ZeroMQ: authenticated, and encrypted except for long ones.

A rank has two sockets that others connect to when they first send something. Both accept only ranks of this session:
*messages* by CURVE, whose public keys the ranks exchange when they meet; *pieces* of long messages, which would be
three times as slow if encrypted, by a password that the receiver sends in a message. So a long message is first
offered, and sent when its receiver is ready. A receiver that may read the sender's memory, as is usual on one host,
does so instead.

Progress is only made in :meth:`Transport.progress`, which every operation calls while it waits, in any thread; and in
ZeroMQ's own thread, which does not need the interpreter lock.

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
from deeppart.comm.sockets.address import Address
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
from deeppart.comm.sockets.peer_memory import MemoryBlock
from deeppart.comm.sockets.peers import Peers
from deeppart.comm.sockets.presence import Presence
from deeppart.comm.sockets.rank_sockets import RankSockets, Socket, has_something
from deeppart.errors import CommError, RanksDisagreeError

#: Messages up to this length are sent at once; longer ones are offered.
SHORT_BYTES = 32 << 10
#: Bytes read from another process before other work is done.
READ_BYTES = 8 << 20
#: Messages received before the lock is released for other threads.
_AT_ONCE = 64
#: If several operations wait concurrently, the first one polls for all: nothing new arrives within this time.
_STILL_S = 30e-6
_LOOK_S = 10e-3
#: Interval at which presence is passed on.
_SPREAD_S = 0.1
#: Messages may be sent for this long after the session is closed.
_CLOSING_MS = 1000


class Transport:
    """The messages of one rank in one session.

    Attributes:
        address: the address for other ranks.
    """

    def __init__(self, sockets: RankSockets) -> None:
        self._lock = threading.Lock()  # guards the attributes below, and the sockets
        self._sockets, self.address = sockets, sockets.address
        self._peers = Peers(sockets)
        self._presence = Presence(0)
        self._busy: set[int] = set()  # ranks to which long messages are being sent
        self._outgoing: weakref.WeakValueDictionary[tuple[int, Key], Outgoing] = weakref.WeakValueDictionary()
        self._incoming: weakref.WeakValueDictionary[tuple[int, Key], Incoming] = weakref.WeakValueDictionary()
        #: Messages that arrived before they were waited for: a short message, or the memory block of a long one.
        self._early: dict[tuple[int, Key], Bytes | MemoryBlock] = {}
        #: For each channel the offered messages that are waited for. Only atomic operations.
        self._offered: defaultdict[int, deque[weakref.ref[Incoming]]] = defaultdict(deque)
        self._released_channels: set[int] = set()
        self._emptied_at, self._looked_at, self._spread_at = 0.0, 0.0, 0.0
        self._closed = False
        # For a session that never started, or is never closed. A weak reference rather than __del__: the collector may
        # finalize objects in a cycle in any order, but the sockets must be closed in order.
        self._finalizer = weakref.finalize(self, _shut, self._peers, sockets, 0)
        self._finalizer.atexit = False

    def set_addresses(self, addresses: Sequence[Address], rank: int, version: int) -> None:
        """Set the addresses of all ranks, in rank order, once they have met; again if one was replaced."""
        keys = [z85.decode(address.public_key) for address in addresses]
        with self._lock:
            self._busy -= self._peers.set_addresses(addresses, rank, version)
            self._presence = Presence(len(addresses))
        self._sockets.authenticator.allow(keys)

    def send(self, to: int, key: Key, data: Bytes | bytes) -> Operation[None]:
        """Send a message. The transfer starts at the call; ``data`` must not change until it ends."""
        array = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
        if not array.flags.c_contiguous:
            raise ValueError("a message must be contiguous in memory")
        with self._lock:
            self._refuse_closed()
            if to == self._peers.own_rank:
                self._on_arrival(to, key, array.copy())
                return immediately(None)
            if array.size <= SHORT_BYTES:
                self._peers.put(to, packed(Kind.SHORT, key), array.tobytes())
                return immediately(None)
            outgoing = self._outgoing[to, key] = Outgoing(key, array.data)  # lives as long as the operation
            self._peers.put(to, packed(Kind.OFFER, key), outgoing.block().encode())
        return self._sending(to, outgoing)

    def _sending(self, to: int, outgoing: Outgoing) -> Operation[None]:
        while not outgoing.is_complete:
            before = outgoing.sent
            has_all = self._continue(outgoing.key)
            if not outgoing.is_complete:
                if has_all:
                    self._check(to)
                yield outgoing.sent > before

    def receive(self, source: int, key: Key, buffer: Bytes | None = None) -> Operation[Bytes]:
        """Receive a message, into the buffer if there is one. The transfer starts at the call."""
        incoming = Incoming(source, key, buffer)
        with self._lock:
            self._refuse_closed()
            self._incoming[source, key] = incoming
            if (early := self._early.pop((source, key), None)) is not None:
                self._on_arrival(source, key, early)
            if source != self._peers.own_rank:
                self._peers.need(source)  # only a connected rank notices that the other one has gone
        return self._receiving(incoming)

    def _receiving(self, incoming: Incoming) -> Operation[Bytes]:
        seen = 0
        while not incoming.is_complete:
            has_all = self._continue(incoming.key)
            if not incoming.is_complete:
                if has_all:
                    self._check(incoming.source)
                moved, seen = incoming.come > seen, incoming.come
                yield moved
        if incoming.problem is not None:
            raise incoming.problem
        assert incoming.buffer is not None
        return incoming.buffer

    def _continue(self, key: Key) -> bool:
        """Handle arrived messages, and continue with an offered one of the same channel; see :meth:`progress`."""
        is_still = not self._busy and time.monotonic() - self._emptied_at < _STILL_S
        has_all = is_still or self.progress()
        offered = self._offered.get(key[0])
        if offered and (incoming := offered.popleft()()) is not None:
            self._accept(incoming)
            if incoming.offer is not None:
                offered.appendleft(weakref.ref(incoming))
        return has_all

    def _accept(self, incoming: Incoming) -> None:
        """Continue with an offered message: read it from the sender's memory, or request it."""
        source, key, offer = incoming.source, incoming.key, incoming.offer
        assert offer is not None
        address = self._peers.addresses[source]
        is_read = address.host == self.address.host and incoming.read(address.pid, READ_BYTES)
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
            authenticator = self._sockets.authenticator
            secret = authenticator.password(source) + authenticator.proof_key(source)
            self._peers.put(source, packed(Kind.READY, key), secret)

    def _check(self, other: int) -> None:
        """Raise if it is pointless to wait for a rank."""
        if self._peers.gone:
            raise CommError(
                f"{rank_names(self._peers.gone)} of this job: gone",
                found="the process has ended, or its host does not answer",
                where=f"rank {self._peers.own_rank}",
                todo="close the checkpointer and make one among the ranks that are left, or start the job again; "
                "committed checkpoints are not affected",
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

    def heartbeat(self, channel: int, row: Int64s) -> None:
        """Send the others the row of a channel; see :class:`Presence`."""
        with self._lock:
            if not self._closed:
                self._presence.merge(channel, row)
                self._spread_presence()

    def presence(self, channel: int) -> Int64s:
        """The row of a channel for all ranks."""
        self.progress()
        with self._lock:
            return self._presence.row(channel)

    def release_channel(self, channel: int) -> None:
        """Drop a channel on which nothing will be received again."""
        with self._lock:
            self._released_channels.add(channel)
            self._presence.forget(channel)
            self._offered.pop(channel, None)
            for place in [place for place in self._early if place[1][0] == channel]:
                del self._early[place]

    def progress(self) -> bool:
        """Receive and send without waiting. If another thread is doing so, it does the work for this one."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._closed or not self._peers.addresses:
                return True
            has_all = self._take(self._sockets.messages, self._on_message)
            has_all = self._take(self._sockets.pieces, self._on_piece) and has_all
            for rank in list(self._busy):
                if not self._peers.push(rank):
                    self._busy.discard(rank)
            now = time.monotonic()
            self._emptied_at = now if has_all else 0.0
            if now - self._looked_at > _LOOK_S:
                self._looked_at = now
                self._peers.check_connections(now)
                if now - self._spread_at > _SPREAD_S:
                    self._spread_at = now
                    self._spread_presence()
            return has_all
        finally:
            self._lock.release()

    def close(self) -> None:
        """Tell the others that this rank ends the session, and free everything. Waits two seconds at most."""
        if os.getpid() != self.address.pid:  # a forked child: another thread may have held the lock at the fork
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._peers.addresses:
                self._take(self._sockets.messages, self._on_message)  # some ranks may have ended the session already
                self._peers.check_connections(time.monotonic())
                self._peers.notify(Kind.ENDS, 0)
            self._finalizer.detach()
            _shut(self._peers, self._sockets, _CLOSING_MS)

    # All methods below are called with the lock held.

    def _spread_presence(self) -> None:
        for channel, row in self._presence.news():
            self._peers.spread(packed(Kind.WAITS, (channel, 0, 0)), row)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise CommError("the session has ended on this rank", where=f"rank {self._peers.own_rank}")

    def _take(self, socket: Socket, handle: Callable[[int, Sequence[zmq.Frame]], None]) -> bool:
        """Receive some messages from a socket; True if there were no more."""
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
            self._on_arrival(rank, key, np.frombuffer(message, dtype=np.uint8, offset=HEADER_BYTES))
        elif kind == Kind.OFFER:
            self._on_arrival(rank, key, MemoryBlock.decode(message[HEADER_BYTES:]))
        elif kind == Kind.WAITS:
            if key[0] not in self._released_channels:
                self._presence.merge(key[0], np.frombuffer(message, dtype=np.int64, offset=HEADER_BYTES))
        elif kind in (Kind.ENDS, Kind.GONE):
            self._peers.on_notice(rank, kind, key)
        elif kind == Kind.STOOD:
            if (incoming := self._incoming.get((rank, key))) is not None:
                incoming.is_complete = True
        elif (outgoing := self._outgoing.get((rank, key))) is not None:  # otherwise it was abandoned
            if kind == Kind.TAKEN:
                outgoing.is_complete = True
                if first:
                    self._peers.put(rank, packed(Kind.STOOD, key))
            else:
                self._begin(rank, outgoing, message[HEADER_BYTES:])

    def _on_arrival(self, rank: int, key: Key, what: Bytes | MemoryBlock) -> None:
        """Handle a short message, or the offer of a long one."""
        incoming = self._incoming.get((rank, key))
        if incoming is None:
            if key[0] not in self._released_channels:
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
        elif isinstance(what, MemoryBlock):
            incoming.offer = what
            self._offered[key[0]].append(weakref.ref(incoming))
        else:
            incoming.buffer[:] = what
            incoming.come, incoming.is_complete = nbytes, True

    def _on_piece(self, rank: int, frames: Sequence[zmq.Frame]) -> None:
        route, header, data = frames
        kind, key, offset, _ = unpacked(header.buffer)
        if kind == Kind.HELLO:
            proof = prove(self._sockets.authenticator.proof_key(rank), data.bytes)
            self._sockets.pieces.send_multipart([route.bytes, packed(Kind.PROOF, key), proof], zmq.NOBLOCK)
            return
        incoming = self._incoming.get((rank, key))
        if incoming is None or incoming.buffer is None:
            return  # it was abandoned
        piece = np.frombuffer(data.buffer, dtype=np.uint8)
        incoming.buffer[offset : offset + piece.size] = piece
        incoming.come += piece.size
        if incoming.come == incoming.buffer.size:
            self._peers.put(rank, packed(Kind.TAKEN, key, 1))

    def _begin(self, to: int, outgoing: Outgoing, password: bytes) -> None:
        """Begin to send a long message to a rank that is ready: with its password, and the key of its proof."""
        half = len(password) // 2
        self._peers.open_pieces(to, password[:half], password[half:]).waiting.append(weakref.ref(outgoing))
        self._busy.add(to)


def _shut(peers: Peers, sockets: RankSockets, linger_ms: int) -> None:
    """Close all sockets; messages may be sent for ``linger_ms``."""
    if os.getpid() == sockets.address.pid:  # a forked child uses none of them
        peers.close(linger_ms)
        sockets.close(linger_ms)
