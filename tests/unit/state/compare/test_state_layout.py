"""What is derived from a structure: alike where ranks must agree, and stricter where memory is shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from deeppart.state.compare.state_layout import StateLayout, derive
from deeppart.state.tree.flatten import flatten
from deeppart.state.tree.globs import Replication


def layout(state: Any, setting: Any = "auto") -> StateLayout:
    return derive(flatten(state), Replication(setting))


def test_the_structure_digest_is_of_containers_and_keys_alone() -> None:
    one = layout({"w": torch.zeros(3), "step": 1})
    assert layout({"w": torch.ones(3), "step": 2}).structure_digest == one.structure_digest
    assert layout({"step": 1, "w": torch.zeros(3)}).structure_digest == one.structure_digest, "in whatever order"
    for other in ({"v": torch.zeros(3), "step": 1}, {"w": torch.zeros(3)}, {"w": [torch.zeros(3)], "step": 1}):
        assert layout(other).structure_digest != one.structure_digest


def test_types_are_told_leaf_by_leaf() -> None:
    one, other = layout({"a": torch.zeros(3), "b": torch.zeros(3)}), layout({"a": torch.zeros(3), "b": torch.zeros(4)})
    assert (one.type_digests != other.type_digests).tolist() == [False, True]


def test_a_layout_stands_while_structure_and_types_do() -> None:
    rules = Replication("auto")
    found = derive(flatten({"w": torch.zeros(3), "n": 1}), rules)
    assert found.stands_for(flatten({"n": 9, "w": torch.ones(3)}), rules)
    for state in ({"w": torch.zeros(4), "n": 1}, {"w": torch.zeros(3)}, {"w": torch.zeros(3), "m": 1}):
        assert not found.stands_for(flatten(state), rules)


def test_leaves_that_share_memory_are_treated_as_the_strictest_of_them() -> None:
    shared = torch.zeros(6)
    found = layout({"a": shared, "b": shared[2:4], "c": torch.zeros(6)}, {"a": "all", "b": "none", "c": "all"})
    assert found.own_modes.tolist() == ["all", "none", "all"] and found.modes.tolist() == ["none", "none", "all"]
    assert found.forced.tolist() == [True, True, False] and found.trusted.tolist() == [False, False, True]


def test_a_rank_that_asks_for_more_decides_for_all() -> None:
    found = layout({"a": torch.zeros(2), "b": torch.zeros(2)}, {"*": "all"})
    strict = found.strictness
    other = layout({"a": torch.zeros(2), "b": torch.zeros(2)}, {"a": "none", "b": "all"})
    found.take_strictness(np.maximum(strict, other.strictness))
    assert found.modes.tolist() == ["none", "all"]


def test_views_are_compared_as_what_they_are_views_of_until_some_rank_has_none() -> None:
    shared = torch.zeros(6)
    found = layout({"a": shared, "b": shared[2:4]})
    assert found.owners().tolist() == [0, 0]
    found.untie([1])
    assert found.owners().tolist() == [0, 1]
    found.tie_anew()
    assert found.owners().tolist() == [0, 0]
