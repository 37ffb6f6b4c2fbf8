"""The other ranks, as far as this one has had to do with them: connections, and whether they are still there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import recv_monitor_message

from deeppart.comm.sockets.address import Address
from deeppart.comm.sockets.long_messages import Key, Kind, Pieces, packed, unpacked
from deeppart.comm.sockets.rank_sockets import RankSockets, Socket, has_something
from deeppart.comm.sockets.trees import neighbours

#: What all are to know is told to everybody where there are so few ranks, otherwise to neighbours.
_FEW = 64
#: A rank that refuses so many connections in a row has no socket any more.
_MOST_RETRIES = 5
#: What a rank has sent before it ended may still be on its way, by another connection than the one that broke off.
_GRACE_S = 0.5
#: As plain numbers: Python takes longer to put flags together than ZeroMQ to send.
_NOBLOCK, _NOBLOCK_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED | zmq.Event.CONNECT_RETRIED


@dataclass(slots=True)
class _Peer:
    """Another rank. It is needed if something is sent to it or waited for from it; connected once it has let us in;
    lost when that connection broke off.
    """

    messages: Socket
    monitor: Socket
    pieces: Pieces | None = None
    retries: int = 0
    is_needed: bool = False
    is_connected: bool = False
    lost_at: float | None = None

    def close(self, linger_ms: int) -> None:
        """What is still to be sent to it has so long."""
        self.messages.disable_monitor()
        self.monitor.close(0)
        self.messages.close(linger_ms)
        if self.pieces is not None:
            self.pieces.close(linger_ms)


class Peers:
    """Of one rank in one session. Whoever calls has the lock of the transport.

    Attributes:
        own_rank: this one; -1 before the ranks have met.
        addresses: of all ranks.
        connected: routing id of those that have sent something -> rank.
        gone: ranks whose process, or host, is not there any more.
        ended: ranks that have ended the session.
    """

    def __init__(self, sockets: RankSockets) -> None:
        self._sockets, self._version = sockets, 0
        self._peers: dict[int, _Peer] = {}
        self.own_rank = -1
        self.addresses: tuple[Address, ...] = ()
        self.connected: dict[bytes, int] = {}
        self.gone: set[int] = set()
        self.ended: set[int] = set()

    def set_addresses(self, addresses: Sequence[Address], own_rank: int, version: int) -> set[int]:
        """From now on; returns the ranks that were replaced."""
        changed = {rank for rank, (old, new) in enumerate(zip(self.addresses, addresses, strict=False)) if old != new}
        for rank in changed:
            if (peer := self._peers.pop(rank, None)) is not None:
                peer.close(0)
        self.gone -= changed
        self.ended -= changed
        self.own_rank, self.addresses, self._version = own_rank, tuple(addresses), version
        return changed

    def _peer(self, rank: int) -> _Peer:
        """Another rank; connects to it the first time."""
        peer = self._peers.get(rank)
        if peer is None:
            socket = self._sockets.to_messages(self.addresses[rank])
            peer = self._peers[rank] = _Peer(socket, socket.get_monitor_socket(_EVENTS))
            socket.connect(self.addresses[rank].messages)
        return peer

    def need(self, rank: int) -> _Peer:
        """Something is sent to a rank, or waited for from it: notice if it goes away."""
        peer = self._peer(rank)
        peer.is_needed = True
        return peer

    def put(self, to: int, header: bytes, data: bytes = b"") -> None:
        """Send a message."""
        if not _sent(self.need(to).messages, header + data):
            self._lose(to)

    def open_pieces(self, to: int, password: bytes, proof_key: bytes) -> Pieces:
        """The way to a rank for pieces; what it has told of how it lets in, and proves, is for the first time."""
        peer = self._peer(to)
        if peer.pieces is None:
            socket = self._sockets.to_pieces(self.addresses[to], self.own_rank, password)
            peer.pieces = Pieces(socket, socket.get_monitor_socket(zmq.Event.DISCONNECTED), proof_key)
            socket.connect(self.addresses[to].pieces)
            peer.pieces.greet()
        return peer.pieces

    def push(self, to: int) -> bool:
        """Send on pieces to a rank; True if there is more to do."""
        peer = self._peers.get(to)
        return peer is not None and peer.pieces is not None and to not in self.gone and peer.pieces.push()

    def notify(self, kind: Kind, rank: int) -> None:
        """Tell all whom this rank is connected with, in either direction: a rank is gone, or this one ends."""
        header, over = packed(kind, (rank, self._version, 0)), self.gone | self.ended
        for other in self._peers.keys() - over:
            _sent(self._peers[other].messages, header)
        for route, other in self.connected.items():
            if other not in self._peers and other not in over:
                _sent(self._sockets.messages, header, route)

    def spread(self, header: bytes, data: bytes) -> None:
        """Tell all, or neighbours that tell theirs."""
        size = len(self.addresses)
        to = set(neighbours(self.own_rank, size) if size > _FEW else range(size)) - {self.own_rank}
        for rank in to - self.ended - self.gone:
            _sent(self._peer(rank).messages, header + data)

    def on_notice(self, rank: int, kind: Kind, key: Key) -> None:
        """A rank has ended its session, or says that another one is gone."""
        if key[1] != self._version:
            return  # of one in whose place another has come
        if kind == Kind.ENDS:
            self.ended.add(rank)
        elif kind == Kind.GONE:
            self._lose(key[0])

    def _lose(self, rank: int) -> None:
        """A rank is gone: all whom this one is connected with hear of it, and pass it on."""
        if rank not in self.gone and rank != self.own_rank:
            self.gone.add(rank)
            self.notify(Kind.GONE, rank)

    def look_after(self, now: float) -> None:
        """See who has ended the session, and who is gone."""
        for rank, peer in list(self._peers.items()):
            self._listen(rank, peer)
            while has_something(peer.monitor):
                event = recv_monitor_message(peer.monitor, zmq.NOBLOCK)["event"]
                peer.retries += event == zmq.Event.CONNECT_RETRIED
                if event == zmq.Event.HANDSHAKE_SUCCEEDED:
                    peer.is_connected, peer.retries = True, 0
                # One that has not heard of this rank yet breaks the connection off, too: it is tried again.
                if peer.lost_at is None and event == zmq.Event.DISCONNECTED and peer.is_connected:
                    peer.lost_at = now
            if peer.pieces is not None and has_something(peer.pieces.monitor) and peer.lost_at is None:
                peer.lost_at = now  # pieces that were on their way are lost
            is_lost = peer.lost_at is not None and now - peer.lost_at > _GRACE_S
            if (is_lost or (peer.is_needed and peer.retries > _MOST_RETRIES)) and rank not in self.ended:
                self._lose(rank)

    def _listen(self, rank: int, peer: _Peer) -> None:
        """What a rank has sent the other way."""
        while has_something(peer.messages):
            kind, key, _, _ = unpacked(peer.messages.recv(zmq.NOBLOCK))
            self.on_notice(rank, kind, key)

    def close(self, linger_ms: int) -> None:
        """Close all connections to others."""
        for peer in self._peers.values():
            peer.close(linger_ms)


def _sent(socket: Socket, message: bytes, route: bytes | None = None) -> bool:
    """Send without waiting: False if ZeroMQ has given the connection up, as what answered there was no rank."""
    try:
        if route is not None:
            socket.send(route, _NOBLOCK_MORE)
        socket.send(message, _NOBLOCK)
    except zmq.Again:
        return False
    return True
