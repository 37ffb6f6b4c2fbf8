"""The partitioner on examples small enough to work out by hand, on BERT-large, and on bad input."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest

from benchmarks.partition_scale import bert_large_shapes, synthetic, with_adam
from deeppart.errors import ConfigError
from deeppart.model import LeafSpec, Share, Span
from deeppart.partition import Leaves, Plan, ReplicaSet, partition


def spans(plan: Plan) -> list[list[tuple[int, int, int]]]:
    """(leaf, start, length) of every rank."""
    return [[(span.leaf, span.start, span.length) for span in share.spans] for share in plan.shares()]


# --- where cuts fall --------------------------------------------------------------------------------------------------


def test_one_leaf_is_split_evenly_at_whole_elements() -> None:
    plan = partition([LeafSpec("w", 40, 4)], ranks=3, kappa=0)
    # Thirds of 40 are 13.3 bytes: cuts at 14 and 27, rounded down to whole elements.
    assert spans(plan) == [[(0, 0, 12)], [(0, 12, 12)], [(0, 24, 16)]]
    assert plan.split_leaves() == 1
    assert plan.share(1) == Share(1, (Span(0, 12, 12),))


def test_leaves_without_bytes_are_in_no_share() -> None:
    leaves = [LeafSpec("a/x", 0, 4), LeafSpec("b/x", 8, 4), LeafSpec("c/x", 0, 16), LeafSpec("d/x", 8, 4)]
    assert spans(partition(leaves, 2, kappa=5)) == [[(1, 0, 8)], [(3, 0, 8)]]
    for nothing in ([], [LeafSpec("e", 0, 8)]):
        plan = partition(nothing, 3, preload=[1, 2, 3])
        assert spans(plan) == [[], [], []]
        assert plan.costs().tolist() == [1.0, 2.0, 3.0]
        assert plan.table().rank.tolist() == []


def test_more_ranks_than_elements_leaves_some_with_nothing() -> None:
    plan = partition([LeafSpec("w", 16, 8)], ranks=5, kappa=0)
    assert sorted(plan.bytes_per_rank().tolist()) == [0, 0, 0, 8, 8]


# --- what ranks carry already -----------------------------------------------------------------------------------------


def test_a_rank_that_carries_bytes_gets_correspondingly_less() -> None:
    plan = partition([LeafSpec("w", 1000)], ranks=4, kappa=0, preload=[0.0, 200.0, 0.0, 5000.0])
    assert plan.bytes_per_rank().tolist() == [400, 200, 400, 0]
    assert plan.costs().tolist() == [400.0, 400.0, 400.0, 5000.0]
    assert plan.split_leaves() == 1


def test_replica_sets_are_balanced_within_themselves_before_the_world() -> None:
    leaves = [
        LeafSpec("everywhere", 800),
        LeafSpec("shard0", 600, replicas=(0, 1)),
        LeafSpec("shard1", 200, replicas=(2, 3)),
        LeafSpec("also everywhere", 400, replicas=(0, 1, 2, 3)),
    ]
    plan = partition(leaves, ranks=4, kappa=0)
    assert plan.bytes_per_rank().tolist() == [500, 500, 500, 500]
    # shard0 gives 300 each, shard1 100 each; "also everywhere" and "everywhere" lie on one line, in that order.
    assert spans(plan) == [
        [(1, 0, 300), (3, 0, 200)],
        [(1, 300, 300), (3, 200, 200)],
        [(0, 0, 400), (2, 0, 100)],
        [(0, 400, 400), (2, 100, 100)],
    ]


# --- the plan itself --------------------------------------------------------------------------------------------------


def test_a_plan_can_be_made_from_arrays() -> None:
    arrays = Leaves(np.array([600, 200, 400]), np.array([4, 4, 4]), sets=(ReplicaSet((0, 1), 2), ReplicaSet(None, 1)))
    plan = partition(arrays, 4, kappa=0)
    assert plan.bytes_per_rank().tolist() == [400, 400, 200, 200]
    specs = with_adam(bert_large_shapes())
    kept = Leaves.of(specs, 7)
    assert spans(partition(kept, 7)) == spans(partition(specs, 7))
    assert len(kept) == 1564


def test_a_large_plan_is_quick() -> None:
    """The requirement is 1 s and 50 ms; the limits here only catch a change of order of magnitude.

    Of processor time of this process: others that run beside it do not count.
    """
    leaves = synthetic(100_000)
    began = time.process_time()
    plan = partition(leaves, 65_536)
    planned = time.process_time()
    share = plan.share(54_321)
    assert planned - began < 10
    assert time.process_time() - planned < 0.5
    assert share.nbytes > 0


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"ranks": 0},
        {"ranks": -3},
        {"ranks": 2.0},
        {"kappa": -1},
        {"kappa": math.nan},
        {"kappa": math.inf},
        {"kappa": "64K"},
        {"strategy": "dcp"},
        {"preload": [1.0]},
        {"preload": [1.0, -1.0]},
        {"preload": [1.0, math.nan]},
        {"preload": [1.0, math.inf]},
        {"preload": [2.0**61, 2.0**61]},
        {"preload": ["a", "b"]},
    ],
    ids=repr,
)
def test_impossible_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        partition([LeafSpec("w", 8)], **{"ranks": 2, **arguments})
    error = caught.value
    assert error.expected and error.found and error.where and error.todo
    assert next(iter(arguments)) in error.where


@pytest.mark.parametrize("rank", [-1, 3])
def test_a_plan_knows_only_its_own_ranks(rank: int) -> None:
    with pytest.raises(ConfigError, match="no such rank"):
        partition([LeafSpec("w", 8)], ranks=3).share(rank)
