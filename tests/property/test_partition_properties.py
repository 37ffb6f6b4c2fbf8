"""What holds of every plan, over random nestings, sizes from 0 bytes to 10 GB, 1 to 4,096 ranks, preload.

No tensor exists here: sizes are numbers. What a share costs is recomputed from its spans, never taken from the plan.
"""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from deeppart.model import LeafSpec
from deeppart.partition import STRATEGIES, Leaves, Plan, partition
from tests.sampling import examples

IntArray = NDArray[np.int64]
EXAMPLES = settings(max_examples=examples(150), deadline=None)

COMPONENTS = st.sampled_from(
    ["model", "optimizer", "state", "0", "2", "10", "a.b", "layer.7.w", "exp_avg", "é", "x~1y"]
)
PATHS = st.lists(COMPONENTS, min_size=1, max_size=5).map("/".join)
RANKS = st.one_of(st.integers(1, 9), st.sampled_from([16, 64, 100, 1000, 4096]))
KAPPAS = st.sampled_from([0, 1, 7, 4096, 65536, 10**6])
NAMES = st.sampled_from(STRATEGIES)


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int]:
    """(nbytes, itemsize): elements from none to 10 GB worth, on every scale."""
    itemsize = draw(st.sampled_from([1, 2, 4, 8, 16]))
    most = draw(st.sampled_from([0, 1, 5, 1000, 10**6, 10**10 // itemsize]))
    return itemsize * draw(st.integers(0, most)), itemsize


@st.composite
def leaf_specs(draw: st.DrawFn) -> list[LeafSpec]:
    """Leaves of distinct paths."""
    paths = draw(st.lists(PATHS, max_size=40, unique=True))
    return [LeafSpec(path, *draw(sizes())) for path in paths]


def preloads(ranks: int, seed: int) -> IntArray:
    """Nothing, a little, or much more than what there is to share, on some or all of the ranks."""
    random = np.random.default_rng(seed)
    scale = int(random.choice([1, 1000, 10**8, 10**11]))
    load: IntArray = random.integers(0, scale, ranks) * (random.random(ranks) < random.choice([0.05, 0.5, 1.0]))
    return load


def costs_of_spans(plan: Plan, kappa: int) -> IntArray:
    """int64[ranks]: bytes + kappa * spans, counted from the spans."""
    table = plan.table()
    total = np.zeros(plan.ranks, dtype=np.int64)
    np.add.at(total, table.rank, table.length + kappa)
    return total


def work(specs: list[LeafSpec], kappa: int) -> int:
    """Cost of all leaves when none is split."""
    return sum(spec.nbytes + kappa for spec in specs if spec.nbytes)


def water_level(load: list[int], amount: int) -> tuple[Fraction, int]:
    """(level, ranks below it), by raising the lowest ranks one after another."""
    ascending = sorted(load)
    carried = 0
    for count, lowest in enumerate(ascending, 1):
        carried += lowest
        level = Fraction(amount + carried, count)
        if count == len(ascending) or level <= ascending[count]:
            return level, sum(one < level for one in load)
    raise AssertionError("no ranks")


def assert_covers(plan: Plan, specs: list[LeafSpec]) -> None:
    """Every byte of every leaf once, in whole elements; no empty spans."""
    table = plan.table()
    assert (table.length > 0).all()
    order = np.lexsort((table.start, table.leaf))
    leaf, start, length = table.leaf[order], table.start[order], table.length[order]
    assert sorted(set(leaf.tolist())) == [number for number, spec in enumerate(specs) if spec.nbytes]
    first = np.append(True, leaf[1:] != leaf[:-1])[: len(leaf)]
    last = np.append(leaf[1:] != leaf[:-1], True)[: len(leaf)]
    nbytes = np.array([spec.nbytes for spec in specs], dtype=np.int64)
    itemsize = np.array([spec.itemsize for spec in specs], dtype=np.int64)
    end = start + length
    assert (start[first] == 0).all()
    assert (end[last] == nbytes[leaf[last]]).all()
    assert (end[:-1][~last[:-1]] == start[1:][~first[1:]]).all()
    assert (start % itemsize[leaf] == 0).all() and (length % itemsize[leaf] == 0).all()


@EXAMPLES
@given(leaf_specs(), RANKS, KAPPAS, NAMES, st.integers(0, 2**32))
def test_every_byte_is_saved_exactly_once(
    specs: list[LeafSpec], ranks: int, kappa: int, strategy: str, seed: int
) -> None:
    plan = partition(specs, ranks, kappa, strategy, preloads(ranks, seed) if seed % 2 else None)
    assert_covers(plan, specs)


@EXAMPLES
@given(leaf_specs(), RANKS, KAPPAS)
def test_no_share_costs_more_than_promised(specs: list[LeafSpec], ranks: int, kappa: int) -> None:
    plan = partition(specs, ranks, kappa)
    most = int(costs_of_spans(plan, kappa).max())
    mean = Fraction(work(specs, kappa), ranks)
    element = max((spec.itemsize for spec in specs if spec.nbytes), default=1)
    if mean >= 100 * element:
        assert most <= mean * Fraction(101, 100) + kappa
    assert most < mean + kappa + max(mean / 100, Fraction(element))


@EXAMPLES
@given(leaf_specs(), RANKS, KAPPAS, st.integers(0, 2**32))
def test_what_ranks_carry_already_is_balanced_too(specs: list[LeafSpec], ranks: int, kappa: int, seed: int) -> None:
    carried = preloads(ranks, seed)
    plan = partition(specs, ranks, kappa, preload=carried.astype(float))
    got = costs_of_spans(plan, kappa)
    amount = work(specs, kappa)
    level, wet = water_level(carried.tolist(), amount)
    element = max((spec.itemsize for spec in specs if spec.nbytes), default=1)
    slack = max(Fraction(amount, max(wet, 1)) / 100, Fraction(element)) + kappa
    taking = got > 0
    assert not taking[carried > math.floor(level)].any()
    assert all(total < level + slack for total in (got + carried)[taking].tolist())


@EXAMPLES
@given(leaf_specs(), RANKS, KAPPAS, NAMES, st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(
    specs: list[LeafSpec], ranks: int, kappa: int, strategy: str, random: Random
) -> None:
    shuffled = list(specs)
    random.shuffle(shuffled)

    def by_path(ordered: list[LeafSpec]) -> list[tuple[str, int, int, int]]:
        table = partition(ordered, ranks, kappa, strategy).table()
        columns = zip(*(column.tolist() for column in table), strict=True)
        return sorted((ordered[leaf].path, rank, start, length) for rank, leaf, start, length in columns)

    assert by_path(shuffled) == by_path(specs)


@EXAMPLES
@given(leaf_specs(), RANKS, KAPPAS, NAMES, st.integers(0, 2**32))
def test_a_ranks_own_share_is_that_rank_of_all_shares(
    specs: list[LeafSpec], ranks: int, kappa: int, strategy: str, seed: int
) -> None:
    carried = preloads(ranks, seed)
    plan = partition(specs, ranks, kappa, strategy, carried.astype(float))
    again = partition(Leaves.of(specs), ranks, kappa, strategy, carried.tolist())
    table, repeated = plan.table(), again.table()
    assert all((one == other).all() for one, other in zip(table, repeated, strict=True))
    rows = np.stack(table, axis=1)
    shares = list(plan.shares()) if ranks <= 100 else [plan.share(rank) for rank in range(0, ranks, 97)]
    for share in shares:
        spans = [(share.rank, span.leaf, span.start, span.length) for span in share.spans]
        assert spans == [tuple(row) for row in rows[rows[:, 0] == share.rank].tolist()]
    costs = costs_of_spans(plan, kappa)
    assert (plan.costs() == costs + carried).all()
    assert (plan.spans_per_rank() == np.bincount(table.rank, minlength=ranks)).all()
    assert (plan.bytes_per_rank() == costs - kappa * plan.spans_per_rank()).all()


def test_exabytes_are_counted_exactly() -> None:
    """Sums beyond 2**53, where float64 loses bytes: 4 EB in odd sizes over 65,536 ranks."""
    leaves, size = 200_000, 2 * 10**13 - 1
    plan = partition(Leaves(np.full(leaves, size), np.ones(leaves, dtype=np.int64)), 65_536)
    table = plan.table()
    assert sum(table.length.tolist()) == leaves * size > 2**61
    order = np.lexsort((table.start, table.leaf))
    leaf, start, end = table.leaf[order], table.start[order], (table.start + table.length)[order]
    same = leaf[1:] == leaf[:-1]
    assert (start[1:][same] == end[:-1][same]).all()
    assert (start[1:][~same] == 0).all() and (end[:-1][~same] == size).all()
