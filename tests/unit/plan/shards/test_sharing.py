"""The rules by which ranks share out what some of them hold alike."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from deeppart.model import LeafSpec
from deeppart.model.boxes import Box
from deeppart.partition import DEFAULT_KAPPA_BYTES, usual_kappa
from deeppart.plan.shards import added_cost, in_order, least_usual_kappa, share_set

BOXES = st.tuples(st.tuples(st.integers(0, 9)), st.tuples(st.integers(1, 9))).map(lambda each: Box(*each))


@given(st.lists(st.tuples(st.sampled_from("abc"), BOXES), unique=True, max_size=8), st.randoms())
def test_shards_come_into_one_order_whatever_number_they_have_on_a_rank(
    shards: list[tuple[str, Box]], random: object
) -> None:
    other = list(shards)
    random.shuffle(other)  # type: ignore[attr-defined]
    assert [shards[place] for place in in_order(shards)] == [other[place] for place in in_order(other)]


def test_the_least_loaded_rank_of_a_set_gets_most() -> None:
    plan = share_set([LeafSpec("w", 1000)], 10, np.array([0, 600], dtype=np.int64))
    assert plan.bytes_per_rank().tolist() == [795, 205]
    assert added_cost(plan).tolist() == [805, 215]


@given(st.lists(st.lists(st.integers(1, 10**6), max_size=5), max_size=5))
def test_the_cost_of_a_span_is_that_of_the_rank_with_the_smallest_leaves(of_ranks: list[list[int]]) -> None:
    each = [usual_kappa(np.array(nbytes, dtype=np.int64)) for nbytes in of_ranks]
    assert least_usual_kappa((sum(nbytes), len(nbytes)) for nbytes in of_ranks) == min(
        each, default=DEFAULT_KAPPA_BYTES
    )
