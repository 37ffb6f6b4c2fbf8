"""The way of a chunk: everybody gets it once, from somebody who has it, in few steps; all carry the same load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppart.plan.restart import Hop, Routes
from deeppart.plan.restart.reading import FANOUT

SHAPES = [[1], [2], [1, 1], [4, 4], [1, 3, 2], [8] * 5, [1] * 40, [20, 1, 33], [2] * 300]


def node_of(sizes: Sequence[int]) -> list[int]:
    """Ranks of a node are next to each other."""
    return [node for node, size in enumerate(sizes) for _ in range(size)]


def hops(nodes: list[int], reader: int, number: int, *, seen: bool) -> dict[int, Hop]:
    found = {rank: Routes(nodes, rank).hop(reader, number, seen=seen) for rank in range(len(nodes))}
    return {rank: hop for rank, hop in found.items() if hop is not None}


def check(nodes: list[int], reader: int, number: int, *, seen: bool) -> int:
    """Every rank that needs it gets it once; returns after how many messages in a row the last one has it."""
    way = hops(nodes, reader, number, seen=seen)
    sent = Counter(target for hop in way.values() for target in hop.targets)
    needed = {rank for rank, node in enumerate(nodes) if rank != reader and not (seen and node == nodes[reader])}
    assert sent == Counter(dict.fromkeys(needed, 1))
    for rank, hop in way.items():
        assert all(way[target].source == rank for target in hop.targets)
        assert rank == reader or hop.source is not None
    depth, deepest = {reader: 0}, 0
    queue = [reader]
    for rank in queue:
        for target in way[rank].targets if rank in way else ():
            depth[target] = depth[rank] + 1
            deepest = max(deepest, depth[target])
            queue.append(target)
    assert depth.keys() == needed | {reader}
    entering = [(nodes[target]) for rank, hop in way.items() for target in hop.targets if nodes[rank] != nodes[target]]
    assert sorted(entering) == sorted(set(nodes) - {nodes[reader]})  # once to each node
    return deepest


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("sizes", SHAPES)
def test_everybody_gets_it_once_and_each_node_too(sizes: list[int], seen: bool) -> None:
    nodes = node_of(sizes)
    for reader in {0, len(nodes) // 2, len(nodes) - 1}:
        for number in (0, 1, 7, 12345):
            check(nodes, reader, number, seen=seen)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.data())
def test_wherever_the_ranks_are(drawn: list[int], data: st.DataObject) -> None:
    numbers: dict[int, int] = {}
    nodes = [numbers.setdefault(node, len(numbers)) for node in drawn]  # of one node, not next to each other
    reader, number = data.draw(st.integers(0, len(nodes) - 1)), data.draw(st.integers(0, 10_000))
    check(nodes, reader, number, seen=data.draw(st.booleans()))


def test_a_rank_alone_sends_nothing() -> None:
    assert Routes([0], 0).hop(0, 3, seen=False) is None


def test_where_all_find_it_in_the_memory_of_their_node_nothing_is_sent() -> None:
    assert hops(node_of([64]), 5, 3, seen=True) == {}


@pytest.mark.parametrize(("sizes", "steps"), [([1] * (FANOUT + 1), 1), ([1] * 273, 2), ([8] * 512, 4)])
def test_the_steps_grow_with_the_logarithm_of_the_nodes(sizes: list[int], steps: int) -> None:
    assert check(node_of(sizes), 0, 3, seen=True) == steps


def test_over_many_chunks_all_ranks_carry_alike() -> None:
    """From one reader alone, which is the worst: all but it and its node send as much as any other."""
    nodes = node_of([4] * 40)
    carried: Counter[int] = Counter()
    chunks = 4 * 39  # every node in every place of the tree, every rank as its head
    for number in range(chunks):
        for rank, hop in hops(nodes, 0, number, seen=True).items():
            carried[rank] += len(hop.targets)
    others = [carried[rank] for rank in range(4, len(nodes))]
    assert max(others) <= 1.5 * sum(others) / len(others)
