"""Messages between ranks: short and long, early and late, read from memory or sent in pieces."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from deeppart.comm.channel import Comm
from deeppart.comm.sockets import peer_memory as module
from deeppart.comm.transport import SHORT_BYTES
from deeppart.errors import CommError, PeerTimeoutError, RanksDisagreeError
from tests.unit.comm.worlds import LIMIT_S, do, on_all, transport_of, transports, world


@pytest.fixture
def pair() -> Iterator[list[Comm]]:
    with world(2) as comms:
        yield comms


@pytest.fixture(params=["memory", "pieces"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How long messages come."""
    if request.param == "pieces":

        def refuse(*_: Any) -> None:
            raise PermissionError("as Yama does")

        monkeypatch.setattr(module, "read_memory", refuse)
    return str(request.param)


SIZES = [0, 1, SHORT_BYTES, SHORT_BYTES + 1, (1 << 20) - 1, 20_000_001]


def numbers(nbytes: int, start: int = 0) -> Any:
    return (np.arange(nbytes, dtype=np.uint64) + start).astype(np.uint8)


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("first", ["sender", "receiver"])
def test_every_byte_arrives(pair: list[Comm], way: str, nbytes: int, first: str) -> None:
    there, here = numbers(nbytes), np.zeros(nbytes, dtype=np.uint8)
    if first == "sender":
        sending = pair[0].send(there, 1, 3)
        time.sleep(0.05)
        receiving = pair[1].receive_into(here, 0, 3)
    else:
        receiving = pair[1].receive_into(here, 0, 3)
        sending = pair[0].send(there, 1, 3)
    on_all(2, lambda rank: do(pair[rank], receiving if rank else sending))
    assert (here == there).all()


