"""A job of one process: every collective gives back what this rank gave, and nobody else can be talked to."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import pytest

from deeppart.comm import SingleComm
from deeppart.comm.base import Operation
from deeppart.comm.waiting import finish
from deeppart.errors import CommError

T = TypeVar("T")


def done(operation: Operation[T]) -> T:
    return finish(SingleComm(), operation, "a test", 10.0)


def test_collectives_of_one() -> None:
    comm = SingleComm()
    assert done(comm.maximum(np.array([3, -1]))).tolist() == [3, -1]
    assert done(comm.allgather(b"mine")) == [b"mine"] == done(comm.gather(b"mine"))
    assert done(comm.broadcast(b"mine")) == b"mine"
    assert comm.heard() == {0} and (comm.rank, comm.size) == (0, 1)


def test_a_channel_that_breaks_does_not_break_the_others() -> None:
    comm = SingleComm()
    channel = done(comm.channel())
    channel.broken = CommError("closed")
    assert comm.broken is None


def test_there_is_nobody_to_send_to() -> None:
    comm, buffer = SingleComm(), np.zeros(4, dtype=np.uint8)
    with pytest.raises(CommError, match="nobody to send to"):
        comm.send(buffer, 1, 0)
    with pytest.raises(CommError, match="nobody to receive from"):
        comm.receive_into(buffer, 1, 0)
