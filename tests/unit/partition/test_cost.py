"""What a share costs: its bytes, and kappa for each tensor in it."""

from __future__ import annotations

import pytest

from deeppart.errors import StateError
from deeppart.model import LeafSpec
from deeppart.partition import Plan, partition


def spans(plan: Plan) -> list[list[tuple[int, int, int]]]:
    """(leaf, start, length) of every rank."""
    return [[(span.leaf, span.start, span.length) for span in share.spans] for share in plan.shares()]


def test_kappa_counts_tensors_as_well_as_bytes() -> None:
    many = [LeafSpec(f"small/{i}", 10) for i in range(10)]
    leaves = [*many, LeafSpec("z", 1100)]
    # By bytes alone half of 1200 lies in z; at 100 bytes a tensor, the ten small ones cost 1100 and z 1200.
    assert spans(partition(leaves, 2, kappa=0))[0] == [*((i, 0, 10) for i in range(10)), (10, 0, 500)]
    # Half of 2300 is 1150: that is in z's kappa zone, so the cut is z's start and nothing is split.
    plan = partition(leaves, 2, kappa=100)
    assert spans(plan) == [[(i, 0, 10) for i in range(10)], [(10, 0, 1100)]]
    assert plan.costs().tolist() == [1100.0, 1200.0]
    assert plan.spans_per_rank().tolist() == [10, 1]
    assert plan.bytes_per_rank().tolist() == [100, 1100]
    assert plan.split_leaves() == 0


def test_a_rank_that_begins_inside_a_leaf_pays_kappa_for_it() -> None:
    plan = partition([LeafSpec("w", 900)], ranks=2, kappa=100)
    assert spans(plan) == [[(0, 0, 400)], [(0, 400, 500)]]
    assert plan.costs().tolist() == [500.0, 600.0]


def test_sizes_beyond_exact_arithmetic_are_refused() -> None:
    with pytest.raises(StateError, match="beyond what one plan can count"):
        partition([LeafSpec("a", 2**62)], ranks=2)
    with pytest.raises(StateError, match="beyond what one plan can count"):
        partition([LeafSpec("a", 1), LeafSpec("b", 1)], ranks=2, kappa=2**61)
    with pytest.raises(StateError, match="beyond what a file can hold"):
        partition([LeafSpec("a", 2**63)], ranks=2)
