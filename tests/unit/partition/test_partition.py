"""The partitioner on examples small enough to work out by hand, on BERT-large, and on bad input."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.partition_scale import bert_large_shapes, with_adam
from deeppart.errors import ConfigError, StateError
from deeppart.model import LeafSpec
from deeppart.partition import DEFAULT_KAPPA_BYTES, STRATEGIES, Leaves, Plan, partition

# --- Leaves in canonical order, whatever order they are given in; impossible ones are refused by name -----------------


def spans(plan: Plan) -> list[list[tuple[int, int, int]]]:
    """(leaf, start, length) of every rank."""
    return [[(span.leaf, span.start, span.length) for span in share.spans] for share in plan.shares()]


def test_layer_2_comes_before_layer_10_whatever_the_callers_order() -> None:
    leaves = [LeafSpec("layer/10", 100), LeafSpec("layer/9", 100), LeafSpec("layer/2", 100), LeafSpec("layer/x", 100)]
    plan = partition(leaves, 4, kappa=0)
    assert spans(plan) == [[(2, 0, 100)], [(1, 0, 100)], [(0, 0, 100)], [(3, 0, 100)]]
    numbers = Leaves.of([LeafSpec(f"h{i}.w", 1) for i in (10, 9, 100, 0, 1)]).index
    assert numbers is not None and numbers.tolist() == [3, 4, 1, 0, 2]


@pytest.mark.parametrize(
    "leaf",
    [
        LeafSpec("model/w", -8, 4),
        LeafSpec("model/w", 8, 0),
        LeafSpec("model/w", 10, 4),
    ],
    ids=repr,
)
def test_impossible_leaves_are_refused_by_name(leaf: LeafSpec) -> None:
    with pytest.raises(StateError) as caught:
        partition([LeafSpec("fine", 8), leaf], ranks=2)
    error = caught.value
    assert error.expected and error.found and error.where == "model/w" and error.todo


# --- What a share costs -----------------------------------------------------------------------------------------------


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


def test_sizes_beyond_exact_arithmetic_are_refused() -> None:
    with pytest.raises(StateError, match="beyond what one plan can count"):
        partition([LeafSpec("a", 2**62)], ranks=2)
    with pytest.raises(StateError, match="beyond what one plan can count"):
        partition([LeafSpec("a", 1), LeafSpec("b", 1)], ranks=2, kappa=2**61)
    with pytest.raises(StateError, match="beyond what a file can hold"):
        partition([LeafSpec("a", 2**63)], ranks=2)


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


# --- Where the cuts fall ----------------------------------------------------------------------------------------------


def test_rank0_takes_everything() -> None:
    leaves = [LeafSpec("w", 100), LeafSpec("b", 8)]
    plan = partition(leaves, 3, kappa=10, strategy="rank0", preload=[7, 0, 0])
    assert spans(plan) == [[(0, 0, 100), (1, 0, 8)], [], []]
    assert plan.costs().tolist() == [135.0, 0.0, 0.0]


def test_what_some_ranks_hold_is_levelled_by_what_all_hold() -> None:
    of_some = partition([LeafSpec("b", 60)], 2, kappa=0)
    carried = [0.0, *of_some.costs().tolist()]
    plan = partition([LeafSpec("w", 120)], 3, kappa=0, preload=carried)
    assert plan.costs().tolist() == [60.0, 60.0, 60.0] and plan.bytes_per_rank().tolist() == [60, 30, 30]


@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 64, 256, 1024])
def test_strategies_on_bert_large(ranks: int) -> None:
    bert = with_adam(bert_large_shapes())
    assert len(bert) == 1564 and sum(leaf.nbytes for leaf in bert) == 12 * 335_141_888 + 4 * 391
    plans = {name: partition(bert, ranks, strategy=name) for name in STRATEGIES}
    assert {plan.kappa for plan in plans.values()} == {DEFAULT_KAPPA_BYTES}
    most = {name: float(plan.costs().max()) for name, plan in plans.items()}
    mean = sum(leaf.nbytes + DEFAULT_KAPPA_BYTES for leaf in bert) / ranks
    assert most["deeppart"] <= 1.01 * mean + DEFAULT_KAPPA_BYTES
    assert most["rank0"] == pytest.approx(ranks * mean)
    # Cuts drawn to the structure may cost up to a hundredth; many shares of few bytes differ by their tensors.
    assert most["deeppart"] < (most["flat"] if ranks >= 64 else 1.005 * most["flat"])
    if ranks >= 64:  # up to 32, whole tensors balance to within 0.03 %, better than cuts drawn to the structure
        assert most["whole"] > 1.9 * most["deeppart"]
    assert most["deeppart"] <= 1.01 * most["whole"]


@pytest.mark.now_and_then(4)
def test_the_benchmark_runs() -> None:
    command = [sys.executable, "benchmarks/partition_scale.py", "--json", "--repeat", "1"]
    repository = Path(__file__).parents[3]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=100, check=True)
    rows = json.loads(done.stdout)
    assert {row["strategy"] for row in rows} == set(STRATEGIES)
    assert max(row["ranks"] for row in rows) == 65_536
