"""Ranks without MPI in one process: each is a thread with sockets of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from deeppart.comm import Comm, Operation, finish
from deeppart.comm.sockets.rank_sockets import RankSockets
from deeppart.comm.sockets.transport import SocketTransport

T = TypeVar("T")
LIMIT_S = 60.0


def transports(n: int, silence_s: float = LIMIT_S) -> list[SocketTransport]:
    """Of so many ranks, that know each other."""
    made = [SocketTransport(RankSockets("127.0.0.1", silence_s)) for rank in range(n)]
    for rank, each in enumerate(made):
        each.set_addresses([other.address for other in made], rank, 1)
    return made


@contextmanager
def world(n: int) -> Iterator[list[Comm]]:
    """A channel of each of so many ranks."""
    comms = [Comm(transport) for transport in transports(n)]
    try:
        yield comms
    finally:
        for comm in comms:
            comm.release()


def transport_of(comm: Comm) -> SocketTransport:
    """What carries the messages of a rank."""
    assert isinstance(comm._transport, SocketTransport)
    return comm._transport


def do(comm: Comm, operation: Operation[T], timeout: float = LIMIT_S) -> T:
    """Bring an operation to its end."""
    return finish(comm, operation, "test", timeout)


def on_all(n: int, call: Callable[[int], Any]) -> list[Any]:
    """What the call returns for each rank, all at once; or the exception that it raised there."""
    found: list[Any] = [None] * n

    def run(rank: int) -> None:
        try:
            found[rank] = call(rank)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT_S)
        assert not thread.is_alive(), "a rank hangs"
    return found
