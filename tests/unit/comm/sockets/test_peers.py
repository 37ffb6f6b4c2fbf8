"""Other ranks: who is gone, who has ended, and who has come in another's place."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from deeppart.comm.sockets.transport import SocketTransport
from tests.unit.comm.worlds import transports


def kill(transport: SocketTransport) -> None:
    """As the kernel closes the sockets of a process."""
    transport._closed = True
    transport._finalizer()


def test_something_else_answers_at_the_port_of_a_rank_that_is_gone() -> None:
    """What is sent there does not block."""
    made = transports(2)
    port = int(made[1].address.messages.rpartition(":")[2])
    kill(made[1])
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n" * 5)
                    connection.close()

        threading.Thread(target=answer, daemon=True).start()
        began = time.monotonic()
        while time.monotonic() - began < 15.0 and not made[0]._peers.gone:
            made[0].send(1, (1, 0, int(1e6 * (time.monotonic() - began))), b"x")
            time.sleep(0.05)
            made[0].progress()
        assert made[0]._peers.gone == {1}
        made[0].close()
        assert time.monotonic() - began < 30.0
