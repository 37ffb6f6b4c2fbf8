"""What a share costs: its bytes, and kappa for each tensor in it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppart.errors import StateError
from deeppart.model import LeafSpec
from deeppart.partition import DEFAULT_KAPPA_BYTES, Plan, partition, usual_kappa


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


def test_the_usual_kappa_is_a_small_share_of_a_small_leaf() -> None:
    assert usual_kappa(np.array([10**9, 10**6])) == DEFAULT_KAPPA_BYTES == partition([LeafSpec("a", 10**6)], 2).kappa
    assert usual_kappa(np.full(100_000, 4096)) == 327 == partition([LeafSpec("a", 4096)], 2).kappa
    assert usual_kappa(np.array([3, 5])) == 0
    assert usual_kappa(np.zeros(0, dtype=np.int64)) == partition([], 2).kappa == DEFAULT_KAPPA_BYTES
    assert partition([LeafSpec("a", 4096)], 2, kappa=70_000).kappa == 70_000, "what is given holds"


#: What users have: name -> sizes in bytes, in the order of their paths.
STATES = {
    "2,000 small ones beside three of 51 MB": [3000] * 2000 + [51_000_000] * 3,
    "an embedding of 3 GB and 2,000 small ones": [3 * 10**9] + [4096] * 2000,
    "500 experts": [3_000_000] * 500 + [1024] * 500,
    "20,000 of 4 KiB": [4096] * 20_000,
    "one alone": [10**9],
}


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("name", STATES)
def test_bytes_are_balanced(name: str, ranks: int) -> None:
    """At 64 KiB a tensor, as it was once, one of two ranks saved 145 MB of 159 of the first of these."""
    leaves = [LeafSpec(f"{place:06d}", nbytes, 4) for place, nbytes in enumerate(STATES[name])]
    shares = partition(leaves, ranks).bytes_per_rank()
    assert shares.max() <= 1.1 * shares.mean()


@given(
    st.lists(st.integers(1, 2000).map(lambda count: 8 * count) | st.integers(1, 10**9), min_size=1, max_size=60),
    st.integers(1, 12),
)
def test_bytes_are_balanced_whatever_the_sizes(sizes: list[int], ranks: int) -> None:
    shares = partition([LeafSpec(f"{place:03d}", nbytes) for place, nbytes in enumerate(sizes)], ranks).bytes_per_rank()
    assert shares.max() <= 1.1 * shares.mean() + 1


def test_sizes_beyond_exact_arithmetic_are_refused() -> None:
    with pytest.raises(StateError, match="beyond what one plan can count"):
        partition([LeafSpec("a", 2**62)], ranks=2)
    with pytest.raises(StateError, match="beyond what one plan can count"):
        partition([LeafSpec("a", 1), LeafSpec("b", 1)], ranks=2, kappa=2**61)
    with pytest.raises(StateError, match="beyond what a file can hold"):
        partition([LeafSpec("a", 2**63)], ranks=2)
