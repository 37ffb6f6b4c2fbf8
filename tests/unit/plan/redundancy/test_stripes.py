"""Stripes of a parity set: laid out by hand, and what can be computed after any loss."""

from __future__ import annotations

import itertools

import pytest

from deeppart.plan.redundancy import (
    ALIGNMENT,
    MEMORY_BYTES,
    MOST_BLOCK_BYTES,
    MOST_MEMBERS,
    Stripes,
    block_bytes_for,
)

# --- stripes ----------------------------------------------------------------------------------------------------------


def test_stripes_of_four_members_by_hand() -> None:
    """G = 4, m = 2: stripe s has parity on members s and s + 1, data from s + 2 and s + 3."""
    stripes = Stripes(4, 2, 128, 1000)
    assert stripes.data_blocks == 2 and stripes.rows == 4
    assert [[stripes.source(s, i) for i in range(2)] for s in range(4)] == [[2, 3], [3, 0], [0, 1], [1, 2]]
    assert [[stripes.keeper(s, j) for j in range(2)] for s in range(4)] == [[0, 1], [1, 2], [2, 3], [3, 0]]
    assert [stripes.length(row) for row in range(4)] == [128, 128, 128, 128]  # 232 bytes are left for two blocks
    assert [stripes.start(row, block) for row in range(4) for block in range(2)] == list(range(0, 1024, 128))
    assert stripes.parity_bytes == 1024
    assert [stripes.filled(3, block, 1000) for block in range(2)] == [128, 104]
    assert [stripes.filled(3, block, 900) for block in range(2)] == [128, 4]
    assert [stripes.filled(3, block, 100) for block in range(2)] == [0, 0]


def test_the_last_row_is_only_as_long_as_needed() -> None:
    stripes = Stripes(3, 1, 4096, 8192 + 130)
    assert [stripes.length(row) for row in range(stripes.rows)] == [4096, 128]
    assert (stripes.start(1, 0), stripes.start(1, 1), stripes.parity_bytes) == (8192, 8320, 4096 + 128)


def test_nothing_to_protect_is_no_row() -> None:
    stripes = Stripes(3, 1, 4096, 0)
    assert (stripes.rows, stripes.parity_bytes) == (0, 0)


def test_blocks_fit_into_the_memory_set_aside_for_encoding() -> None:
    """Two rows under way, each with k blocks out, k in, m computed and m received."""
    for members in range(2, MOST_MEMBERS + 1):
        block = block_bytes_for(members)
        assert 0 < block <= MOST_BLOCK_BYTES and block % ALIGNMENT == 0, members
        assert 2 * 2 * members * block <= MEMORY_BYTES, members
    assert block_bytes_for(2) == MOST_BLOCK_BYTES


def can_be_rebuilt(members: int, tolerate: int, lost: int, data: set[int], parity: set[int]) -> bool:
    """By counting, after the description of the layout: k blocks of each stripe that the lost member is in."""
    for stripe in range(members):
        keepers = {(stripe + j) % members for j in range(tolerate)}
        sources = set(range(members)) - keepers
        if lost in sources and len(sources & data) + len(keepers & parity) < members - tolerate:
            return False
    return True


@pytest.mark.parametrize(("members", "tolerate"), [(g, m) for g in range(2, 6) for m in range(1, g)])
def test_what_can_be_rebuilt_after_any_loss_of_parts_and_parity(members: int, tolerate: int) -> None:
    stripes = Stripes(members, tolerate, 64, 1000)
    places = range(members)
    subsets = [set(subset) for count in range(members + 1) for subset in itertools.combinations(places, count)]
    agreed = {True: 0, False: 0}
    for data, parity in itertools.product(subsets, subsets):
        for lost in set(places) - data:
            expected = can_be_rebuilt(members, tolerate, lost, data, parity)
            assert stripes.can_rebuild(lost, data, parity) is expected, (lost, data, parity)
            agreed[expected] += 1
            if len(set(places) - (data & parity)) <= tolerate:
                assert expected, "no more members than tolerated lack anything"
    assert all(agreed.values())


@pytest.mark.parametrize(("members", "tolerate"), [(g, m) for g in range(2, 9) for m in range(1, g)])
def test_as_many_members_as_promised_can_be_lost_and_no_more(members: int, tolerate: int) -> None:
    stripes = Stripes(members, tolerate, 64, 1000)
    for count in range(1, members + 1):
        for gone in itertools.combinations(range(members), count):
            left = set(range(members)) - set(gone)
            assert {stripes.can_rebuild(lost, left, left) for lost in gone} == {count <= tolerate}, gone
