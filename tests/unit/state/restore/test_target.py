"""Where saved leaves go: into live ones, or new ones of the type that was saved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.errors import CorruptFileError
from deeppart.state.document.structure import Alias
from deeppart.state.restore.target import DROPPED, decode_values, place_of
from deeppart.state.tree.leaves import leaf_type
from tests.unit.state.saved_states import structure_of, target_of

BASE = torch.zeros(4, 6)
#: Leaves by number: all, array, part, turned.
STATE: dict[str, Any] = {"all": BASE, "array": np.zeros(3, ">i2"), "part": BASE[1, 2:5], "turned": BASE.t()}


def test_live_arrays_are_filled_and_what_is_lacking_is_made_of_the_saved_type() -> None:
    target = target_of(structure_of(STATE))
    target.live[0] = torch.ones(4, 6)
    arrays = target.arrays()
    assert arrays[0] is target.live[0]
    assert leaf_type(arrays[1]) == target.types[1] and isinstance(arrays[1], np.ndarray)
    assert arrays.keys() == {0, 1}, "what is a view of another leaf gets no memory of its own"


def test_what_this_rank_is_to_receive_may_be_of_another_type_than_was_saved() -> None:
    target = target_of(structure_of({"a": torch.zeros(3)}))
    target.types[0] = replace(target.types[0], shape=(5, 2))
    assert target.arrays()[0].shape == (5, 2)


def test_what_is_dropped_is_not_touched() -> None:
    target = target_of(structure_of(STATE))
    target.live[0] = torch.ones(4, 6)
    target.dropped = frozenset({0, 2, 3})
    assert target.arrays().keys() == {1}


def test_a_leaf_lies_in_itself_or_in_its_owner() -> None:
    target = target_of(structure_of(STATE))
    assert place_of(target, 0) == Alias(0, 0, (6, 1))
    assert place_of(target, 1) == Alias(1, 0, (1,))
    assert place_of(target, 2) == Alias(0, 4 * 8, (1,))
    assert place_of(target, 3) == Alias(0, 0, (1, 6))


def test_values_are_decoded_and_each_ranks_own_wait_for_its_part() -> None:
    state = {"big": 1 << 70, "own": 5, "run": list(range(20)), "text": "x"}
    assert decode_values(structure_of(state, own=["own"]), "here") == [1 << 70, DROPPED, list(range(20)), "x"]


def test_a_value_that_no_writer_makes_is_damage() -> None:
    structure = replace(structure_of({"a": 1}), values=(["no tag", 1],))
    with pytest.raises(CorruptFileError, match="here"):
        decode_values(structure, "here")
