"""Who reads which part, over which route, and that in words."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from unittest.mock import patch

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from deeppart.model import ParityIdentity
from deeppart.plan.restart import (
    Candidate,
    Portion,
    Read,
    Rebuild,
    Routes,
    Source,
    assign,
    explain,
    explain_parts,
    reading,
    survey,
)
from tests.unit.plan.restart.records import (
    PARITY_NAME,
    attempt,
    committed,
    copied,
    inventory,
    protected,
    shares,
    stored,
)

MIB = 1 << 20


def candidate_of(sizes: list[int], readers: tuple[int, ...]) -> Candidate:
    of = attempt(1, ranks=len(sizes))
    sources = [(Source("persistent", f"/p/{part}", readers, size, ""),) for part, size in enumerate(sizes)]
    return Candidate(of, tuple(sources))


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=60),
    ranks=st.integers(1, 12),
    nodes=st.integers(1, 4),
    data=st.data(),
)
def test_readers_are_balanced_as_greedily_as_can_be(
    sizes: list[int], ranks: int, nodes: int, data: st.DataObject
) -> None:
    """Against the plain rule: largest first, to the least loaded rank that can read it, own part on equal load."""
    groups = [tuple(rank for rank in range(ranks) if rank % nodes == node) for node in range(nodes)]
    groups = [group for group in groups if group] + [tuple(range(ranks))]
    choices = [data.draw(st.sampled_from(range(len(groups)))) for _ in sizes]
    sources = [(Source("local", f"/{part}", groups[choices[part]], size, ""),) for part, size in enumerate(sizes)]
    candidate = Candidate(attempt(1, ranks=len(sizes)), tuple(sources))
    load, expected = [0] * ranks, {}
    for part in sorted(range(len(sizes)), key=lambda part: (-sizes[part], part)):
        reader = min(groups[choices[part]], key=lambda rank: (load[rank], rank != part, rank))
        load[reader] += sizes[part]
        expected[part] = reader
    assert {read.part: read.reader for read in assign(candidate, ranks)} == expected


def test_thousands_of_ranks_are_planned_at_once() -> None:
    """Every rank plans alone: time and memory must not grow with the square of their number."""
    ranks = 8192
    of = attempt(10, ranks=ranks)
    nodes = tuple(rank // 8 for rank in range(ranks))
    parts = [[stored(of, part) for part in range(rank, rank + 8)] if rank % 8 == 0 else [] for rank in range(ranks)]
    for found in (parts, []):
        (candidate,) = survey(inventory(*found, node_of=nodes, commits=[committed(of)])).candidates
        assert [read.reader for read in assign(candidate, ranks)] == list(range(ranks))
        assert len({id(places[-1].readers) for places in candidate.sources}) == 1


# --- parts that several ranks read ------------------------------------------------------------------------------------


def portions(sizes: list[int], ranks: int) -> list[list[tuple[int, int]]]:
    """Of each part, who reads how much of it."""
    reads = assign(candidate_of(sizes, tuple(range(ranks))), ranks)
    return [[(each.reader, each.stop - each.first) for each in read.portions] for read in reads]


def test_no_file_is_opened_for_little() -> None:
    assert portions([30 * MIB], 8) == [[]]
    assert portions([40 * MIB], 8) == [[(0, 16 * MIB), (1, 24 * MIB)]]
    (shared,) = portions([1600 * MIB], 1000)
    assert len(shared) == 100 and all(nbytes == 16 * MIB for _, nbytes in shared)


def test_parts_that_are_to_be_written_elsewhere_are_read_whole() -> None:
    candidate = candidate_of([400 * MIB], tuple(range(4)))
    assert assign(candidate, 4, whole=True) == (Read(0, 0, candidate.sources[0][0]),)


def test_ranks_that_rebuild_read_less_of_the_rest() -> None:
    identity = ParityIdentity(attempt(1), (), 1, 0, 0)
    rebuild = Source("parity", "set", (0, 1), 300 * MIB, "", Rebuild(identity, (), ()))
    other = Source("persistent", "/p/1", (0, 1), 500 * MIB, "")
    first, second = assign(Candidate(attempt(1, ranks=2), ((rebuild,), (other,))), 2)
    assert first.portions == () and first.reader == 0
    assert second.portions == (Portion(1, 0, 400 * MIB), Portion(0, 400 * MIB, 500 * MIB))
    assert second.reader == 1, "who reads the beginning tells of the part"


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=40),
    ranks=st.integers(1, 12),
    nodes=st.integers(0, 4),
    least=st.sampled_from([1, 10, 200]),
    data=st.data(),
)
def test_every_byte_has_one_reader_that_reaches_it(
    sizes: list[int], ranks: int, nodes: int, least: int, data: st.DataObject
) -> None:
    groups = [tuple(rank for rank in range(ranks) if rank % nodes == node) for node in range(nodes)]
    groups = [group for group in groups if group] + [tuple(range(ranks))]
    choices = [data.draw(st.sampled_from(range(len(groups)))) for _ in sizes]
    sources = [(Source("local", f"/{part}", groups[choices[part]], size, ""),) for part, size in enumerate(sizes)]
    with patch.object(reading, "LEAST_PORTION_BYTES", least):
        reads = assign(Candidate(attempt(1, ranks=len(sizes)), tuple(sources)), ranks)
    load = [0] * ranks
    assert [read.part for read in reads] == list(range(len(sizes)))
    for read in reads:
        shared = read.portions or (Portion(read.reader, 0, read.source.nbytes),)
        assert shared[0].reader == read.reader and len(read.portions) != 1
        assert shared[0].first == 0 and shared[-1].stop == read.source.nbytes
        assert all(one.stop == other.first for one, other in pairwise(shared))
        assert len({each.reader for each in shared}) == len(shared)
        assert read.readers == tuple(each.reader for each in shared)
        for each in shared:
            assert each.reader in read.source.readers
            assert each.stop - each.first >= min(least, read.source.nbytes)
            load[each.reader] += each.stop - each.first
    if nodes == 0:
        assert max(load) < sum(sizes) / ranks + 2 * least + 1


@given(
    lengths=st.lists(st.integers(0, 50), max_size=30),
    cuts=st.lists(st.integers(1, 999), unique=True, max_size=6),
    nbytes=st.just(1000),
)
def test_every_chunk_has_one_reader(lengths: list[int], cuts: list[int], nbytes: int) -> None:
    raw_starts = [sum(lengths[:number]) for number in range(len(lengths) + 1)]
    limits = [0, *sorted(cuts), nbytes]
    shared = tuple(Portion(rank, *limits[rank : rank + 2]) for rank in range(len(limits) - 1))
    read = Read(0, 0, Source("local", "/0", tuple(range(7)), nbytes, ""), shared if cuts else ())
    found = read.chunks(raw_starts)
    assert list(found) == list(range(len(shared)))
    assert [chunk for chunks in found.values() for chunk in chunks] == list(range(len(lengths)))
    for portion in read.portions:
        for chunk in found[portion.reader]:
            assert raw_starts[chunk] * nbytes < portion.stop * raw_starts[-1] or raw_starts[chunk] == raw_starts[-1]
            assert raw_starts[chunk] * nbytes >= portion.first * raw_starts[-1]


@given(
    drawn=st.lists(st.integers(0, 6), min_size=1, max_size=60),
    place=st.integers(0, 1 << 20),
    number=st.integers(0, 10_000),
    seen=st.booleans(),
)
@example(drawn=[rank // 2 for rank in range(600)], place=599, number=12345, seen=True)
@example(drawn=list(range(40)), place=20, number=7, seen=False)
@example(drawn=[0], place=0, number=0, seen=True)
def test_everybody_gets_it_once_and_each_node_too(drawn: list[int], place: int, number: int, seen: bool) -> None:
    """Wherever the ranks are: those of a node need not be next to each other."""
    numbers: dict[int, int] = {}
    nodes = [numbers.setdefault(node, len(numbers)) for node in drawn]
    reader = place % len(nodes)
    found = {rank: Routes(nodes, rank).hop(reader, number, seen=seen) for rank in range(len(nodes))}
    way = {rank: hop for rank, hop in found.items() if hop is not None}
    sent = Counter(target for hop in way.values() for target in hop.targets)
    needed = {rank for rank, node in enumerate(nodes) if rank != reader and not (seen and node == nodes[reader])}
    assert sent == Counter(dict.fromkeys(needed, 1))
    for rank, hop in way.items():
        assert all(way[target].source == rank for target in hop.targets)
        assert rank == reader or hop.source is not None
    reached = [reader]
    for rank in reached:
        reached += way[rank].targets if rank in way else ()
    assert set(reached) == needed | {reader}
    entering = [nodes[target] for rank, hop in way.items() for target in hop.targets if nodes[rank] != nodes[target]]
    assert sorted(entering) == sorted(set(nodes) - {nodes[reader]})  # once to each node


@pytest.mark.parametrize(
    ("lost", "line"),
    [
        ([], "step 10: 4 of 4 parts local; saved by 4 ranks"),
        ([1, 3], "step 10: 2 of 4 parts local, 2 of 4 parts persistent; saved by 4 ranks"),
        ([0, 1, 2, 3], "step 10: 4 of 4 parts persistent; saved by 4 ranks"),
    ],
)
def test_the_choice_is_explained_in_one_line(lost: list[int], line: str) -> None:
    of = attempt(10)
    parts = [[] if part in lost else [stored(of, part)] for part in range(4)]
    (candidate,) = survey(inventory(*parts, commits=[committed(of)])).candidates
    assert explain(candidate, assign(candidate, 4)) == line


def test_every_part_is_explained_with_what_comes_next() -> None:
    of = attempt(10)
    found = [[stored(of, 0)], [], [stored(of, 2)], [stored(of, 3)]]
    (candidate,) = survey(protected(found, shares(of, [1], tolerate=2))).candidates
    there = "{} other parts and 3 shares of parity are there; 2 of 4 nodes may be lost"
    fallback, rebuild = (f"{PARITY_NAME} ({there.format(count)})" for count in (2, 3))
    assert explain_parts(candidate, assign(candidate, 4)) == [
        f"part 0 (1000 bytes): rank 0 takes it from local /local/1/10/0; otherwise {fallback}",
        f"part 1 (1000 bytes): rank 1 takes it from {rebuild}; there is no other source",
        f"part 2 (1000 bytes): rank 2 takes it from local /local/1/10/2; otherwise {fallback}",
        f"part 3 (1000 bytes): rank 3 takes it from local /local/1/10/3; otherwise {fallback}",
    ]
    found[0].append(copied(of, 1))
    with_all = protected(found, shares(of, [1], tolerate=2), commits=[committed(of)])
    (candidate,) = survey(with_all).candidates
    assert explain_parts(candidate, assign(candidate, 4))[1] == (
        f"part 1 (1000 bytes): rank 0 takes it from partner /partner/1/10/1; otherwise {rebuild}, "
        "then persistent /ckpt/10/part-1"
    )
