"""The communicator on real ranks: every operation, waits that end, agreement, messages above 2 GiB."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xxhash

from deeppart.comm import Comm, agree, connect, finish, raise_together, together, waiting
from deeppart.elastic.ranks import ranks_of_job
from deeppart.errors import CommError, PeerTimeoutError, RemoteRankError, StateError
from deeppart.stopping import Agreement, agreement_of_job

pytestmark = pytest.mark.mpi(min_size=2)

#: Of an operation.
LIMIT_S = 100.0


@pytest.fixture(scope="module")
def comm() -> Comm:
    """All ranks of this mpirun."""
    return connect(None, LIMIT_S)


@pytest.fixture
def own_channel(comm: Comm) -> Comm:
    """A channel that a test may break."""
    return finish(comm, comm.channel(), "channel", LIMIT_S)


def do(comm: Comm, operation: Any) -> Any:
    """Bring an operation to its end."""
    return finish(comm, operation, "test", LIMIT_S)


# --- The communicator on real ranks -----------------------------------------------------------------------------------


def test_collectives(comm: Comm) -> None:
    rank, size = comm.rank, comm.size
    texts = [b"x" * (5 * place) for place in range(size)]
    assert do(comm, comm.allgather(texts[rank])) == texts
    assert do(comm, comm.gather(texts[rank])) == (texts if rank == 0 else None)
    for root in range(size):
        assert do(comm, comm.broadcast(b"from root" if rank == root else None, root)) == b"from root"
    assert do(comm, comm.broadcast(b"" if rank == 0 else None)) == b""
    assert do(comm, comm.maximum(np.array([rank, -rank, 7]))).tolist() == [size - 1, 0, 7]


@pytest.mark.parametrize("piece_bytes", [1 << 20, 70_000])
def test_transfers(comm: Comm, piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deeppart.comm.mpi.PIECE_BYTES", piece_bytes)  # one piece, several
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


def after_a_broken_session(comm: Any) -> list[bool]:
    """Sessions that end in the middle of exchanges, each followed by one in which everything is new."""
    found, channel = [], connect(comm, LIMIT_S)
    other, kept = 1 - channel.rank, []
    for nbytes in (8, 100_000):
        old = np.full(nbytes, 9, dtype=np.uint8)
        under_way = [channel.send(old, other, 3), channel.allgather(b"old")]
        if channel.rank:
            under_way.append(channel.receive_into(kept_buffer := np.zeros(nbytes, dtype=np.uint8), other, 3))
            kept.append(kept_buffer)
        for each in under_way:
            with contextlib.suppress(CommError):  # the other rank may have ended the session already
                next(each, None)
        channel.abandon(CommError("an error in the middle of an exchange"))
        channel.release()
        with pytest.raises(CommError, match="has ended"):  # whatever thread still has it
            channel.send(old, other, 3)
        channel = connect(comm, LIMIT_S)
        new, here = np.full(nbytes, 1 + channel.rank, dtype=np.uint8), np.zeros(nbytes, dtype=np.uint8)
        for operation in (channel.send(new, other, 3), channel.receive_into(here, other, 3)):
            finish(channel, operation, "test", LIMIT_S)
        texts = finish(channel, channel.allgather(b"new"), "test", LIMIT_S)
        found.append(texts == [b"new"] * 2 and bool((here == 1 + other).all()))
    channel.release()
    return found


def test_nothing_of_an_interrupted_session_is_taken_for_something_of_the_next(run_on: Any) -> None:
    assert run_on(2, after_a_broken_session) == [[True] * 2] * 2


@pytest.mark.of_mpi
def test_memory_that_mpi_may_still_read_is_kept(comm: Comm, own_channel: Comm) -> None:
    """That of a message that is never received, when its sender has given it up."""
    sent = np.zeros(1 << 20, dtype=np.uint8)
    kept, sending = weakref.ref(sent), own_channel.send(sent, (comm.rank + 1) % comm.size, 5)
    next(sending)
    del sent, sending
    gc.collect()
    do(comm, comm.allgather(b"everybody has given up"))
    assert kept() is not None


# --- Waits that end, and say for whom they waited ---------------------------------------------------------------------


@pytest.mark.parametrize("action", ["always", "error"])
def test_who_waits_long_says_for_whom(
    own_channel: Comm, action: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, one rank for all that wait; and it goes on waiting, where warnings are errors too."""
    monkeypatch.setattr(waiting, "NOTICE_S", 1.0)
    monkeypatch.setattr(waiting, "PATIENCE_MOST_S", 0.1)
    rank, late = own_channel.rank, own_channel.size - 1
    if rank == late:
        time.sleep(3.0)
    with warnings.catch_warnings(record=action == "always") as caught:
        warnings.simplefilter(action)
        texts = finish(own_channel, own_channel.allgather(b"x"), "checkpoint(step=7)", LIMIT_S)
    assert texts == [b"x"] * own_channel.size
    said = [str(each.message) for each in caught] if caught is not None else capsys.readouterr().err.splitlines()
    assert len(said) == (rank == 0)
    assert all(f"checkpoint(step=7): waiting for rank {late} for 1 s" in text for text in said)


