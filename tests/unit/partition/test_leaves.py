"""Leaves in canonical order, whatever order they are given in; impossible ones are refused by name."""

from __future__ import annotations

import pytest

from deeppart.errors import StateError
from deeppart.model import LeafSpec
from deeppart.partition import Leaves, Plan, partition


def spans(plan: Plan) -> list[list[tuple[int, int, int]]]:
    """(leaf, start, length) of every rank."""
    return [[(span.leaf, span.start, span.length) for span in share.spans] for share in plan.shares()]


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
