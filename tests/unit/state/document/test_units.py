"""Containers that are restored as a whole or not at all."""

from __future__ import annotations

from typing import Any

import torch

from deeppart.state.document.structure import Unit, units_of
from deeppart.testing.states import Box
from tests.unit.state.saved_states import structure_of


def units(state: Any, *, none: bool = False) -> list[Unit]:
    """Those that hold any of the state's leaves and values, or none of them."""
    structure = structure_of(state)
    numbers = set() if none else set(range(len(structure.types))), set() if none else set(range(len(structure.values)))
    return units_of(structure.tree, *numbers)


def test_the_outermost_tuple_is_one() -> None:
    tensor = torch.zeros(2)
    (unit,) = units({"a": ([1, tensor], (tensor + 1, 2)), "b": [tensor + 2]})
    assert unit.path == ("a",) and len(unit.arrays) == 2
    assert units({"a": ([1, tensor],)}, none=True) == []


def test_the_state_itself_and_what_holds_objects_is_none() -> None:
    tensor = torch.zeros(2)
    assert units((tensor, 1)) == []
    assert units({"a": (Box({"w": tensor}), tensor + 1)}) == []
    (unit,) = units({"a": (Box({"w": (tensor, 1)}), tensor + 1)})
    assert unit.path == ("a", 0, "w")
