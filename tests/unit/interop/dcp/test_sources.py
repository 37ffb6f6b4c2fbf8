"""Where a reader for DCP reads from: both bring the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import CheckpointError, RestoreError, StateError
from deeppart.interop.dcp.stored import DirectorySource, SessionSource, Source, Wanted
from deeppart.model.boxes import Box


def state() -> dict[str, Any]:
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
        checkpointer.checkpoint(state(), 5).wait()
        source: Source = SessionSource(checkpointer) if kind == "session" else DirectorySource(tmp_path)
        stored = source.look(None)
        assert stored.entries["n.x"].value == 5
        columns, halves, view = torch.zeros(1000, 2), torch.zeros(4, 6, dtype=torch.float16), torch.zeros(10, 595)
        third = torch.zeros(2, dtype=torch.int64)
        wanted = {
            "w": [Wanted(Box((0, 3), (1000, 2)), columns), Wanted(Box((2, 0), (4, 6)), halves)],
            "view": [Wanted(Box((0, 0), (10, 595)), view)],
            "list.2": [Wanted(Box((0,), (2,)), third)],
        }
        found: dict[str, Any] = {}
        source.bring(wanted, ["rng", "r[n]*?.of"], found.update)
        part = torch.zeros(2, 2)
        source.bring({"view": [Wanted(Box((1, 1), (2, 2)), part)]}, [], nothing)
    w = state()["w"]
    assert torch.equal(columns, w[:, 3:5]) and torch.equal(halves, w[2:6, :6].half())
    assert torch.equal(view, state()["view"]) and third.tolist() == [7, 7] and torch.equal(part, w[11:13, 6:8])
    assert found["r[n]*?.of"] == (torch.zeros(1), 1)
    assert type(found["rng"]) is tuple and found["rng"][0] == "MT" and found["rng"][1].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["session", "directory"])
def test_a_user_of_compounds_that_fails_leaves_all_as_it_was(tmp_path: Path, kind: str) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path) as checkpointer:
        checkpointer.checkpoint(state(), 5).wait()
        source: Source = SessionSource(checkpointer) if kind == "session" else DirectorySource(tmp_path)
        source.look(None)
        w = torch.zeros(1000, 600)
        wanted = {"w": [Wanted(Box.whole((1000, 600)), w)]}

        def fails(found: dict[str, Any]) -> None:
            assert found["rng"][0] == "MT" and not w.any()
            raise StateError("not this")

        with pytest.raises(StateError, match="not this"):
            source.bring(wanted, ["rng"], fails)
        assert not w.any()
        source.bring(wanted, [], nothing)
        assert torch.equal(w, state()["w"])


@pytest.mark.parametrize("kind", ["session", "directory"])
def test_no_checkpoint_and_a_refusal(tmp_path: Path, kind: str) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path) as checkpointer:
        source: Source = SessionSource(checkpointer) if kind == "session" else DirectorySource(tmp_path)
        with pytest.raises(RestoreError):
            source.look(None)
        with pytest.raises(CheckpointError, match="before it has asked"):
            source.bring({}, [], nothing)
        checkpointer.checkpoint({"w": torch.ones(1)}, 5).wait()
        with pytest.raises(RestoreError, match="step 6"):
            source.look(6)
        source.look(5)
        with pytest.raises(StateError, match="not this"):
            source.refuse(StateError("not this"))
        checkpointer.checkpoint({"w": torch.zeros(1)}, 7).wait()  # the session goes on


def test_another_ranks_values_of_a_directory(tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path, replicated="none") as checkpointer:
        checkpointer.checkpoint({"w": torch.ones(1)}, 5).wait()
    found = torch.zeros(1)
    source = DirectorySource(tmp_path, rank=3)  # more than have saved
    source.look(5)
    source.bring({"w": [Wanted(Box((0,), (1,)), found)]}, [], nothing)
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
        boxes = [Wanted(Box((1,) + (0,) * (other.ndim - 1), tuple(more.shape)), more)]
        wanted = {"w": [Wanted(Box((2, 5), (3, 7)), some)], "other": boxes}
        source.bring(wanted, [], nothing)
        assert torch.equal(some, w[2:5, 5:12]) and torch.equal(more, other[1:3])
        some.zero_()
        wanted["other"] = [Wanted(Box((0,) * other.ndim, tuple(other.shape)), all_of)]
        source.bring(wanted, [], nothing)
    assert torch.equal(some, w[2:5, 5:12]) and torch.equal(all_of, other)
