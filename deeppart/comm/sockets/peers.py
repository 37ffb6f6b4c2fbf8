"""The other ranks with which this one communicates: connections, and which ranks have ended or gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import recv_monitor_message

from deeppart.comm.messages import Key, Kind, packed, unpacked
from deeppart.comm.sockets.address import Address
from deeppart.comm.sockets.rank_sockets import RankSockets, Socket, has_something

#: After this many refused connections in a row a rank no longer has a socket.
_MOST_RETRIES = 5
#: Messages that a rank sent before it ended may still arrive on another connection than the one that was closed.
_GRACE_S = 0.5
#: Plain ints: combining flags takes Python longer than ZeroMQ takes to send.
_NOBLOCK, _NOBLOCK_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED | zmq.Event.CONNECT_RETRIED


@dataclass(slots=True)
class _Peer:
    """Another rank. It is needed if something is sent to it or expected from it; connected once it has accepted this
    rank; lost when that connection was closed.
    """

    messages: Socket
    monitor: Socket
    pieces: tuple[Socket, Socket] | None = None  # and its monitor
    retries: int = 0
    is_needed: bool = False
    is_connected: bool = False
    lost_at: float | None = None

    def close(self, linger_ms: int) -> None:
        """Close the connections; messages may be sent for ``linger_ms``."""
        for socket, monitor in ((self.messages, self.monitor), *([self.pieces] if self.pieces else [])):
            socket.disable_monitor()
            monitor.close(0)
            socket.close(linger_ms)


class Peers:
    """The other ranks of one session, as one rank sees them. Callers hold the lock of the transport.

    Attributes:
        own_rank: this rank; -1 before the ranks have met.
        addresses: the addresses of all ranks.
        connected: routing id -> rank, for ranks that have sent something.
        gone: ranks whose process or host has gone.
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
        """Set the addresses; returns the ranks that were replaced."""
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
        """Mark a rank as needed, so that it is noticed if it goes away."""
        peer = self._peer(rank)
        peer.is_needed = True
        return peer

    def put(self, to: int, message: bytes) -> None:
        """Send a message."""
        if not _sent(self.need(to).messages, message):
            self._lose(to)

    def open_pieces(self, of: int, password: bytes) -> None:
        """Connect to a rank for pieces of its messages, the first time."""
        peer = self._peer(of)
        if peer.pieces is None:
            socket = self._sockets.to_pieces(self.addresses[of], self.own_rank, password)
            peer.pieces = socket, socket.get_monitor_socket(zmq.Event.DISCONNECTED)
            socket.connect(self.addresses[of].pieces)

    def pieces(self, of: int) -> Socket:
        """The socket for pieces of a rank's messages."""
        pieces = self._peers[of].pieces
        assert pieces is not None
        return pieces[0]

    def request(self, of: int, message: bytes) -> None:
        """Request a piece. A closed connection takes none; that the rank has gone is detected elsewhere."""
        _sent(self.pieces(of), message)

    def notify(self, kind: Kind, rank: int) -> None:
        """Tell all connected ranks, in either direction, that a rank has gone, or that this one ends."""
        header, over = packed(kind, (rank, self._version, 0)), self.gone | self.ended
        for other in self._peers.keys() - over:
            _sent(self._peers[other].messages, header)
        for route, other in self.connected.items():
            if other not in self._peers and other not in over:
                _sent(self._sockets.messages, header, route)

    def tell(self, to: int, message: bytes) -> None:
        """Send a message to a rank that need not be there any more."""
        if to not in self.ended and to not in self.gone:
            _sent(self._peer(to).messages, message)

    def on_notice(self, rank: int, kind: Kind, key: Key) -> None:
        """Handle the notice that a rank has ended its session, or that another one has gone."""
        if key[1] != self._version:
            return  # about a rank that was replaced
        if kind == Kind.ENDS:
            self.ended.add(rank)
        elif kind == Kind.GONE:
            self._lose(key[0])

    def _lose(self, rank: int) -> None:
        """Mark a rank as gone and tell all connected ranks, which pass it on."""
        if rank not in self.gone and rank != self.own_rank:
            self.gone.add(rank)
            self.notify(Kind.GONE, rank)

    def check_connections(self, now: float) -> None:
        """Detect ranks that have ended the session or gone."""
        for rank, peer in list(self._peers.items()):
            self._listen(rank, peer)
            while has_something(peer.monitor):
                event = recv_monitor_message(peer.monitor, zmq.NOBLOCK)["event"]
                peer.retries += event == zmq.Event.CONNECT_RETRIED
                if event == zmq.Event.HANDSHAKE_SUCCEEDED:
                    peer.is_connected, peer.retries = True, 0
                # A rank that does not know this one yet also closes the connection: that is retried.
                if peer.lost_at is None and event == zmq.Event.DISCONNECTED and peer.is_connected:
                    peer.lost_at = now
            if peer.pieces is not None and has_something(peer.pieces[1]) and peer.lost_at is None:
                peer.lost_at = now  # pieces in transfer are lost
            is_lost = peer.lost_at is not None and now - peer.lost_at > _GRACE_S
            if (is_lost or (peer.is_needed and peer.retries > _MOST_RETRIES)) and rank not in self.ended:
                self._lose(rank)

    def _listen(self, rank: int, peer: _Peer) -> None:
        """Receive messages that a rank has sent on the connection that this rank has opened."""
        while has_something(peer.messages):
            kind, key, _, _ = unpacked(peer.messages.recv(zmq.NOBLOCK))
            self.on_notice(rank, kind, key)

    def close(self, linger_ms: int) -> None:
        """Close all connections to others."""
        for peer in self._peers.values():
            peer.close(linger_ms)


def _sent(socket: Socket, message: bytes, route: bytes | None = None) -> bool:
    """Send without waiting: False if ZeroMQ has closed the connection, because the other end is not a rank."""
    try:
        if route is not None:
            socket.send(route, _NOBLOCK_MORE)
        socket.send(message, _NOBLOCK)
    except zmq.Again:
        return False
    return True
