"""Plans of DCP's planners as states of this library."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import DefaultSavePlanner, SavePlanner

from deeppart.errors import CheckpointError, ConfigError, UnsupportedLeafError
from deeppart.interop.dcp import BalancedSavePlanner
from deeppart.interop.dcp.storage_writer import decides_nothing, part_of, planned_part, state_of


class Filtering(DefaultSavePlanner):
    """Leaves out what is frozen, and adds one to the rest."""

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        super().set_up_planner(state_dict, storage_meta, is_coordinator)
        self.state_dict = {name: each for name, each in self.state_dict.items() if "frozen" not in name}

    def transform_object(self, write_item: Any, object: Any) -> Any:  # noqa: A002
        made = super().transform_object(write_item, object)
        return made + 1 if isinstance(made, torch.Tensor) else made


class OnlyBytes(DefaultSavePlanner):
    """Has values as bytes alone."""

    lookup_object = None  # type: ignore[assignment]

    def resolve_data(self, write_item: Any) -> Any:
        found = self.state_dict[write_item.index.fqn]
        return DefaultSavePlanner.transform_object(self, write_item, found)


def state() -> dict[str, Any]:
    return {
        "model": {"w": torch.zeros(3, 2), "frozen": torch.zeros(2)},
        "layers": [torch.ones(1)],
        "n": 5,
        "e": torch.zeros(0, 3),
    }


def test_which_planners_decide_what_is_saved() -> None:
    assert decides_nothing(None) and decides_nothing(DefaultSavePlanner(dedup_save_to_lowest_rank=True))
    assert decides_nothing(BalancedSavePlanner()) and not decides_nothing(Filtering())
    with pytest.raises(ConfigError, match="would pickle inner dicts whole"):
        decides_nothing(DefaultSavePlanner(flatten_state_dict=False))


def test_the_state_of_a_planner_that_decides_nothing() -> None:
    planner = DefaultSavePlanner()
    planner.set_up_planner(state(), None, True)
    assert str(state_of(planner).tree) == str(state())


def test_a_plan_has_what_the_planner_leaves_and_makes() -> None:
    found = planned_part(Filtering(), state(), None, alone=True)
    assert found.tree.keys() == {"model", "layers", "n", "e"} and found.tree["model"].keys() == {"w"}
    assert torch.equal(found.tree["model"]["w"], torch.ones(3, 2)) and found.tree["layers"]["0"].tolist() == [2.0]
    assert {item.name: item.shape for item in found.items} == {
        "model.w": (3, 2),
        "layers.0": (1,),
        "n": None,
        "e": (0, 3),
    }


def test_a_planner_that_cuts_tensors() -> None:
    planner: SavePlanner = BalancedSavePlanner()
    whole = torch.arange(100_000.0).view(1000, 100)
    planner.set_up_planner({"w": whole}, None, True)
    plan, _ = planner.create_global_plan([planner.create_local_plan()])
    assert torch.equal(part_of(planner.finish_plan(plan[0]), planner).tree["w"], whole)


def test_values_as_bytes() -> None:
    assert planned_part(OnlyBytes(), {"n": {"k": [1, "x", None]}}, None, alone=True).tree == {
        "n": {"k": [1, "x", None]}
    }
    with pytest.raises(UnsupportedLeafError, match="only as a pickle"):
        planned_part(OnlyBytes(), {"n": io.StringIO}, None, alone=True)


def test_a_planner_that_fails_although_its_exception_is_no_exception() -> None:
    class Failing(DefaultSavePlanner):
        def create_local_plan(self) -> Any:
            raise ValueError("no plan")

    with pytest.raises(CheckpointError, match="rank 0: ValueError: no plan"):
        planned_part(Failing(), state(), None, alone=True)
