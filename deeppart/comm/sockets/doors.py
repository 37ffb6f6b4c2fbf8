"""The sockets of one rank: two that others connect to, and those with which it connects to others."""

from __future__ import annotations

import os
import secrets
import sys

import zmq

from deeppart._threads import start_thread
from deeppart.comm.sockets.card import Card, host_name
from deeppart.comm.sockets.doorkeeper import MESSAGES, PIECES, Doorkeeper
from deeppart.errors import CommError

Socket = zmq.Socket[bytes]

#: Pieces of long messages that are on their way to one rank at a time, and such that wait at their receiver.
PIECES_AT_ONCE = 8
#: As a plain number: it is asked for millions of times.
_IN = int(zmq.POLLIN)
#: Between two tries to connect.
_RETRY_MS = 100
_HEARTBEAT_MS = 5000
#: Whoever has connected and has not been let in by then is cut off.
_STRANGER_MS = 10_000
#: Ranks that connect at one moment.
_BACKLOG = 4096


class Doors:
    """Of one rank in one session.

    Attributes:
        card: how others reach this rank.
        doorkeeper: decides who may connect.
        messages, pieces: the two sockets that others connect to.
    """

    def __init__(self, interface: str, start: int, call: str, silence_s: float) -> None:
        self._public, self._private = zmq.curve_keypair()
        self._silence_ms = max(2 * _HEARTBEAT_MS, int(1000 * silence_s))
        self._context: zmq.Context[Socket] = zmq.Context(io_threads=1)
        self.doorkeeper = Doorkeeper(self._context, secrets.token_bytes(32))
        self.messages, self.pieces = self._new(zmq.ROUTER, interface), self._new(zmq.ROUTER, interface)
        try:
            self._bind(self.messages, interface, MESSAGES)
            self._bind(self.pieces, interface, PIECES)
        except (zmq.ZMQError, OSError) as error:
            self.close(0)
            raise CommError(
                "cannot listen for the other ranks",
                found=str(error),
                where=f"interface {interface}",
                todo="set GLOO_SOCKET_IFNAME to the interface on which the nodes reach each other (`ip address`)",
            ) from error
        address, bulk = (socket.getsockopt_string(zmq.LAST_ENDPOINT) for socket in (self.messages, self.pieces))
        self.card = Card(address, bulk, self._public.decode(), host_name(), os.getpid(), start, call)

    def _bind(self, socket: Socket, interface: str, domain: bytes) -> None:
        socket.set(zmq.ZAP_DOMAIN, domain)
        socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
        if domain == MESSAGES:
            socket.set(zmq.CURVE_SERVER, 1)
            socket.set(zmq.CURVE_SECRETKEY, self._private)
        else:
            socket.set(zmq.PLAIN_SERVER, 1)
        socket.set(zmq.ROUTER_HANDOVER, 1)
        # Pieces that have not been taken wait at their sender; messages are short, and are to arrive before he ends.
        socket.set(zmq.RCVHWM, 0 if domain == MESSAGES else PIECES_AT_ONCE)
        socket.set(zmq.HANDSHAKE_IVL, _STRANGER_MS)
        socket.bind(f"tcp://[{interface}]:*" if ":" in interface else f"tcp://{interface}:*")

    def to_messages(self, card: Card) -> Socket:
        """A socket to a rank, for messages."""
        socket = self._new(zmq.DEALER, card.address)
        socket.set(zmq.CURVE_SERVERKEY, card.public_key.encode())
        socket.set(zmq.CURVE_PUBLICKEY, self._public)
        socket.set(zmq.CURVE_SECRETKEY, self._private)
        return socket

    def to_pieces(self, card: Card, rank: int, password: bytes) -> Socket:
        """A socket to a rank, for pieces of long messages from this one."""
        socket = self._new(zmq.DEALER, card.bulk_address)
        socket.set(zmq.PLAIN_USERNAME, str(rank).encode())
        socket.set(zmq.PLAIN_PASSWORD, password)
        socket.set(zmq.SNDHWM, PIECES_AT_ONCE)
        socket.set(zmq.RECONNECT_IVL, -1)  # whoever may listen there then
        return socket

    def _new(self, kind: int, address: str) -> Socket:
        try:
            socket = self._context.socket(kind)
        except zmq.ZMQError as error:
            raise CommError(
                "no more sockets for the exchange between ranks",
                found=str(error),
                todo="raise the limit of open files (ulimit -n); `ss -tnp` shows who is connected to this process",
            ) from error
        socket.set(zmq.IPV6, int(":" in address.removeprefix("tcp://").rpartition(":")[0]))
        socket.set(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.set(zmq.HEARTBEAT_TIMEOUT, self._silence_ms)
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.BACKLOG, _BACKLOG)
        socket.set(zmq.RECONNECT_IVL, _RETRY_MS)
        return socket

    def close(self, linger_ms: int) -> None:
        """Let nobody in any more, once all sockets to others are closed. What is still to be sent has so long."""
        self.messages.close(linger_ms)
        self.pieces.close(linger_ms)
        self.doorkeeper.let_in(())
        if sys.is_finalizing():  # the doorkeeper's thread does not run any more: nobody would close its socket
            return
        ending = start_thread(self._context.term, "deeppart-term", lambda error: None)  # the sockets are closed by now
        ending.join(linger_ms / 1000 + 1.0)


def has_something(socket: Socket) -> bool:
    """Whether a message can be taken from a socket."""
    return bool(int(socket.get(zmq.EVENTS)) & _IN)
