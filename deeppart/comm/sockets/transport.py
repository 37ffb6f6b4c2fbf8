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

from deeppart.comm import trees
from deeppart.comm.base import Operation, immediately, rank_names
from deeppart.comm.channel import Comm
from deeppart.comm.messages import HEADER_BYTES, Bytes, Incoming, Key, Kind, Offer, packed, unpacked
from deeppart.comm.sockets import peer_memory
from deeppart.comm.sockets.address import Address
from deeppart.comm.sockets.long_messages import Outgoing, prove
from deeppart.comm.sockets.peers import Peers
from deeppart.comm.sockets.rank_sockets import RankSockets, Socket, has_something
from deeppart.comm.transport import Transport
from deeppart.errors import CommError, RanksDisagreeError

#: Bytes read from another process before other work is done.
READ_BYTES = 8 << 20
#: Messages received before the lock is released for other threads.
_AT_ONCE = 64
#: If several operations wait concurrently, the first one polls for all: nothing new arrives within this time.
_STILL_S = 30e-6
_LOOK_S = 10e-3
#: Channel number of messages before there is a channel.
_NO_CHANNEL = 0
#: Messages may be sent for this long after the session is closed.
_CLOSING_MS = 1000


class SocketTransport(Transport):
    """The messages of one session over sockets.

    Attributes:
        address: the address for other ranks.
    """

    def __init__(self, sockets: RankSockets) -> None:
        super().__init__(threading.Lock())
        self._sockets, self.address = sockets, sockets.address
        self._peers = Peers(sockets)
        self._busy: set[int] = set()  # ranks to which long messages are being sent
        self._outgoing: weakref.WeakValueDictionary[tuple[int, Key], Outgoing] = weakref.WeakValueDictionary()
        #: For each channel the offered messages that are waited for. Only atomic operations.
        self._offered: defaultdict[int, deque[tuple[weakref.ref[Incoming], Offer]]] = defaultdict(deque)
        self._emptied_at, self._looked_at = 0.0, 0.0
        # For a session that never started, or is never closed. A weak reference rather than __del__: the collector may
        # finalize objects in a cycle in any order, but the sockets must be closed in order.
        self._finalizer = weakref.finalize(self, _shut, self._peers, sockets, 0)
        self._finalizer.atexit = False

    def set_addresses(self, addresses: Sequence[Address], rank: int, version: int) -> None:
        """Set the addresses of all ranks, in rank order, once they have met; again if one was replaced."""
        keys = [z85.decode(address.public_key) for address in addresses]
        with self._lock:
            self._busy -= self._peers.set_addresses(addresses, rank, version)
            self._meet(rank, len(addresses))
        self._sockets.authenticator.allow(keys)

    def _sending(self, to: int, outgoing: Outgoing) -> Operation[None]:
        while not outgoing.is_complete:
            before = outgoing.sent
            has_all = self._continue(outgoing.key)
            if not outgoing.is_complete:
                if has_all:
                    self._check(to)
                yield outgoing.sent > before

    def _continue(self, key: Key) -> bool:
        """Handle arrived messages, and continue with an offered one of the same channel; see :meth:`progress`."""
        is_still = not self._busy and time.monotonic() - self._emptied_at < _STILL_S
        has_all = is_still or self.progress()
        offered = self._offered.get(key[0])
        if offered:
            reference, offer = offered.popleft()
            if (incoming := reference()) is not None and not self._fetch(incoming, offer):
                offered.appendleft((reference, offer))
        return has_all

    def _fetch(self, incoming: Incoming, offer: Offer) -> bool:
        """Continue with an offered message: read it from the sender's memory, or request it; False if there is more."""
        source, key, address = incoming.source, incoming.key, self._peers.addresses[incoming.source]
        is_read = address.host == self.address.host and _read(incoming, offer, address.pid)
        if is_read and incoming.come < offer.nbytes:
            return False
        with self._lock:
            self._refuse_closed()
            if is_read:
                self._peers.put(source, packed(Kind.TAKEN, key))
                return True
            incoming.come = 0
            authenticator = self._sockets.authenticator
            secret = authenticator.password(source) + authenticator.proof_key(source)
            self._peers.put(source, packed(Kind.READY, key) + secret)
        return True

    def _check(self, other: int) -> None:
        """Raise if it is pointless to wait for a rank."""
        if self._peers.gone:
            raise CommError(
                f"{rank_names(self._peers.gone)} of this job: gone",
                found="the process has ended, or its host does not answer",
                where=f"rank {self.rank}",
                todo="close the checkpointer and make one among the ranks that are left, or start the job again; "
                "committed checkpoints are not affected",
            )
        if other in self._peers.ended:
            raise RanksDisagreeError(
                f"rank {other} has ended its session",
                expected="that it takes part in an exchange",
                where=f"rank {self.rank}",
                todo="have all ranks make the same calls before they close their checkpointers",
            )
        with self._lock:
            self._refuse_closed()
            if other != self.rank:
                self._peers.need(other)  # only a connected rank notices that the other one has gone

    def progress(self) -> bool:
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._closed or not self._peers.addresses:
                return True
            has_all = self._take(self._sockets.messages, self._on_frames)
            has_all = self._take(self._sockets.pieces, self._on_piece) and has_all
            for rank in list(self._busy):
                if not self._peers.push(rank):
                    self._busy.discard(rank)
            now = time.monotonic()
            self._emptied_at = now if has_all else 0.0
            if now - self._looked_at > _LOOK_S:
                self._looked_at = now
                self._peers.check_connections(now)
                self.pass_on_presence(now)
            return has_all
        finally:
            self._lock.release()

    def close(self) -> None:
        """Also tell the others, and free everything. Waits two seconds at most."""
        if os.getpid() != self.pid:  # another thread may have held the lock at the fork
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._peers.addresses:
                self._take(self._sockets.messages, self._on_frames)  # some ranks may have ended the session already
                self._peers.check_connections(time.monotonic())
                self._peers.notify(Kind.ENDS, 0)
            self._finalizer.detach()
            _shut(self._peers, self._sockets, _CLOSING_MS)

    # All methods below are called with the lock held.

    def _put(self, to: int, message: bytes) -> Operation[None]:
        self._peers.put(to, message)
        return immediately(None)

    def _tell(self, to: int, message: bytes) -> None:
        self._peers.tell(to, message)

    def _offer(self, to: int, key: Key, array: Bytes) -> Operation[None]:
        outgoing = self._outgoing[to, key] = Outgoing(key, array.data)  # lives as long as the operation
        self._peers.put(to, packed(Kind.OFFER, key, array.size, array.ctypes.data))
        return self._sending(to, outgoing)

    def _accept(self, incoming: Incoming, offer: Offer) -> None:
        self._offered[incoming.key[0]].append((weakref.ref(incoming), offer))

    def _take(self, socket: Socket, handle: Callable[[int, Sequence[zmq.Frame]], None]) -> bool:
        """Receive some messages from a socket; True if there were no more."""
        for _ in range(_AT_ONCE):
            if not has_something(socket):
                return True
            frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            handle(int(frames[-1].get("User-Id")), frames)
        return not has_something(socket)

    def _on_frames(self, rank: int, frames: Sequence[zmq.Frame]) -> None:
        route, message = (frame.bytes for frame in frames)
        kind, key, _, _ = unpacked(message)
        self._peers.connected[route] = rank
        if kind in (Kind.SHORT, Kind.OFFER, Kind.WAITS):
            self._on_message(rank, message)
        elif kind in (Kind.ENDS, Kind.GONE):
            self._peers.on_notice(rank, kind, key)
        elif kind == Kind.STOOD:
            if (incoming := self._incoming.get((rank, key))) is not None:
                incoming.is_complete = True
        elif (outgoing := self._outgoing.get((rank, key))) is not None:  # otherwise it was abandoned
            if kind == Kind.TAKEN:
                outgoing.is_complete = True
                self._peers.put(rank, packed(Kind.STOOD, key))
            else:
                self._begin(rank, outgoing, message[HEADER_BYTES:])

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
            self._peers.put(rank, packed(Kind.TAKEN, key))

    def _begin(self, to: int, outgoing: Outgoing, password: bytes) -> None:
        """Begin to send a long message to a rank that is ready: with its password, and the key of its proof."""
        half = len(password) // 2
        self._peers.open_pieces(to, password[:half], password[half:]).waiting.append(weakref.ref(outgoing))
        self._busy.add(to)