def test_messages_of_one_tag_come_in_order_and_tags_do_not_mix(pair: list[Comm], way: str) -> None:
    there = [numbers(100_000 * (1 + i % 2), i) for i in range(8)]
    here = [np.zeros_like(each) for each in there]
    sending = [pair[0].send(each, 1, i // 4) for i, each in enumerate(there)]
    receiving = {i: pair[1].receive_into(here[i], 0, i // 4) for i in (4, 0, 5, 1, 2, 6, 7, 3)}

    def run(rank: int) -> None:
        for operation in reversed(list(receiving.values())) if rank else sending:
            do(pair[rank], operation)

    assert on_all(2, run) == [None, None]
    assert all((a == b).all() for a, b in zip(there, here, strict=True))


@pytest.mark.parametrize("nbytes", [10, 100_000])
def test_another_length_is_an_error(pair: list[Comm], nbytes: int) -> None:
    sending = pair[0].send(np.zeros(nbytes, dtype=np.uint8), 1, 0)
    with pytest.raises(CommError, match="another length") as caught:
        do(pair[1], pair[1].receive_into(np.zeros(nbytes + 1, dtype=np.uint8), 0, 0))
    assert f"{nbytes} bytes" in str(caught.value) and "from rank 0 to rank 1" in str(caught.value)
    sending.close()


@pytest.mark.parametrize("looked", [False, True])
@pytest.mark.parametrize("nbytes", [24, 1 << 20])
def test_what_comes_for_an_operation_that_was_given_up_lands_nowhere(
    pair: list[Comm], way: str, nbytes: int, looked: bool
) -> None:
    memory = np.zeros(nbytes, dtype=np.uint8)
    operation = pair[1].receive_into(memory, 0, 5)
    if looked:
        next(operation)
    del operation
    gc.collect()
    sending = pair[0].send(np.full(nbytes, 9, dtype=np.uint8), 1, 5)
    next(sending, None)
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        for comm in pair:
            transport_of(comm).progress()
    assert not memory.any()
    assert on_all(2, lambda rank: do(pair[rank], pair[rank].allgather(b"goes on"))) == [[b"goes on"] * 2] * 2


@pytest.mark.parametrize("when", ["timed out", "midway", "never begun"])
def test_what_a_sender_has_given_up_is_never_received(pair: list[Comm], way: str, when: str) -> None:
    """It may use its memory for something else then."""
    memory = np.full(40_000_000, 7, dtype=np.uint8)
    here = np.zeros_like(memory)
    sending = pair[0].send(memory, 1, 3)
    receiving: Any = None
    if when == "timed out":
        with pytest.raises(PeerTimeoutError):
            do(pair[0], sending, 0.2)
        pair[0].broken = None
    elif when == "midway":
        receiving = pair[1].receive_into(here, 0, 3)
        for _ in range(3):
            next(sending)
            next(receiving)
    sending.close()
    del sending
    gc.collect()
    memory[:] = 99
    receiving = receiving or pair[1].receive_into(here, 0, 3)

    def run(rank: int) -> None:
        if rank:
            do(pair[1], receiving, 1.0)
        else:  # goes on with something else, so that it hears and answers
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                transport_of(pair[0]).progress()

    found = on_all(2, run)
    assert isinstance(found[1], CommError), found


def test_what_was_sent_before_the_end_of_a_session_arrives() -> None:
    """However long the receiver has something else to do."""
    with world(2) as comms:
        n, nbytes = 400, 30_000
        for number in range(n):
            do(comms[0], comms[0].send(numbers(nbytes, number), 1, 0))
        comms[0].release()
        time.sleep(2.0)
        for number in range(n):
            here = np.zeros(nbytes, dtype=np.uint8)
            do(comms[1], comms[1].receive_into(here, 0, 0))
            assert (here == numbers(nbytes, number)).all()


def test_a_forked_child_leaves_everything_alone(pair: list[Comm]) -> None:
    """Whatever lock another thread held at that moment."""
    transport = transport_of(pair[0])
    with transport._lock:
        pid = os.fork()
        if pid == 0:
            pair[0].release()
            transport.close()
            os._exit(0)
    end = time.monotonic() + 20.0
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        assert time.monotonic() < end, "the child hangs"
        time.sleep(0.01)
    assert on_all(2, lambda rank: do(pair[rank], pair[rank].allgather(b"x"))) == [[b"x", b"x"]] * 2


def test_a_rank_that_is_gone_is_named_to_all_in_under_a_second() -> None:
    """Those too that have nothing to do with it."""
    n, dead = 6, 3
    made = transports(n)

    def run(rank: int) -> tuple[float, str]:
        transport = made[rank]
        comm = Comm(transport)
        do(comm, comm.allgather(b""))
        if rank == dead:
            time.sleep(0.2)
            transport._closed = True
            transport._finalizer()  # as the kernel does when a process is killed
            return time.monotonic(), ""
        with pytest.raises(CommError, match="rank 3 of this job: gone") as caught:
            do(comm, comm.allgather(b""), 30.0)
        return time.monotonic(), str(caught.value)

    found = on_all(n, run)
    assert all(isinstance(each, tuple) for each in found), found
    assert max(when for when, _ in found) - found[dead][0] < 1.0
    for transport in made:
        transport.close()


def test_a_rank_that_has_ended_the_session_is_not_waited_for() -> None:
    with world(3) as comms:
        on_all(3, lambda rank: do(comms[rank], comms[rank].allgather(b"")))
        comms[1].release()
        waiting, end = comms[0].receive_into(np.zeros(3, dtype=np.uint8), 1, 0), time.monotonic() + LIMIT_S
        with pytest.raises(RanksDisagreeError, match="rank 1 has ended its session"):
            while time.monotonic() < end:
                next(waiting)
        with pytest.raises(CommError, match="the session has ended on this rank"):
            do(comms[1], comms[1].allgather(b""))
        sent = comms[0].send(np.arange(3, dtype=np.uint8), 2, 0)
        here = np.zeros(3, dtype=np.uint8)
        do(comms[2], comms[2].receive_into(here, 0, 0))  # the others may go on
        do(comms[0], sent)
        assert here.tolist() == [0, 1, 2]


class Holding(CommError):
    """Holds a communicator, as tracebacks do."""

    def __init__(self, comm: Comm) -> None:
        super().__init__("broken", where=comm)  # type: ignore[arg-type]


def test_nothing_is_left_when_it_is_closed_or_dropped() -> None:
    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    def session(way: str) -> None:
        made = transports(3)
        comms = [Comm(transport) for transport in made]
        on_all(3, lambda rank: do(comms[rank], comms[rank].allgather(b"")))
        if way == "closed":
            for comm in comms:
                comm.release()
        elif way == "dropped in a circle":
            for comm in comms:
                comm.broken = Holding(comm)

    session("closed")  # the first takes what all share
    gc.collect()
    before = files()
    for way in ("closed", "dropped", "dropped in a circle"):
        for _ in range(3):
            session(way)
            gc.collect()
        assert files() == before, way


class Interrupted(BaseException):
    """Raised by a signal handler, as KeyboardInterrupt is."""


def test_an_interrupt_leaves_no_lock_behind(pair: list[Comm]) -> None:
    """Wherever it comes: the session could not even be ended."""
    transport, count, ends = transport_of(pair[0]), 0, time.monotonic() + LIMIT_S

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        while count < 3000 and time.monotonic() < ends:
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + 1e-7 * (count % 100))
                while not transport._lock.locked():
                    transport.progress()
            except Interrupted:
                count += 1
            assert not transport._lock.locked()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_message_that_an_interrupt_has_lost_is_not_waited_for(
    pair: list[Comm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whatever thread: it is the first that looks who receives the messages of all."""
    transport = transport_of(pair[1])
    waiting = pair[1].receive(0, 0)

    def interrupt(*_: object) -> None:
        raise Interrupted

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(transport, "_on_frames", interrupt)
        do(pair[0], pair[0].send(numbers(3), 1, 0))
        ends = time.monotonic() + LIMIT_S
        while time.monotonic() < ends:
            transport.progress()
    with pytest.raises(CommError, match="an interrupt has lost a message"):
        do(pair[1], waiting)
