"""Checkpoints that DCP has saved on several ranks, loaded in one process without process groups."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.tensor

from deeppart.interop.dcp import load
from deeppart.interop.dcp.metadata import read_metadata
from tests.mpi.torchrun import torchrun

pytestmark = [
    pytest.mark.timeout(220),
    pytest.mark.xdist_group("torchrun"),
    pytest.mark.skipif(not hasattr(torch.distributed.tensor, "Shard"), reason="DTensor is public since torch 2.5"),
]


def test_sharded_tensors_come_back_whole(tmp_path: Path) -> None:
    torchrun(4, ["-m", "tests.sharded.dcp_job", str(tmp_path)], tmp_path)
    global_state = torch.load(tmp_path / "wholes.pt", weights_only=True)
    found = load(tmp_path / "ckpt")
    layers = found["model"]["layers"]
    assert layers[0].keys() == global_state.keys() and layers[1] == {"n": 5} and found["step"] == 3
    assert all(torch.equal(layers[0][name], x) and layers[0][name].dtype == x.dtype for name, x in global_state.items())
    assert torch.equal(found["plain"], torch.arange(5))
    stored = read_metadata(tmp_path / "ckpt").tensors
    assert len(stored["model.layers.0.both"].chunks) == 4 and len(stored["model.layers.0.fewer"].chunks) == 2
    assert load(tmp_path / "ckpt", "model/layers/0/both")["model"]["layers"][0].keys() == {"both"}
