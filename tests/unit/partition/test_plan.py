"""The partitioner on examples small enough to work out by hand, on BERT-large, and on bad input."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.partition_scale import bert_large_shapes, synthetic, with_adam
from deeppart.errors import ConfigError, StateError
from deeppart.model import LeafSpec, Share, Span
from deeppart.partition import DEFAULT_KAPPA_BYTES, STRATEGIES, Leaves, Plan, ReplicaSet, partition
from deeppart.partition.heuristic import tolerance
from deeppart.partition.water import fill

REPOSITORY = Path(__file__).resolve().parents[3]


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


def test_a_cut_goes_to_the_end_of_the_most_significant_collection_within_reach() -> None:
    # Mean 100,000, reach 499. Boundaries at 99,600 (end of layer 0), 100,000 (inside layer 1) and 100,100.
    leaves = [
        LeafSpec("layer/0/w", 99_600),
        LeafSpec("layer/1/a", 400),
        LeafSpec("layer/1/b", 100),
        LeafSpec("layer/1/w", 99_900),
    ]
    assert spans(partition(leaves, 2, kappa=0)) == [
        [(0, 0, 99_600)],
        [(1, 0, 400), (2, 0, 100), (3, 0, 99_900)],
    ]
    # Where the structure says nothing, the nearest boundary.
    flat = [LeafSpec(f"x{i}", leaf.nbytes) for i, leaf in enumerate(leaves)]
    assert spans(partition(flat, 2, kappa=0))[0] == [(0, 0, 99_600), (1, 0, 400)]
    # Halfway between two of them, the lower.
    even = [LeafSpec("x0", 99_800), LeafSpec("x1", 400), LeafSpec("x2", 99_800)]
    assert spans(partition(even, 2, kappa=0))[0] == [(0, 0, 99_800)]
    # Out of reach (501 bytes), the balance decides and a leaf is split.
    far = [LeafSpec("layer/0/w", 99_499), LeafSpec("layer/1/w", 100_501)]
    assert spans(partition(far, 2, kappa=0))[0] == [(0, 0, 99_499), (1, 0, 501)]


def test_a_states_first_level_is_more_significant_than_its_layers() -> None:
    # Reach is 499 around 100,000: "model" ends at 99,700, a layer of the optimizer at 100,100.
    leaves = [
        LeafSpec("model/w", 99_700),
        LeafSpec("optimizer/0/w", 400),
        LeafSpec("optimizer/1/w", 99_900),
    ]
    assert spans(partition(leaves, 2, kappa=0))[0] == [(0, 0, 99_700)]


def test_dots_in_state_dict_keys_are_structure() -> None:
    leaves = [
        LeafSpec("model/layer.0.w", 99_600),
        LeafSpec("model/layer.1.a", 400),
        LeafSpec("model/layer.1.w", 100_000),
    ]
    assert spans(partition(leaves, 2, kappa=0))[0] == [(0, 0, 99_600)]


def test_layer_2_comes_before_layer_10_whatever_the_callers_order() -> None:
    leaves = [LeafSpec("layer/10", 100), LeafSpec("layer/9", 100), LeafSpec("layer/2", 100), LeafSpec("layer/x", 100)]
    plan = partition(leaves, 4, kappa=0)
    assert spans(plan) == [[(2, 0, 100)], [(1, 0, 100)], [(0, 0, 100)], [(3, 0, 100)]]
    numbers = Leaves.of([LeafSpec(f"h{i}.w", 1) for i in (10, 9, 100, 0, 1)], ranks=1).index
    assert numbers is not None and numbers.tolist() == [3, 4, 1, 0, 2]


def test_paths_that_compare_equal_by_component_are_ordered_by_path_and_equal_paths_by_index() -> None:
    leaves = [LeafSpec("a/b", 10), LeafSpec("a.b", 20), LeafSpec("a/07", 30), LeafSpec("a/7", 40)]
    names = [leaves[i].path for i in np.asarray(Leaves.of(leaves, 1).index)]
    backwards = leaves[::-1]
    assert [backwards[i].path for i in np.asarray(Leaves.of(backwards, 1).index)] == names
    twins = [LeafSpec("t", 10), LeafSpec("t", 20)]
    assert spans(partition(twins, 2, kappa=0)) == [[(0, 0, 10), (1, 0, 5)], [(1, 5, 15)]]


def test_leaves_without_bytes_are_in_no_share() -> None:
    leaves = [LeafSpec("a/x", 0, 4), LeafSpec("b/x", 8, 4), LeafSpec("c/x", 0, 16), LeafSpec("d/x", 8, 4)]
    assert spans(partition(leaves, 2, kappa=5)) == [[(1, 0, 8)], [(3, 0, 8)]]
    for nothing in ([], [LeafSpec("e", 0, 8)]):
        plan = partition(nothing, 3, preload=[1, 2, 3])
        assert spans(plan) == [[], [], []]
        assert plan.costs().tolist() == [1.0, 2.0, 3.0]
        assert plan.table().rank.tolist() == []


def test_structure_is_seen_through_leaves_without_bytes() -> None:
    # The boundary between a/x and b/y is the end of a, though what stands between them is empty.
    leaves = [
        LeafSpec("a/x", 99_700),
        LeafSpec("a/z", 0),
        LeafSpec("b/a", 0),
        LeafSpec("b/y", 300),
        LeafSpec("b/z", 100_000),
    ]
    assert spans(partition(leaves, 2, kappa=0))[0] == [(0, 0, 99_700)]


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


def test_equal_replica_sets_are_one_set_even_as_different_objects() -> None:
    leaves = [LeafSpec(f"s{i}", 100, replicas=tuple(range(1, 3))) for i in range(4)]
    plan = partition(leaves, ranks=3, kappa=0)
    assert spans(plan) == [[], [(0, 0, 100), (1, 0, 100)], [(2, 0, 100), (3, 0, 100)]]


def test_water_filling() -> None:
    assert fill(np.array([0, 0, 0]), 7).tolist() == [3, 2, 2]
    assert fill(np.array([5, 0, 2]), 4).tolist() == [0, 3, 1]
    assert fill(np.array([5, 0, 2]), 5).tolist() == [0, 4, 1]
    assert fill(np.array([9, 1]), 0).tolist() == [0, 0]
    # int64 products of level and ranks would wrap here.
    load = np.zeros(65_536, dtype=np.int64)
    load[0] = 2**60
    assert int(fill(load, 2**61).sum()) == 2**61


def test_reach_leaves_room_for_rounding() -> None:
    for mean in (*range(5000), 10**6, 10**12):
        for element in (1, 4, 16):
            reach = tolerance(mean, element)
            assert reach == 0 or (100 * (2 * reach + 1) <= mean and 100 * (reach + element) <= mean)
    assert tolerance(10**6, 4) == 4999


# --- the alternatives -------------------------------------------------------------------------------------------------


def test_rank0_takes_everything_of_its_replica_set() -> None:
    leaves = [LeafSpec("w", 100), LeafSpec("b", 8, replicas=(1, 2))]
    plan = partition(leaves, 3, kappa=10, strategy="rank0", preload=[7, 0, 0])
    assert spans(plan) == [[(0, 0, 100)], [(1, 0, 8)], []]
    assert plan.costs().tolist() == [117.0, 18.0, 0.0]


def test_whole_gives_the_largest_first_to_the_least_loaded() -> None:
    sizes = [30, 70, 20, 60, 40]
    leaves = [LeafSpec(f"l{i}", size) for i, size in enumerate(sizes)]
    # 70 -> 0, 60 -> 1, 40 -> 1 (60 < 70), 30 -> 0, 20 -> 0 (100 = 100: the lower rank)
    assert spans(partition(leaves, 2, kappa=0, strategy="whole")) == [
        [(0, 0, 30), (1, 0, 70), (2, 0, 20)],
        [(3, 0, 60), (4, 0, 40)],
    ]
    assert partition(leaves, 2, kappa=0, strategy="whole", preload=[1000, 0]).bytes_per_rank().tolist() == [0, 220]


def test_flat_ignores_tensors_and_structure() -> None:
    leaves = [LeafSpec("a/0", 99_600, 4), LeafSpec("b/0", 100_400, 4)]
    plan = partition(leaves, 2, kappa=50_000, strategy="flat")
    assert spans(plan) == [[(0, 0, 99_600), (1, 0, 400)], [(1, 400, 100_000)]]
    assert partition(leaves, 2, kappa=0, strategy="deeppart").split_leaves() == 0


@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 64, 256, 1024])
def test_strategies_on_bert_large(ranks: int) -> None:
    bert = with_adam(bert_large_shapes())
    assert len(bert) == 1564 and sum(leaf.nbytes for leaf in bert) == 12 * 335_141_888 + 4 * 391
    most = {name: float(partition(bert, ranks, strategy=name).costs().max()) for name in STRATEGIES}
    mean = sum(leaf.nbytes + DEFAULT_KAPPA_BYTES for leaf in bert) / ranks
    assert most["deeppart"] <= 1.01 * mean + DEFAULT_KAPPA_BYTES
    assert most["rank0"] == pytest.approx(ranks * mean)
    assert most["deeppart"] < most["flat"]
    if ranks >= 64:  # up to 32, whole tensors balance to within 0.03 %, better than cuts drawn to the structure
        assert most["whole"] > 1.9 * most["deeppart"]
    assert most["deeppart"] <= 1.01 * most["whole"]


def test_drawing_cuts_to_the_structure_splits_fewer_leaves() -> None:
    bert = with_adam(bert_large_shapes())
    assert partition(bert, 4).split_leaves() == 1
    assert partition(bert, 4, strategy="flat").split_leaves() == 3


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


def test_the_benchmark_runs() -> None:
    command = [sys.executable, "benchmarks/partition_scale.py", "--json", "--repeat", "1"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=True)
    rows = json.loads(done.stdout)
    assert {row["strategy"] for row in rows} == set(STRATEGIES)
    assert max(row["ranks"] for row in rows) == 65_536


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


@pytest.mark.parametrize(
    "leaf",
    [
        LeafSpec("model/w", -8, 4),
        LeafSpec("model/w", 8, 0),
        LeafSpec("model/w", 10, 4),
        LeafSpec("model/w", 8, 4, ()),
        LeafSpec("model/w", 8, 4, (1, 0)),
        LeafSpec("model/w", 8, 4, (0, 0)),
        LeafSpec("model/w", 8, 4, (0, 2)),
        LeafSpec("model/w", 8, 4, (-1, 0)),
    ],
    ids=repr,
)
def test_impossible_leaves_are_refused_by_name(leaf: LeafSpec) -> None:
    with pytest.raises(StateError) as caught:
        partition([LeafSpec("fine", 8), leaf], ranks=2)
    error = caught.value
    assert error.expected and error.found and error.where == "model/w" and error.todo


def test_sizes_beyond_exact_arithmetic_are_refused() -> None:
    with pytest.raises(StateError, match="beyond what one plan can count"):
        partition([LeafSpec("a", 2**62)], ranks=2)
    with pytest.raises(StateError, match="beyond what one plan can count"):
        partition([LeafSpec("a", 1), LeafSpec("b", 1)], ranks=2, kappa=2**61)
    with pytest.raises(StateError, match="beyond what a file can hold"):
        partition([LeafSpec("a", 2**63)], ranks=2)


def test_impossible_arrays_are_refused() -> None:
    with pytest.raises(StateError, match="itemsize is not an integer array"):
        Leaves(np.array([8, 8]), np.array([4]))
    with pytest.raises(StateError, match="nbytes is not an integer array"):
        Leaves(np.array([8.0, 8.0]), np.array([4, 4]))
    with pytest.raises(StateError, match="leaf 1"):
        Leaves(np.array([8, 9]), np.array([4, 4]))
    with pytest.raises(StateError, match="do not cover the leaves"):
        Leaves(np.array([8, 8]), np.array([4, 4]), sets=(ReplicaSet(None, 1),))
    with pytest.raises(StateError, match="replica set is impossible"):
        partition(Leaves(np.array([8]), np.array([4]), sets=(ReplicaSet((0, 5), 1),)), ranks=4)


@pytest.mark.parametrize("rank", [-1, 3])
def test_a_plan_knows_only_its_own_ranks(rank: int) -> None:
    with pytest.raises(ConfigError, match="no such rank"):
        partition([LeafSpec("w", 8)], ranks=3).share(rank)
