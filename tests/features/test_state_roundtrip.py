"""Exact round trips of everything a state may hold: checkpoint and load, checkpoint and restore in place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import deeppart
from tests.states import blank, difference
from tests.unit.round_trip import restore, save


@pytest.mark.parametrize("compression", ["none", "auto", "tensor", "zstd", "zstd:19", "zstd:-5"])
def test_every_compression(tmp_path: Path, compression: str) -> None:
    generator = torch.Generator().manual_seed(1)
    state = {
        "noise": torch.randn(70_000, generator=generator),
        "zeros": torch.zeros(2_000_000, dtype=torch.uint8),
        "ints": torch.arange(50_000),
        "tiny": torch.ones(1),
    }
    report = save(tmp_path, state, compression=compression)
    assert (report.encoded_bytes < report.raw_bytes) == (compression not in ("none", "auto"))  # auto: nothing known yet
    assert difference(state, deeppart.load(tmp_path / "ckpt")) is None
    assert difference(state, restore(tmp_path, blank(state))) is None
