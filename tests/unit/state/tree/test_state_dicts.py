"""Objects are asked for their state once, and their errors are told by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import deeppart
from deeppart.testing.states import Box


def test_state_dict_is_called_once_per_checkpoint(tmp_path: Path) -> None:
    class Counting(Box):
        calls = 0

        def state_dict(self) -> Any:
            Counting.calls += 1
            return self.content

    config = deeppart.Config(persistent_dir=str(tmp_path / "ckpt"), timeout=20.0)
    with deeppart.Checkpointer(config) as ck:
        for step in range(3):
            ck.checkpoint({"a": Counting({"x": torch.ones(2)})}, step=step).wait(timeout=200)
    assert Counting.calls == 3
