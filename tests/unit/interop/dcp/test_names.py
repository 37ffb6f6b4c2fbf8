"""What DCP calls what is in a state, and the steps that a checkpoint_id means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint import DefaultSavePlanner

from deeppart.errors import ConfigError, StructureMismatchError
from deeppart.interop.dcp.names import named, of_plan, step_of


def state() -> dict[str, Any]:
    w = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([w], lr=0.1)
    w.grad = torch.ones(3)
    optimizer.step()
    return {
        "model": {"a": w, 7: torch.ones(2), "deep": {"empty": {}, "x": torch.zeros(())}},
        "optimizer": optimizer.state_dict(),
        "list": [torch.ones(1), {"n": 1}, [1, 2], [torch.ones(1)], (torch.ones(1), 2)],
        "plain": [1, [2, 3]],
        "tuple": (torch.ones(1), 2),
        "none": None,
    }


def test_names_are_those_of_dcps_planner() -> None:
    planner = DefaultSavePlanner()
    planner.set_up_planner(state(), None, True)
    found = named(state())
    assert {item.name: item.path for item in found.items} == planner.mappings
    tensors = {name: value for name, value in planner.state_dict.items() if isinstance(value, torch.Tensor)}
    kinds = {item.name: (item.dtype, item.shape) for item in found.items if item.dtype is not None}
    assert kinds == {name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()}


def test_both_ways_lead_to_one_tree() -> None:
    planner = DefaultSavePlanner()
    planner.set_up_planner(state(), None, True)
    one, other = named(state()), of_plan(planner.state_dict, planner.mappings)
    assert one.tree["model"]["deep"].pop("empty") == {}  # which DCP has no name for
    assert str(one.tree) == str(other.tree) and set(one.items) == set(other.items)
    # An optimizer goes by numbers; whatever else was a number is a text, as DCP has it.
    assert list(one.tree["optimizer"]["state"]) == [0] and list(one.tree["model"]) == ["a", "7", "deep"]
    assert isinstance(one.tree["list"], list) and isinstance(one.tree["optimizer"]["param_groups"], list)


@pytest.mark.parametrize(
    "twice", [{1: 0, "1": 0}, {"a": {1: 0, "1": 0}}, {"a.b": 0, "a": {"b": 0}}, {"a": {"0": 1, "b": 1}, "a.0": 1}]
)
def test_two_items_of_one_name_are_refused(twice: dict[Any, Any]) -> None:
    with pytest.raises(StructureMismatchError, match=r"by one name, (1|a\.)"):
        named(twice)


@pytest.mark.parametrize("given", [[1, {}, 2], [{}, torch.ones(1)], [{1}, {}], [[{}], (1, 2)], [1, 2, {"a": {}}]])
def test_a_list_in_which_an_empty_dict_was_has_the_same_names(given: list[Any]) -> None:
    planner = DefaultSavePlanner()
    planner.set_up_planner({"a": given}, None, True)
    found = of_plan(planner.state_dict, planner.mappings)
    assert isinstance(found.tree["a"], list) and len(found.tree["a"]) == len(given)
    again, tree = DefaultSavePlanner(), {str(key): item for key, item in found.tree.items()}
    again.set_up_planner(tree, None, True)
    assert again.mappings == planner.mappings and set(again.state_dict) == {item.name for item in found.items}


def test_a_plan_that_contradicts_itself() -> None:
    with pytest.raises(StructureMismatchError, match="contradicts itself"):
        of_plan({"a": 1, "a.b": 2}, {"a": ("a",), "a.b": ("a", "b")})


@pytest.mark.parametrize(
    ("given", "step"),
    [(0, 0), (100, 100), (np.int64(7), 7), ("step_100", 100), ("a/b1/checkpoint-00020/", 20), (Path("x/9"), 9)],
)
def test_steps(given: Any, step: int) -> None:
    assert step_of(given) == step


@pytest.mark.parametrize("given", ["last", "step_5.pt", "a1/b", -1, True, 1.0, 10**18, "", b"5"])
def test_what_names_no_step(given: Any) -> None:
    with pytest.raises(ConfigError, match="impossible checkpoint_id"):
        step_of(given)
