"""A step by DCP's names, whoever saved it."""

from __future__ import annotations

from collections import deque, namedtuple
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.testing._internal.two_tensor import TwoTensor

import deeppart
from deeppart.errors import StructureMismatchError, UnsupportedLeafError
from deeppart.interop.dcp.names import Item
from deeppart.interop.dcp.stored import Stored, Wanted, live_tree, whole
from deeppart.model.boxes import Box
from deeppart.offline.find import find_step
from deeppart.offline.load import OpenCheckpoint


def stored(state: Any, directory: Path) -> Stored:
    with deeppart.Checkpointer(persistent_dir=directory) as checkpointer:
        checkpointer.checkpoint(state, 1).wait()
    chosen, _ = find_step(directory, 1, None)
    with ExitStack() as files:
        return Stored(OpenCheckpoint(files, chosen.directory, chosen.manifest, signing=None).target, "here")


def state() -> dict[str, Any]:
    return {
        "model": {"w": torch.ones(2, 3), 3: torch.zeros(1), "empty": {}},
        "lists": [[1, 2], [torch.ones(1), 5], [{"a": 1}], (1, torch.ones(1)), list(range(100)), []],
        "table": {str(number): number for number in range(300)},
        "numpy": [np.ones(3), 1],
        "tuple": (torch.ones(2), (1, 2)),
        "n": 3,
        "params": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0, 1]}],
    }


def test_entries_are_what_dcp_would_have(tmp_path: Path) -> None:
    planner = DefaultSavePlanner()
    planner.set_up_planner(state(), None, True)
    found = stored(state(), tmp_path)
    assert {name: entry.item.path for name, entry in found.entries.items()} == planner.mappings
    assert {name for name, entry in found.entries.items() if entry.leaf is not None} == {
        name for name, value in planner.state_dict.items() if isinstance(value, torch.Tensor)
    }
    for name, entry in found.entries.items():
        if entry.leaf is None and entry.node is None:
            assert entry.value == planner.state_dict[name], name
    assert [name for name, entry in found.entries.items() if entry.node is not None] == ["lists.3", "numpy", "tuple"]


def test_objects_are_what_they_gave(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    found = stored({"model": model, "optimizer": torch.optim.SGD(model.parameters(), momentum=0.5)}, tmp_path)
    assert {"model.weight", "model.bias", "optimizer.param_groups.0.lr"} <= found.entries.keys()
    assert found.entries["model.weight"].path == ("model", "weight")


def test_a_live_tree_has_only_what_is_wanted(tmp_path: Path) -> None:
    found = stored(state(), tmp_path)
    w, inner = found.entries["model.w"].leaf, found.entries["lists.1.0"].leaf
    assert w is not None and inner is not None
    assert live_tree(found.tree, {w: "W"}) == {"model": {"w": "W"}}
    assert live_tree(found.tree, {inner: "X"}) == {"lists": [None, ["X", None], None, None, None, None]}
    # An empty state would want everything.
    assert live_tree(found.tree, {}) == {"n": None}
    assert live_tree(stored({"a": {"b": torch.ones(1)}}, tmp_path / "a").tree, {}) == {"a": None}


def test_a_live_tree_that_wants_nothing_does_not_lead_into_tensors_and_objects(tmp_path: Path) -> None:
    point = namedtuple("point", "a b")
    for number, item in enumerate((torch.eye(2).to_sparse(), point(1, torch.ones(1)), deque([1, 2]))):
        tree = stored({"x": item}, tmp_path / str(number)).tree
        assert live_tree(tree, {}) == {"x": None}
        tree = stored({"x": item, "y": {"n": 3}}, tmp_path / f"{number} and a value").tree
        assert live_tree(tree, {}) in ({"y": {"n": None}}, {"y": None})


def test_what_only_a_class_could_make_is_refused(tmp_path: Path) -> None:
    found = stored({"x": [TwoTensor(torch.ones(2), torch.zeros(2)), 1], "y": torch.eye(2).to_sparse()}, tmp_path)
    (refused,) = [name for name, entry in found.entries.items() if name.startswith("x") and entry.node is not None]
    with pytest.raises(UnsupportedLeafError, match=r"(?s)TwoTensor.*path x"):
        found.refuse_to_build(refused)
    for name in found.entries.keys() - {refused}:
        found.refuse_to_build(name)


def test_what_dcp_cannot_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StructureMismatchError, match="DCP loads dicts"):
        stored([torch.ones(1)], tmp_path / "a")
    with pytest.raises(StructureMismatchError, match=r"by one name, a\.b"):
        stored({"a": {"b": torch.ones(1)}, "a.b": 1}, tmp_path / "b")


def test_whole() -> None:
    item, into = Item(("w",), torch.float32, (2, 2)), torch.zeros(2, 2)
    assert whole([Wanted(Box((0, 0), (2, 2)), into)], item) is into
    assert whole([Wanted(Box((0, 0), (2, 2)), into.double())], item) is None
    assert whole([Wanted(Box((0, 0), (1, 2)), into[:1])], item) is None
