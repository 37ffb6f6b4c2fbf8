"""Everyone tells everyone something: of any length, in any number of ranks."""

from __future__ import annotations

import pytest

from deeppart.comm import Comm, exchange
from tests.unit.comm.worlds import do, on_all, world

#: By what is added of the two ranks' numbers, so that each has others to send and to receive.
LENGTHS = [0, 1, 7, 0, 300_000, 70_000, 8]


def message(source: int, to: int) -> bytes:
    length = LENGTHS[(3 * source + to) % len(LENGTHS)]
    return (b"%d to %d;" % (source, to) * (length // 6 + 1))[:length]


def exchanged(comm: Comm) -> list[bytes]:
    return do(comm, exchange(comm, [message(comm.rank, to) for to in range(comm.size)]))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_each_gets_what_is_for_it(size: int) -> None:
    with world(size) as comms:
        found = on_all(size, lambda rank: [exchanged(comms[rank]) for _ in range(2)])
    for rank in range(size):
        assert found[rank] == [[message(source, rank) for source in range(size)]] * 2
