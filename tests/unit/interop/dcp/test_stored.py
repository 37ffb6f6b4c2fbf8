"""Steps by DCP's names, whoever saved them: what they hold, and boxes of it, of a session and of a directory."""

from __future__ import annotations

from collections import deque, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint import DefaultSavePlanner

import deeppart
from deeppart.errors import StructureMismatchError
from deeppart.extension import Box, Step
from deeppart.interop.dcp.stored import DirectorySource, Pieces, SessionSource, Source, Stored, WantedBox, live_tree


def stored(state: Any, directory: Path) -> Stored:
    with deeppart.Checkpointer(persistent_dir=directory) as checkpointer:
        checkpointer.checkpoint(state, 1).wait()
    return Stored(Step.of_directory(directory))


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
        if entry.leaf is None and not entry.is_compound:
            assert entry.value == planner.state_dict[name], name
    assert [name for name, entry in found.entries.items() if entry.is_compound] == ["lists.3", "numpy", "tuple"]


def test_a_live_tree_that_wants_nothing_does_not_lead_into_tensors_and_objects(tmp_path: Path) -> None:
    point = namedtuple("point", "a b")
    for number, item in enumerate((torch.eye(2).to_sparse(), point(1, torch.ones(1)), deque([1, 2]))):
        found = stored({"x": item}, tmp_path / str(number))
        assert live_tree(found, {}) == {"x": None}
        found = stored({"x": item, "y": {"n": 3}}, tmp_path / f"{number} and a value")
        assert live_tree(found, {}) in ({"y": {"n": None}}, {"y": None})


def test_what_dcp_cannot_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StructureMismatchError, match="DCP loads dicts"):
        stored([torch.ones(1)], tmp_path / "a")
    with pytest.raises(StructureMismatchError, match=r"by one name, a\.b"):
        stored({"a": {"b": torch.ones(1)}, "a.b": 1}, tmp_path / "b")


# --- boxes ---


def state_in_boxes() -> dict[str, Any]:
    w = torch.arange(600_000.0).view(1000, 600)
    return {
        "w": w,
        "view": w[10:20, 5:],
        "list": [torch.ones(3), 4, torch.full((2,), 7)],
        "rng": ("MT", np.arange(5), torch.ones(2)),
        "r[n]*?": {"of": (torch.zeros(1), 1)},
        "n": {"x": 5},
    }


def nothing(found: dict[str, Any]) -> None:
    assert not found


@pytest.mark.parametrize("kind", ["session", "directory"])
def test_boxes_and_compounds(tmp_path: Path, kind: str) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path) as checkpointer:
        checkpointer.checkpoint(state_in_boxes(), 5).wait()
        source: Source = SessionSource(checkpointer) if kind == "session" else DirectorySource(tmp_path)
        stored = source.look(None)
        assert stored.entries["n.x"].value == 5
        columns, halves, view = torch.zeros(1000, 2), torch.zeros(4, 6, dtype=torch.float16), torch.zeros(10, 595)
        third = torch.zeros(2, dtype=torch.int64)
        wanted = {
            "w": [WantedBox(Box((0, 3), (1000, 2)), columns), WantedBox(Box((2, 0), (4, 6)), halves)],
            "view": [WantedBox(Box((0, 0), (10, 595)), view)],
            "list.2": [WantedBox(Box((0,), (2,)), third)],
        }
        found: dict[str, Any] = {}
        source.bring(wanted, ["rng", "r[n]*?.of"], found.update)
        part = torch.zeros(2, 2)
        source.bring({"view": [WantedBox(Box((1, 1), (2, 2)), part)]}, [], nothing)
    w = state_in_boxes()["w"]
    assert torch.equal(columns, w[:, 3:5]) and torch.equal(halves, w[2:6, :6].half())
    assert torch.equal(view, state_in_boxes()["view"]) and third.tolist() == [7, 7] and torch.equal(part, w[11:13, 6:8])
    assert found["r[n]*?.of"] == (torch.zeros(1), 1)
    assert type(found["rng"]) is tuple and found["rng"][0] == "MT" and found["rng"][1].tolist() == [0, 1, 2, 3, 4]


def test_another_ranks_values_of_a_directory(tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path, replicated="none") as checkpointer:
        checkpointer.checkpoint({"w": torch.ones(1)}, 5).wait()
    found = torch.zeros(1)
    source = DirectorySource(tmp_path, rank=3)  # more than have saved
    source.look(5)
    source.bring({"w": [WantedBox(Box((0,), (1,)), found)]}, [], nothing)
    assert found.tolist() == [1.0]


@pytest.mark.parametrize("kind", ["session", "directory"])
@pytest.mark.parametrize("way", ["T", "flat", "same"])
def test_boxes_of_a_tensor_and_of_the_same_bytes_in_another_order(tmp_path: Path, kind: str, way: str) -> None:
    """Not only what is smaller is a part of another."""
    w = torch.arange(6000.0).view(100, 60)
    other = {"T": w.T, "flat": w.view(-1), "same": w}[way]
    with deeppart.Checkpointer(persistent_dir=tmp_path) as checkpointer:
        checkpointer.checkpoint({"w": w, "other": other}, 5).wait()
        source: Source = SessionSource(checkpointer) if kind == "session" else DirectorySource(tmp_path)
        source.look(None)
        some, all_of, more = torch.zeros(3, 7), torch.zeros(other.shape), torch.zeros(2, *other.shape[1:])
        boxes = [WantedBox(Box((1,) + (0,) * (other.ndim - 1), tuple(more.shape)), more)]
        wanted = {"w": [WantedBox(Box((2, 5), (3, 7)), some)], "other": boxes}
        source.bring(wanted, [], nothing)
        assert torch.equal(some, w[2:5, 5:12]) and torch.equal(more, other[1:3])
        some.zero_()
        wanted["other"] = [WantedBox(Box((0,) * other.ndim, tuple(other.shape)), all_of)]
        source.bring(wanted, [], nothing)
    assert torch.equal(some, w[2:5, 5:12]) and torch.equal(all_of, other)


def test_saved_and_filled(tmp_path: Path) -> None:
    whole = torch.arange(24.0).view(4, 6)
    halves = [Box((0, 0), (4, 2)), Box((0, 2), (4, 4))]
    with deeppart.Checkpointer(persistent_dir=tmp_path) as checkpointer:
        state = {"w": Pieces(whole.shape, halves, [whole[box.slices()] for box in halves])}
        checkpointer.checkpoint(state, 1).wait()
        assert torch.equal(deeppart.load(tmp_path)["w"], whole)
        # Views with strides, of some of it.
        memory = torch.full((10, 10), -1.0)
        boxes = [Box((1, 1), (2, 3)), Box((3, 0), (1, 6))]
        views = [memory[2:6:2, 1:4], memory[9:, 4:]]
        checkpointer.restore({"w": Pieces(whole.shape, boxes, views)})
    for box, view in zip(boxes, views, strict=True):
        assert torch.equal(view, whole[box.slices()])
    assert int((memory == -1).sum()) == 100 - 6 - 6
