"""Other ranks: who is gone, who has ended, and who has come in another's place."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

import pytest

from deeppart.comm.sockets import peers as module
from deeppart.comm.sockets.long_messages import Kind, packed
from deeppart.comm.sockets.rank_sockets import RankSockets
from deeppart.comm.sockets.transport import Transport
from tests.unit.comm.worlds import transports


def until(condition: Callable[[], bool], *made: Transport, seconds: float = 10.0) -> bool:
    """Whether it comes true, while the ranks look at what has come."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        for each in made:
            each.progress()
        time.sleep(1e-3)
    return condition()


def kill(transport: Transport) -> None:
    """As the kernel closes the sockets of a process."""
    transport._closed = True
    transport._finalizer()


def test_who_is_gone_is_passed_on() -> None:
    """Rank 0 has nothing to do with rank 2, and hears of it from rank 1."""
    made = transports(3)
    for sender, to in ((0, 1), (1, 2)):
        made[sender].send(to, (1, 0, 1), b"x")
    assert until(lambda: bool(made[2]._early) and bool(made[1]._early), *made)
    kill(made[2])
    assert until(lambda: made[0]._peers.gone == made[1]._peers.gone == {2}, *made[:2])
    for each in made:
        each.close()


def test_who_has_ended_is_not_gone() -> None:
    made = transports(3)
    made[0].send(1, (1, 0, 1), b"x")
    made[1].send(2, (1, 0, 1), b"x")
    assert until(lambda: bool(made[2]._early) and bool(made[1]._early), *made)
    made[1].close()
    assert until(lambda: made[0]._peers.ended == {1} and made[2]._peers.ended == {1}, made[0], made[2])
    time.sleep(0.1)
    assert not until(lambda: bool(made[0]._peers.gone), made[0], seconds=0.3)
    made[0].close()
    made[2].close()


def test_a_rank_that_was_gone_before_anybody_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made = transports(2)
    kill(made[1])
    made[0].send(1, (1, 0, 1), b"x")
    assert until(lambda: made[0]._peers.gone == {1}, made[0])
    made[0].close()


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


def test_another_one_has_come_in_its_place() -> None:
    """What is said of the one before is of no account."""
    made = transports(2)
    made[0].send(1, (1, 0, 1), b"for the old one")
    kill(made[1])
    assert until(lambda: made[0]._peers.gone == {1}, made[0])
    new = Transport(RankSockets("127.0.0.1", 30.0))
    for rank, each in enumerate((made[0], new)):
        each.set_addresses([made[0].address, new.address], rank, 2)
    assert not made[0]._peers.gone
    made[0]._peers.on_notice(1, Kind.GONE, (1, 1, 0))
    made[0]._peers.on_notice(1, Kind.ENDS, (0, 1, 0))
    assert not made[0]._peers.gone and not made[0]._peers.ended
    made[0].send(1, (1, 0, 2), b"for the new one")
    assert until(lambda: (0, (1, 0, 2)) in new._early, made[0], new)
    assert (0, (1, 0, 1)) not in new._early
    made[0].close()
    new.close()


def test_neighbours_alone_are_told_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FEW", 4)
    made = transports(9)
    made[0]._peers.spread(packed(Kind.WAITS, (1, 0, 0)), b"")
    assert set(made[0]._peers._peers) == {1, 2, 4, 8, 5, 7}
    for each in made:
        each.close()
