"""Who may connect to the sockets of a rank: the ranks of its session, and nobody else.

ZeroMQ asks before a connection can carry anything (ZAP, rfc.zeromq.org/spec/27). A thread answers, so that nobody who
connects has to wait until the training thread calls the library. A rank may come before this one has heard of it: who
is not known is let wait a little, and refused then.
"""

from __future__ import annotations

import hmac
import time
from collections import deque
from collections.abc import Sequence

import zmq

from deeppart._threads import start_thread
from deeppart.errors import BackgroundFailureWarning, warn_now

#: ZAP domains of the two sockets of a rank: for messages, by CURVE; for pieces of long ones, by PLAIN.
MESSAGES, PIECES = b"deeppart-messages", b"deeppart-pieces"
_ZAP = "inproc://zeromq.zap.01"
_LENGTH_OF_REQUEST = 7
#: How long somebody who is not known waits, how often it is looked whether he is by now, and how many may wait.
_WAIT_S, _LOOK_MS, _MOST_WAITING = 5.0, 20, 1000
#: Status codes: let in; no, but it may try again.
_WELCOME, _NOT_NOW = b"200", b"300"


class Doorkeeper:
    """Answers for one context. Nobody is let in before the ranks are known."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], secret: bytes) -> None:
        self._secret = secret
        self._keys: dict[bytes, int] = {}  # replaced as a whole
        #: Of the thread: envelope, request, and when it came.
        self._waiting: deque[tuple[Sequence[bytes], Sequence[bytes], float]] = deque()
        self._socket = context.socket(zmq.ROUTER)
        self._socket.bind(_ZAP)
        start_thread(self._answer, "deeppart-doorkeeper", self._failed)

    def let_in(self, public_keys: Sequence[bytes]) -> None:
        """The ranks are known: the public key of each, 32 bytes, in rank order; none for nobody at all."""
        self._keys = {key: rank for rank, key in enumerate(public_keys)}

    def password(self, rank: int) -> bytes:
        """With which a rank may send pieces to this one."""
        return self._derived("password", rank)

    def proof_key(self, rank: int) -> bytes:
        """With which this rank proves to another that it is the one that gave it the password: never sent to a port."""
        return self._derived("proof", rank)

    def _derived(self, what: str, rank: int) -> bytes:
        return hmac.digest(self._secret, f"{what} {rank}".encode(), "sha256").hex().encode()

    def _answer(self) -> None:
        try:
            while True:
                if self._socket.poll(_LOOK_MS if self._waiting else None):
                    frames = self._socket.recv_multipart()
                    if b"" in frames:  # otherwise it is not ZeroMQ that asks
                        border = frames.index(b"") + 1
                        self._waiting.append((frames[:border], frames[border:], time.monotonic()))
                self._decide()
        except zmq.ZMQError:
            pass  # the context is terminated
        finally:
            self._socket.close(linger=0)

    def _failed(self, error: BaseException) -> None:
        """Ranks that are connected stay so; others wait in vain, until their timeout."""
        text = f"no rank can connect to this one any more: {type(error).__name__}: {error}"
        warn_now(text, BackgroundFailureWarning)

    def _decide(self) -> None:
        """Answer those of whom it is known who they are, and those who have waited long enough."""
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
        """The rank that asks; None for a stranger."""
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
