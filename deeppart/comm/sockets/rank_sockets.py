"""The sockets of one rank: those that others connect to, its connections to others, and authentication.

ZeroMQ asks before a connection can carry anything (ZAP, rfc.zeromq.org/spec/27). A thread answers, so that a connecting
rank need not wait until the training thread calls the library. A rank may connect before this one knows its key:
unknown ranks wait a little, and are then refused.
"""

from __future__ import annotations

import hmac
import os
import secrets
import sys
import time
from collections import deque
from collections.abc import Sequence

import zmq

from deeppart._threads import start_thread
from deeppart.comm.sockets.address import Address, host_name
from deeppart.errors import BackgroundFailureWarning, CommError, warn_now

Socket = zmq.Socket[bytes]
#: A plain int, since it is used millions of times.
_IN = int(zmq.POLLIN)
#: Time between two attempts to connect.
_RETRY_MS = 100
_HEARTBEAT_MS = 5000
#: Connections that are not authenticated by then are closed.
_STRANGER_MS = 10_000
#: Ranks that connect at the same time.
_BACKLOG = 4096
#: ZAP domains of the two sockets of a rank: messages use CURVE, pieces of long messages PLAIN.
MESSAGES, PIECES = b"deeppart-messages", b"deeppart-pieces"
_ZAP = "inproc://zeromq.zap.01"
_LENGTH_OF_REQUEST = 7
#: How long an unknown rank waits, how often its key is looked up, and how many may wait.
_WAIT_S, _LOOK_MS, _MOST_WAITING = 5.0, 20, 1000
#: Status codes: accepted; refused, but it may try again.
_WELCOME, _NOT_NOW = b"200", b"300"


class RankSockets:
    """The sockets of one rank in one session.

    Attributes:
        address: the address for other ranks.
        authenticator: decides who may connect.
        messages, pieces: the two sockets that others connect to.
    """

    def __init__(self, interface: str, silence_s: float, start: int = 0) -> None:
        self._public, self._private = zmq.curve_keypair()
        self._silence_ms = max(2 * _HEARTBEAT_MS, int(1000 * silence_s))
        self._context: zmq.Context[Socket] = zmq.Context(io_threads=1)
        self.authenticator = Authenticator(self._context, secrets.token_bytes(32))
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
        messages, pieces = (each.getsockopt_string(zmq.LAST_ENDPOINT) for each in (self.messages, self.pieces))
        self.address = Address(messages, pieces, self._public.decode(), host_name(), os.getpid(), start)

    def _bind(self, socket: Socket, interface: str, domain: bytes) -> None:
        socket.set(zmq.ZAP_DOMAIN, domain)
        socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
        if domain == MESSAGES:
            socket.set(zmq.CURVE_SERVER, 1)
            socket.set(zmq.CURVE_SECRETKEY, self._private)
        else:
            socket.set(zmq.PLAIN_SERVER, 1)
        socket.set(zmq.ROUTER_HANDOVER, 1)
        socket.set(zmq.RCVHWM, 0)  # they are short, and must arrive before the sender ends
        socket.set(zmq.HANDSHAKE_IVL, _STRANGER_MS)
        socket.bind(f"tcp://[{interface}]:*" if ":" in interface else f"tcp://{interface}:*")

    def to_messages(self, address: Address) -> Socket:
        """A socket to a rank, for messages."""
        socket = self._new(zmq.DEALER, address.messages)
        socket.set(zmq.CURVE_SERVERKEY, address.public_key.encode())
        socket.set(zmq.CURVE_PUBLICKEY, self._public)
        socket.set(zmq.CURVE_SECRETKEY, self._private)
        return socket

    def to_pieces(self, address: Address, rank: int, password: bytes) -> Socket:
        """A socket to a rank, for pieces of its long messages."""
        socket = self._new(zmq.DEALER, address.pieces)
        socket.set(zmq.PLAIN_USERNAME, str(rank).encode())
        socket.set(zmq.PLAIN_PASSWORD, password)
        socket.set(zmq.RECONNECT_IVL, -1)  # another process may listen there after a disconnection
        return socket

    def _new(self, kind: int, endpoint: str) -> Socket:
        try:
            socket = self._context.socket(kind)
        except zmq.ZMQError as error:
            raise CommError(
                "no more sockets for the exchange between ranks",
                found=str(error),
                todo="raise the limit of open files (ulimit -n); `ss -tnp` shows who is connected to this process",
            ) from error
        socket.set(zmq.IPV6, int(":" in endpoint.removeprefix("tcp://").rpartition(":")[0]))
        socket.set(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.set(zmq.HEARTBEAT_TIMEOUT, self._silence_ms)
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.BACKLOG, _BACKLOG)
        socket.set(zmq.RECONNECT_IVL, _RETRY_MS)
        return socket

    def close(self, linger_ms: int) -> None:
        """Refuse all connections, once all sockets to others are closed; messages may be sent for ``linger_ms``."""
        self.messages.close(linger_ms)
        self.pieces.close(linger_ms)
        self.authenticator.allow(())
        if sys.is_finalizing():  # the authenticator's thread no longer runs and cannot close its socket
            return
        ending = start_thread(self._context.term, "deeppart-term", lambda error: None)  # the sockets are closed by now
        ending.join(linger_ms / 1000 + 1.0)


