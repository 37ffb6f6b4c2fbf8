"""Containers that are restored as a whole or not at all."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from deeppart.state.document.structure import Unit, units_of
from deeppart.state.document.structure_json import decode_structure, encode_structure, encode_tree
from deeppart.state.tree.flatten import flatten
from deeppart.state.tree.leaves import leaf_type
from deeppart.state.tree.runs import encode_leaf_value
from deeppart.testing.states import Box


def units(state: Any, *, none: bool = False) -> list[Unit]:
    flat = flatten(state)
    arrays, values = len(flat.arrays), len(flat.values)
    document = encode_structure(
        encode_tree(flat.root),
        [leaf_type(data) for data in flat.data],
        np.zeros(arrays, dtype=np.bool_),
        {},
        [encode_leaf_value(leaf.value, "") for leaf in flat.values],
        np.zeros(values, dtype=np.bool_),
        [],
        False,
    )
    tree = decode_structure(document, "test").tree
    return units_of(tree, set() if none else set(range(arrays)), set() if none else set(range(values)))


def test_the_outermost_tuple_is_one() -> None:
    tensor = torch.zeros(2)
    (unit,) = units({"a": ([1, tensor], (tensor + 1, 2)), "b": [tensor + 2]})
    assert unit.path == ("a",) and len(unit.arrays) == 2
    assert units({"a": ([1, tensor],)}, none=True) == []


def test_states_of_random_generators_are_whole() -> None:
    state = {"python": random.getstate(), "numpy": np.random.default_rng(1).bit_generator.state}
    paths = [unit.path for unit in units(state)]
    assert ("numpy",) in paths


def test_the_state_itself_and_what_holds_objects_is_none() -> None:
    tensor = torch.zeros(2)
    assert units((tensor, 1)) == []
    assert units({"a": (Box({"w": tensor}), tensor + 1)}) == []
    (unit,) = units({"a": (Box({"w": (tensor, 1)}), tensor + 1)})
    assert unit.path == ("a", 0, "w")
