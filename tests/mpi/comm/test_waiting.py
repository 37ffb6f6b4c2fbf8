"""Waits that end, and say for whom they waited.

Run inside mpirun (``make test-mpi``).
"""

from __future__ import annotations

import re
import time
import warnings
from typing import Any

import numpy as np
import pytest

from deeppart.comm import Comm, finish, waiting
from deeppart.errors import CommError, PeerTimeoutError
from tests.mpi.comm.limits import LIMIT_S, do

pytestmark = pytest.mark.mpi(min_size=2)


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