def has_something(socket: Socket) -> bool:
    """True if a socket has a message to receive."""
    return bool(int(socket.get(zmq.EVENTS)) & _IN)


class Authenticator:
    """Answers authentication requests of one context. No rank is accepted before the addresses are known."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], secret: bytes) -> None:
        self._secret = secret
        self._keys: dict[bytes, int] = {}  # replaced as a whole, never changed
        #: Used by the thread only: envelope, request, and time of arrival.
        self._waiting: deque[tuple[Sequence[bytes], Sequence[bytes], float]] = deque()
        self._socket = context.socket(zmq.ROUTER)
        self._socket.bind(_ZAP)
        start_thread(self._answer, "deeppart-authenticator", self._failed)

    def allow(self, public_keys: Sequence[bytes]) -> None:
        """Set the public keys of the ranks, 32 bytes each, in rank order; none to refuse all."""
        self._keys = {key: rank for rank, key in enumerate(public_keys)}

    def password(self, rank: int) -> bytes:
        """The password with which a rank may request pieces of this one's messages to it."""
        return hmac.digest(self._secret, str(rank).encode(), "sha256").hex().encode()

    def _answer(self) -> None:
        try:
            while True:
                if self._socket.poll(_LOOK_MS if self._waiting else None):
                    frames = self._socket.recv_multipart()
                    if b"" in frames:  # otherwise it is not a request of ZeroMQ
                        border = frames.index(b"") + 1
                        self._waiting.append((frames[:border], frames[border:], time.monotonic()))
                self._decide()
        except zmq.ZMQError:
            pass  # the context is terminated
        finally:
            self._socket.close(linger=0)

    def _failed(self, error: BaseException) -> None:
        """Connected ranks stay connected; others wait until their timeout."""
        text = f"no rank can connect to this one any more: {type(error).__name__}: {error}"
        warn_now(text, BackgroundFailureWarning)

    def _decide(self) -> None:
        """Answer requests of known ranks, and those that have waited long enough."""
        for _ in range(len(self._waiting)):
            envelope, request, since = self._waiting.popleft()
            rank = self._rank(request)
            is_over = time.monotonic() - since > _WAIT_S or len(self._waiting) >= _MOST_WAITING
            if rank is None and not is_over:
                self._waiting.append((envelope, request, since))
                continue
            verdict = (_NOT_NOW, b"not a rank of this session", b"") if rank is None else (_WELCOME, b"", b"%d" % rank)
            number = request[1] if len(request) > 1 else b""
            self._socket.send_multipart([*envelope, b"1.0", number, *verdict, b""])

    def _rank(self, request: Sequence[bytes]) -> int | None:
        """The rank that makes a request; None if it is unknown."""
        if len(request) < _LENGTH_OF_REQUEST:
            return None
        keys = self._keys
        _, _, domain, _, _, mechanism, *credentials = request
        if (domain, mechanism, len(credentials)) == (MESSAGES, b"CURVE", 1):
            return keys.get(credentials[0])
        if (domain, mechanism, len(credentials)) == (PIECES, b"PLAIN", 2):
            name, password = credentials
            known = name.isdigit() and int(name) < len(keys)
            return int(name) if known and hmac.compare_digest(password, self.password(int(name))) else None
        return None
