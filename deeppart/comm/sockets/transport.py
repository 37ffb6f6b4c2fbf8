"""Messages between the processes of one session, over ZeroMQ: authenticated, and encrypted except for long ones.

A rank has two sockets that others connect to when they first need to. Both accept only ranks of this session:
*messages* by CURVE, whose public keys the ranks exchange when they meet; *pieces* of long messages, which would be
three times as slow if encrypted, by a password. A long message is offered in a message that has the password; its
receiver requests it piece by piece. A receiver that may read the sender's memory, as is usual on one host, does so
instead. Either way it has the message once the sender has confirmed, in a message, that it still offers it: by then
another process might have the sender's process id or port, and all that it sends would be worthless.

Progress is only made in :meth:`Transport.progress`, which every operation calls while it waits, in any thread; and in
ZeroMQ's own thread, which does not need the interpreter lock.

Sources: rfc.zeromq.org/spec/23 (ZMTP), 25 (CURVE), 24 (PLAIN), 27 (ZAP).
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import zmq
from zmq.utils import z85

from deeppart.comm import trees
from deeppart.comm.base import Operation, rank_names
from deeppart.comm.channel import Comm
from deeppart.comm.messages import HEADER_BYTES, Bytes, Key, Kind, Offer, Transfer, packed, unpacked
from deeppart.comm.sockets import peer_memory
from deeppart.comm.sockets.address import Address
from deeppart.comm.sockets.peers import Peers
from deeppart.comm.sockets.rank_sockets import RankSockets, Socket, has_something
from deeppart.comm.transport import Transport
from deeppart.errors import CommError, RanksDisagreeError

#: Bytes read from another process before other work is done.
READ_BYTES = 8 << 20
#: Pieces of a long message, and how many of them are requested in advance.
PIECE_BYTES, _PIECES_AT_ONCE = 1 << 20, 8
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
        self._outgoing: weakref.WeakValueDictionary[tuple[int, Key], Transfer] = weakref.WeakValueDictionary()
        #: How many pieces each rank has still to send.
        self._requested = Counter[int]()
        #: For each channel the offered messages that are waited for. Only atomic operations.
        self._offered: defaultdict[int, deque[tuple[weakref.ref[Transfer], Offer]]] = defaultdict(deque)
        self._emptied_at, self._looked_at = 0.0, 0.0
        # For a session that never started, or is never closed. A weak reference rather than __del__: the collector may
        # finalize objects in a cycle in any order, but the sockets must be closed in order.
        self._finalizer = weakref.finalize(self, _shut, self._peers, sockets, 0)
        self._finalizer.atexit = False

    def set_addresses(self, addresses: Sequence[Address], rank: int, version: int) -> None:
        """Set the addresses of all ranks, in rank order, once they have met; again if one was replaced."""
        keys = [z85.decode(address.public_key) for address in addresses]
        with self._lock:
            for replaced in self._peers.set_addresses(addresses, rank, version):
                del self._requested[replaced]
            self._meet(rank, len(addresses))
        self._sockets.authenticator.allow(keys)

    def _continue(self, key: Key) -> bool:
        """Handle arrived messages, and continue with an offered one of the same channel; see :meth:`progress`."""
        is_still = time.monotonic() - self._emptied_at < _STILL_S
        has_all = is_still or self.progress()
        offered = self._offered.get(key[0])
        if offered:
            reference, offer = offered.popleft()
            if (incoming := reference()) is not None and not self._fetch(incoming, offer):
                offered.appendleft((reference, offer))
        return has_all

    def _fetch(self, incoming: Transfer, offer: Offer) -> bool:
        """Continue with an offered message: read the sender's memory, or request pieces; False if there is more."""
        source, key, address = incoming.other, incoming.key, self._peers.addresses[incoming.other]
        is_read = address.host == self.address.host and _read(incoming, offer, address.pid)
        if is_read and incoming.moved < offer.nbytes:
            return False
        with self._lock:
            self._refuse_closed()
            if is_read:
                self._peers.put(source, packed(Kind.TAKEN, key))
                return True
            incoming.moved = 0
            self._peers.open_pieces(source, offer.password)
            for offset in range(0, offer.nbytes, PIECE_BYTES)[:_PIECES_AT_ONCE]:
                self._request(source, key, offset)
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

    # All methods below are called with the lock held.

    def _progress(self) -> bool:
        if not self._peers.addresses:
            return True
        has_all = self._take(self._sockets.messages, self._on_frames)
        has_all = self._take(self._sockets.pieces, self._on_request) and has_all
        for rank in list(self._requested):
            has_all = self._take(self._peers.pieces(rank), partial(self._on_piece, rank)) and has_all
        now = time.monotonic()
        self._emptied_at = now if has_all else 0.0
        if now - self._looked_at > _LOOK_S:
            self._looked_at = now
            self._peers.check_connections(now)
            self._pass_on_presence(now)
        return has_all

    def _end(self) -> None:
        """Also tell the others, and free everything. Waits two seconds at most."""
        if self._peers.addresses:
            self._take(self._sockets.messages, self._on_frames)  # some ranks may have ended the session already
            self._peers.check_connections(time.monotonic())
            self._peers.notify(Kind.ENDS, 0)
        self._finalizer.detach()
        _shut(self._peers, self._sockets, _CLOSING_MS)

    def _put(self, outgoing: Transfer, message: bytes) -> None:
        self._peers.put(outgoing.other, message)
        outgoing.complete()

    def _tell(self, to: int, message: bytes) -> None:
        self._peers.tell(to, message)

    def _offer(self, outgoing: Transfer, array: Bytes) -> None:
        self._outgoing[outgoing.other, outgoing.key] = outgoing
        password = self._sockets.authenticator.password(outgoing.other)
        header = packed(Kind.OFFER, outgoing.key, array.size, array.ctypes.data)
        self._peers.put(outgoing.other, header + password)

    def _accept(self, incoming: Transfer, offer: Offer) -> None:
        self._offered[incoming.key[0]].append((weakref.ref(incoming), offer))

    def _take(self, socket: Socket, handle: Callable[[Sequence[zmq.Frame]], None]) -> bool:
        """Receive some messages from a socket; True if there were no more."""
        for _ in range(_AT_ONCE):
            if not has_something(socket):
                return True
            try:
                handle(socket.recv_multipart(zmq.NOBLOCK, copy=False))
            except BaseException:  # it may be one of another thread
                self.tear()
                raise
        return not has_something(socket)

    def _on_frames(self, frames: Sequence[zmq.Frame]) -> None:
        rank, (route, message) = _sender(frames), (frame.bytes for frame in frames)
        kind, key, _, _ = unpacked(message)
        self._peers.connected[route] = rank
        if kind in (Kind.SHORT, Kind.OFFER, Kind.WAITS):
            self._on_message(rank, message)
        elif kind in (Kind.ENDS, Kind.GONE):
            self._peers.on_notice(rank, kind, key)
        elif kind == Kind.STOOD:
            if (incoming := self._incoming.get((rank, key))) is not None:
                incoming.complete()
        elif (outgoing := self._outgoing.get((rank, key))) is not None:  # otherwise it was abandoned
            outgoing.complete()  # the receiver has taken it
            self._peers.put(rank, packed(Kind.STOOD, key))

    def _request(self, source: int, key: Key, offset: int) -> None:
        self._peers.request(source, packed(Kind.READY, key, offset))
        self._requested[source] += 1

    def _on_request(self, frames: Sequence[zmq.Frame]) -> None:
        """Send a piece of a message that is still offered."""
        route, header = (frame.bytes for frame in frames)
        _, key, offset, _ = unpacked(header)
        outgoing = self._outgoing.get((_sender(frames), key))
        if outgoing is not None and outgoing.buffer is not None:
            piece = outgoing.buffer.data[offset : offset + PIECE_BYTES]
            message: Sequence[bytes | memoryview] = (route, packed(Kind.PIECE, key, offset), piece)
            self._sockets.pieces.send_multipart(message, zmq.NOBLOCK, copy=False)
            outgoing.moved += piece.nbytes

    def _on_piece(self, rank: int, frames: Sequence[zmq.Frame]) -> None:
        """Handle what is a piece, unless another process listens at the port of a rank that has gone."""
        self._requested -= Counter([rank])  # keeps those above 0
        header, data = frames[0].bytes, np.frombuffer(frames[-1].buffer, dtype=np.uint8)
        if len(header) != HEADER_BYTES or header[0] != Kind.PIECE:
            return
        _, key, offset, _ = unpacked(header)
        incoming = self._incoming.get((rank, key))
        if incoming is None or incoming.buffer is None:
            return  # it was abandoned
        place = incoming.buffer[offset : offset + PIECE_BYTES]
        if data.size != place.size:
            return
        place[:] = data
        incoming.moved += data.size
        if offset + _PIECES_AT_ONCE * PIECE_BYTES < incoming.buffer.size:
            self._request(rank, key, offset + _PIECES_AT_ONCE * PIECE_BYTES)
        if incoming.moved == incoming.buffer.size:
            self._peers.put(rank, packed(Kind.TAKEN, key))


def _sender(frames: Sequence[zmq.Frame]) -> int:
    """The rank that has sent a message, as the authenticator has found."""
    return int(frames[-1].get("User-Id"))


def _read(incoming: Transfer, offer: Offer, pid: int) -> bool:
    """Read more of a message from the sender's memory; False if that is forbidden, or the memory is gone."""
    assert incoming.buffer is not None
    part = incoming.buffer[incoming.moved : incoming.moved + READ_BYTES]
    try:
        peer_memory.read_memory(pid, offer.place + incoming.moved, part)
    except OSError:
        return False
    incoming.moved += part.size
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
