"""examples/train_fsdp.py as its users run it: ended, started again on as many ranks, and on others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch.distributed import fsdp

from tests.mpi.launchers import ROOT
from tests.mpi.torchrun import torchrun

pytestmark = [
    pytest.mark.timeout(220),
    pytest.mark.xdist_group("torchrun"),
    pytest.mark.skipif(not hasattr(fsdp, "fully_shard"), reason="FSDP2 has its name since torch 2.6"),
]


def train(ranks: int, directory: Path, steps: int) -> dict[int, str]:
    """Train until a step; the loss of each step so far, exactly."""
    directory.mkdir(exist_ok=True)
    log = directory / "losses.jsonl"
    command = [str(ROOT / "examples" / "train_fsdp.py"), "--layers", "2", "--width", "32", "--every", "3"]
    command += ["--checkpoint-dir", str(directory / "ckpt"), "--loss-log", str(log), "--steps", str(steps)]
    torchrun(ranks, command, directory)
    return {entry["step"]: entry["hex"] for entry in map(json.loads, log.read_text().splitlines())}


@pytest.mark.now_and_then(2)
def test_it_goes_on_bit_for_bit_and_on_any_number_of_ranks(tmp_path: Path) -> None:
    whole = train(2, tmp_path / "whole", 7)
    assert train(2, tmp_path / "parts", 4) == {step: whole[step] for step in range(1, 5)}
    assert train(2, tmp_path / "parts", 7) == whole
    assert train(3, tmp_path / "parts", 8).keys() == set(range(1, 9))
    losses = train(1, tmp_path / "parts", 9)
    assert losses.keys() == set(range(1, 10)) and len(set(losses.values())) == 9
