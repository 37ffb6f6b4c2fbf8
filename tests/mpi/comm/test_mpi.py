"""The communicator on real ranks: every operation, waits that end, messages above 2 GiB.

Run inside mpirun (``make test-mpi``).
"""

from __future__ import annotations

import gc
import os
import weakref
from typing import Any

import numpy as np
import pytest
import xxhash

from deeppart.comm import Comm, connect, finish
from deeppart.errors import CommError
from tests.mpi.comm.limits import LIMIT_S, do

pytestmark = pytest.mark.mpi(min_size=2)


def test_collectives(comm: Comm) -> None:
    rank, size = comm.rank, comm.size
    texts = [b"x" * (5 * place) for place in range(size)]
    assert do(comm, comm.allgather(texts[rank])) == texts
    assert do(comm, comm.gather(texts[rank])) == (texts if rank == 0 else None)
    for root in range(size):
        assert do(comm, comm.broadcast(b"from root" if rank == root else None, root)) == b"from root"
    assert do(comm, comm.broadcast(b"" if rank == 0 else None)) == b""
    assert do(comm, comm.maximum(np.array([rank, -rank, 7]))).tolist() == [size - 1, 0, 7]


@pytest.mark.parametrize("message_bytes", [1 << 20, 70_000])
def test_transfers(comm: Comm, message_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deeppart.comm.mpi.MESSAGE_BYTES", message_bytes)  # one message, several
    rank, size = comm.rank, comm.size
    following, before = (rank + 1) % size, (rank - 1) % size
    sent, received = np.full(300_000, rank, dtype=np.uint8), np.zeros(300_000, dtype=np.uint8)
    sending, receiving = comm.send(sent, following, 3), comm.receive_into(received, before, 3)
    do(comm, receiving)
    do(comm, sending)
    assert (received == before).all()


def test_channels_do_not_mix(comm: Comm) -> None:
    other = do(comm, comm.channel())
    first, second = comm.allgather(b"a"), other.allgather(b"b")
    found = None
    try:
        next(first)
    except StopIteration as stop:  # everybody's has come already
        found = stop.value
    assert do(other, second) == [b"b"] * comm.size
    assert (found or do(comm, first)) == [b"a"] * comm.size


def above_two_gib(comm: Any) -> tuple[int, int]:
    """The digest of what all have in the end, and its last byte."""
    channel = connect(comm, LIMIT_S)
    buffer = np.zeros((2 << 30) + 12_345, dtype=np.uint8)  # pages of zeros take no memory until they are written to
    if channel.rank == 0:
        buffer[:: 1 << 23] = 7
        buffer[-1] = 9
    to_rank_1 = channel.send(buffer, 1, 0) if channel.rank == 0 else channel.receive_into(buffer, 0, 0)
    finish(channel, to_rank_1, "2 GiB", 500.0)
    return xxhash.xxh3_64_intdigest(buffer.data), int(buffer[-1])


@pytest.mark.now_and_then(8)
@pytest.mark.timeout(100)
def test_a_message_above_two_gib(comm: Comm, run_on: Any) -> None:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if do(comm, comm.maximum(np.array([int(free < 6 * 2**30)])))[0]:
        pytest.skip("needs 6 GiB of free memory")
    sent, received = run_on(2, above_two_gib)
    assert received == sent and sent[1] == 9


def reused(comm: Any) -> list[int]:
    """How many of the communicators of a start's two channels the next start has."""
    first = connect(comm, LIMIT_S)
    second = finish(first, first.channel(), "channel", LIMIT_S)
    counts = []
    for number in range(3):
        for channel in (first, second):
            finish(channel, channel.allgather(b"."), "test", LIMIT_S)
        if number == 1 and comm.Get_rank() == 0:  # rank 1 never receives it: what comes later must not be taken for it
            finish(first, first.send(np.zeros(8, dtype=np.uint8), 1, 3), "test", LIMIT_S)
        for channel in (first, second):
            channel.abandon(CommError("an error between two exchanges"))
            channel.release()
            with pytest.raises(CommError, match="between two exchanges"):  # whatever thread still has it
                channel.send(np.zeros(8, dtype=np.uint8), 1 - comm.Get_rank(), 3)
        again = connect(comm, LIMIT_S)
        other = finish(again, again.channel(), "channel", LIMIT_S)
        used, kept = ([vars(each)["_communicator"] for each in pair] for pair in ((first, second), (again, other)))
        counts.append(sum(each in kept for each in used))
        first, second = again, other
    return counts


@pytest.mark.of_mpi
def test_channels_are_used_again_if_nothing_is_left_on_them(run_on: Any) -> None:
    for counts in run_on(2, reused):
        assert counts == [2, 1, 2]


@pytest.mark.of_mpi
@pytest.mark.parametrize("looked", [False, True])
def test_memory_of_operations_that_are_given_up_is_kept(comm: Comm, own_channel: Comm, looked: bool) -> None:
    """What arrives late must not land in memory that has become something else's."""
    rank, size = comm.rank, comm.size
    for nbytes in (24, 1 << 20):
        expected = np.full(nbytes, 1 + (rank - 1) % size, dtype=np.uint8)
        buffer = np.zeros(nbytes, dtype=np.uint8)
        alive, operation = weakref.ref(buffer), own_channel.receive_into(buffer, (rank - 1) % size, 5)
        if looked:
            next(operation)
        del buffer, operation
        gc.collect()
        assert alive() is not None
        do(comm, comm.allgather(b"everybody has given up"))
        do(own_channel, own_channel.send(np.full(nbytes, 1 + rank, dtype=np.uint8), (rank + 1) % size, 5))
        do(comm, comm.allgather(b"everything has arrived"))
        kept = alive()
        assert kept is not None and (kept == expected).all()
