"""Boxes of a tensor are saved and filled as a sharded tensor is."""

from __future__ import annotations

from pathlib import Path

import torch

import deeppart
from deeppart.interop.dcp.stored import Pieces
from deeppart.model.boxes import Box


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