def test_a_missing_rank_is_named_and_the_channel_says_it_is_broken(comm: Comm, own_channel: Comm) -> None:
    if comm.rank < comm.size - 1:
        with pytest.raises(PeerTimeoutError, match=r"waited .* for ") as caught:
            finish(own_channel, own_channel.maximum(np.zeros(1, dtype=np.int64)), "save(step=4)", 1.0)
        named = caught.value.summary.partition(" for ")[2]
        assert re.search(rf"\b{comm.size - 1}\b", named), "on a busy machine others may be late as well"
        with pytest.raises(CommError, match="can no longer communicate"):
            finish(own_channel, own_channel.allgather(b""), "save(step=5)", 1.0)
    assert do(comm, comm.allgather(b"the other channel works")) == [b"the other channel works"] * comm.size


def test_ranks_that_wait_hear_of_one_that_has_abandoned_the_channel(comm: Comm, own_channel: Comm) -> None:
    """Long before their timeout, also if they begin to wait only afterwards; no other channel is affected."""
    last = comm.size - 1
    if comm.rank == last:
        own_channel.abandon(CommError("a thread has ended"))
        with pytest.raises(CommError, match="a thread has ended"):
            finish(own_channel, own_channel.allgather(b""), "save(step=4)", LIMIT_S)
    else:
        began = time.monotonic()
        with pytest.raises(CommError, match=rf"save\(step=4\): rank {last} cannot take part any more"):
            finish(own_channel, own_channel.allgather(b""), "save(step=4)", 10 * LIMIT_S)
        assert time.monotonic() - began < LIMIT_S
    assert do(comm, comm.allgather(b"the other channel works")) == [b"the other channel works"] * comm.size


def hears_from_one(comm: Any, seconds: float) -> tuple[str, float]:
    """The last rank abandons its channel, and each rank tells the next one only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deeppart.comm.transport._FEW", 1)
        patch.setattr("deeppart.comm.transport.neighbours", lambda rank, size: [(rank + 1) % size])
        patch.setattr(waiting, "PATIENCE_MOST_S", 0.1)
        channel = connect(comm, LIMIT_S)
        try:
            began = time.monotonic()
            if channel.rank == channel.size - 1:
                time.sleep(seconds)  # the others have told each other that they wait
                channel.abandon(CommError("a thread has ended"))
                return "", 0.0
            with pytest.raises(CommError) as caught:
                finish(channel, channel.allgather(b""), "save(step=4)", 10 * LIMIT_S)
            return caught.value.summary, time.monotonic() - began
        finally:
            comm.Barrier()
            channel.release()


def test_what_one_rank_has_heard_it_passes_on(comm: Comm, run_on: Any) -> None:
    """With many ranks, each one tells a few."""
    *found, _ = run_on(comm.size, hears_from_one, 3.0)
    for said, took_s in found:
        assert f"rank {comm.size - 1} cannot take part any more" in said and took_s < LIMIT_S


# --- Every rank sees the same before it goes on -----------------------------------------------------------------------


def test_agreement(comm: Comm) -> None:
    agreed = agree(comm, {"same": 5, "other": comm.rank}, {"flag": comm.rank}, "test", LIMIT_S)
    assert agreed.differing == {"other"} and agreed.flags == {"flag": comm.size - 1}
    raise_together(comm, None, "test", LIMIT_S)
    with pytest.raises(StateError if comm.rank == 1 else RemoteRankError, match="what is wrong"):
        raise_together(comm, StateError("what is wrong") if comm.rank == 1 else None, "test", LIMIT_S)


def fails_on(rank: int, failing: int, error: Exception) -> Callable[[], int]:
    """Something to do, which fails on one rank and returns ten times the rank on the others."""

    def do() -> int:
        if rank == failing:
            raise error
        return 10 * rank

    return do


@pytest.mark.parametrize("last", [False, True])
def test_an_error_of_the_library_ends_it_on_all_ranks(comm: Comm, last: bool) -> None:
    failing = comm.size - 1 if last else 0
    own = StateError("what is wrong", todo="mend it")
    with pytest.raises(StateError if comm.rank == failing else RemoteRankError) as caught:
        together(comm, fails_on(comm.rank, failing, own), "it failed", ("the test", LIMIT_S))
    if comm.rank == failing:
        assert caught.value is own, "as it is"
    else:
        assert caught.value.summary == f"the test: refused by rank {failing}"
        assert "what is wrong" in str(caught.value.found) and "it failed" not in str(caught.value)
        assert "no rank has saved or changed anything" in str(caught.value.todo)


# --- One channel for a process, whatever shares it --------------------------------------------------------------------


def test_what_is_under_way_is_not_disturbed_by_what_others_exchange() -> None:
    """Rank 0 is further in one call than the others when all of them begin another one."""
    ranks, agreement = ranks_of_job(), agreement_of_job()
    answers = list[bool]()
    for call in range(12):
        answers.append(agreement.ask(ranks.rank == 1 and call == 6))
        for _ in range(5 if ranks.rank == 0 else 0):
            time.sleep(0.01)
            go_on(agreement)
        assert ranks.gather([ranks.rank, call], "comparing") == [[rank, call] for rank in range(ranks.size)]
    assert answers == [False] * 7 + [True] * 5
    assert not agreement.agree(False) and agreement.agree(ranks.rank == 0)
    agreement.finish()


def go_on(agreement: Agreement) -> None:
    """As far as it goes without the others."""
    if agreement._operation is not None:
        try:
            next(agreement._operation)
        except StopIteration as stop:
            agreement._operation, agreement._said = None, stop.value
