"""Who may connect to the sockets of a rank: the ranks of its session, and nobody else.

ZeroMQ asks before a connection can carry anything (ZAP, rfc.zeromq.org/spec/27). A thread answers, so that nobody who
connects has to wait until the training thread calls the library.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Sequence

import zmq

#: ZAP domains of the two sockets of a rank: for messages, by CURVE; for pieces of long ones, by PLAIN.
MESSAGES, PIECES = b"deeppart-messages", b"deeppart-pieces"
_ZAP = "inproc://zeromq.zap.01"
_LENGTH_OF_REQUEST = 7


class Doorkeeper:
    """Answers for one context. Nobody is let in before the ranks are known.

    Args:
        context: of the sockets; the thread ends with it.
        secret: from which passwords are derived; nobody else knows it.

    Raises:
        zmq.ZMQError: no socket is to be had.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], secret: bytes) -> None:
        self._secret = secret
        self._keys: dict[bytes, int] = {}  # written once, before _is_known is set
        self._is_known = threading.Event()
        self._socket = context.socket(zmq.REP)
        self._socket.bind(_ZAP)
        threading.Thread(target=self._answer, name="deeppart-doorkeeper", daemon=True).start()

    def let_in(self, public_keys: Sequence[bytes]) -> None:
        """The ranks are known: the public key of each, 32 bytes, in rank order; none for nobody at all."""
        self._keys = {key: rank for rank, key in enumerate(public_keys)}
        self._is_known.set()

    def password(self, rank: int) -> bytes:
        """With which a rank may send pieces to this one."""
        return hmac.digest(self._secret, str(rank).encode(), "sha256").hex().encode()

    def _answer(self) -> None:
        try:
            while True:
                request = self._socket.recv_multipart()
                self._is_known.wait()
                rank = self._rank(request) if len(request) >= _LENGTH_OF_REQUEST else None
                number = request[1] if len(request) > 1 else b""
                # 300: it may try again. A rank that has the roster earlier than this one is a stranger until then.
                verdict = (
                    (b"300", b"not a rank of this session", b"") if rank is None else (b"200", b"", str(rank).encode())
                )
                self._socket.send_multipart([b"1.0", number, *verdict, b""])
        except zmq.ZMQError:  # the context is terminated
            self._socket.close(linger=0)

    def _rank(self, request: Sequence[bytes]) -> int | None:
        """The rank that asks; None for a stranger."""
        _, _, domain, _, _, mechanism, *credentials = request
        if (domain, mechanism, len(credentials)) == (MESSAGES, b"CURVE", 1):
            return self._keys.get(credentials[0])
        if (domain, mechanism, len(credentials)) == (PIECES, b"PLAIN", 2):
            name, password = credentials
            known = name.isdigit() and int(name) < len(self._keys)
            return int(name) if known and hmac.compare_digest(password, self.password(int(name))) else None
        return None