def _read(incoming: Incoming, offer: Offer, pid: int) -> bool:
    """Read more of a message from the sender's memory; False if that is forbidden, or the memory is gone."""
    assert incoming.buffer is not None
    part = incoming.buffer[incoming.come : incoming.come + READ_BYTES]
    try:
        peer_memory.read_memory(pid, offer.place + incoming.come, part)
    except OSError:
        return False
    incoming.come += part.size
    return True


def _shut(peers: Peers, sockets: RankSockets, linger_ms: int) -> None:
    """Close all sockets; messages may be sent for ``linger_ms``."""
    if os.getpid() == sockets.address.pid:  # a forked child uses none of them
        peers.close(linger_ms)
        sockets.close(linger_ms)


def connect_all(
    transport: SocketTransport, rank: int, addresses: Sequence[Address], version: int = 1
) -> Operation[Comm]:
    """The first channel of a session, once every rank has the same version of the addresses (collective)."""
    _check_hosts(addresses)
    transport.set_addresses(addresses, rank, version)
    agreeing = trees.maximum(trees.Collective(transport, _NO_CHANNEL, version), np.zeros(1, dtype=np.int64))

    def connected() -> Operation[Comm]:
        yield from agreeing
        return Comm(transport)

    return connected()


def _check_hosts(addresses: Sequence[Address]) -> None:
    """Check that other hosts can reach the addresses."""
    if len({address.host for address in addresses}) == 1:
        return
    local = [rank for rank, each in enumerate(addresses) if each.messages.startswith(("tcp://127.", "tcp://[::1]"))]
    if local:
        raise CommError(
            f"{rank_names(local)} listen where only their own host can reach them",
            expected="the address of an interface that the nodes reach each other on",
            found=addresses[local[0]].messages,
            todo="set MASTER_ADDR to a name that is no local one, or GLOO_SOCKET_IFNAME to the interface's name",
        )
