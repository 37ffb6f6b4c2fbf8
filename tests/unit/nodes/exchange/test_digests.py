"""Digests of the blocks of a set, told to those that need them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deeppart.nodes.exchange.parity import DIGEST_BYTES, BlockDigests
from deeppart.plan.redundancy import Member, ParitySet, Stripes
from tests.unit.comm.worlds import do, on_all, world

MEMBERS, ROWS, BLOCK_BYTES = 5, 7, 64


def digest(kind: str, member: int, row: int, block: int) -> bytes:
    return f"{kind} {member} {row} {block}".encode().ljust(DIGEST_BYTES)


@pytest.mark.parametrize("tolerate", [1, 2])
@pytest.mark.parametrize("changed", [False, True])
def test_who_sent_a_block_and_who_keeps_parity_of_it_get_its_digest(tolerate: int, changed: bool) -> None:
    """In as many messages as there are ranks to tell, however many rows there are."""
    k = MEMBERS - tolerate
    stripes = Stripes(MEMBERS, tolerate, BLOCK_BYTES, ROWS * k * BLOCK_BYTES)
    ranks = (3, 0, 4, 2, 1)
    which = ParitySet(tuple(Member(rank, rank) for rank in ranks), tolerate)

    def of_stripe(stripe: int, row: int) -> list[bytes]:
        data = [digest("data", stripes.source(stripe, i), row, i) for i in range(k)]
        return data + [digest("parity", stripe, row, j) for j in range(tolerate)]

    with world(MEMBERS) as comms:

        def run(rank: int) -> Any:
            place = ranks.index(rank)
            found = BlockDigests(which, stripes, place)
            for row in range(ROWS):
                for i in range(k):
                    if (row, i) != (ROWS - 1, k - 1):  # behind the end of the part
                        found.sent(row, i, digest("data", place, row, i))
                found.encoded(row, of_stripe(place, row))
            if changed and place == 2:  # it has read other bytes of the first block that it encodes
                found.encoded(4, [bytes(DIGEST_BYTES), *of_stripe(place, 4)[1:]])
            before = comms[rank]._sent.total()
            do(comms[rank], found.exchange(comms[rank]))
            assert comms[rank]._sent.total() - before == k + tolerate - 1
            for row, j in np.ndindex(ROWS, tolerate):
                stripe = stripes.kept_stripe(place, j)
                if not changed or stripe != 2:
                    assert found.kept(row)[j].tobytes() == b"".join(of_stripe(stripe, row))
            return found.is_encoded_as_sent()

        right = [not changed or ranks.index(rank) != stripes.source(2, 0) for rank in range(MEMBERS)]
        assert on_all(MEMBERS, run) == right
