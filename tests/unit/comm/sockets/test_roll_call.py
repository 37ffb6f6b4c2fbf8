"""What ranks tell each other about whom they wait for."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from deeppart.comm.sockets.roll_call import RollCall
from deeppart.comm.sockets.trees import neighbours


@given(st.integers(1, 40), st.sets(st.integers(0, 39)), st.randoms())
def test_all_that_wait_hear_of_all_that_wait(size: int, waiting: set[int], chance: object) -> None:
    """Though each tells neighbours only, as long as all pass it on."""
    calls = [RollCall(size) for _ in range(size)]
    for rank in (here := waiting & set(range(size))):
        row = np.zeros(size, dtype=np.int64)
        row[rank] = 5
        calls[rank].merge(7, row)
    for _ in range(2 * size.bit_length() + 2):
        sent = [(rank, calls[rank].news()) for rank in range(size)]
        for rank, news in sent:
            for channel, row_bytes in news:
                for other in neighbours(rank, size):
                    calls[other].merge(channel, np.frombuffer(row_bytes, dtype=np.int64))
    assert all(not call.news() for call in calls), "nobody talks on for ever"
    for call in calls:
        assert set(np.flatnonzero(call.row(7)).tolist()) == here


def test_rows_of_another_length_and_old_numbers_change_nothing() -> None:
    call = RollCall(3)
    call.merge(1, np.array([4, 0, 0]))
    assert [channel for channel, _ in call.news()] == [1]
    call.merge(1, np.array([3, 0, 0]))
    call.merge(1, np.array([9, 9]))
    assert call.news() == [] and call.row(1).tolist() == [4, 0, 0]
    assert call.row(2).tolist() == [0, 0, 0]
    call.merge(1, np.array([4, 1, 0]))
    call.forget(1)
    assert call.news() == [] and call.row(1).tolist() == [0, 0, 0]
