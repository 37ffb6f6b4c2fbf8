"""What a restore finds when it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import deeppart
from deeppart.session.stock import take_stock


def test_what_lies_on_the_node_and_on_the_persistent_level(opened: Any, tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=str(tmp_path / "ckpt"), local_dir=str(tmp_path / "local")) as ck:
        ck.checkpoint({"w": torch.ones(1000)}, 7).wait(timeout=200)
    session = opened()
    stock = take_stock(session, 60.0)
    assert [entry.attempt.step for entry in stock.committed] == [7]
    assert [part.attempt.step for found in stock.found for part in found] == [7]
