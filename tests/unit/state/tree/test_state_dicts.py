"""Objects are asked for their state once, and their errors are told by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.testing.states import Box


class Broken(Box):
    def state_dict(self) -> Any:
        raise ZeroDivisionError("oops")


def test_a_broken_state_dict_is_a_state_error_and_the_checkpointer_goes_on(tmp_path: Path) -> None:
    config = deeppart.Config(persistent_dir=str(tmp_path / "ckpt"), timeout=20.0)
    with deeppart.Checkpointer(config) as ck:
        with pytest.raises(deeppart.StateError, match="ZeroDivisionError: oops"):
            ck.checkpoint({"a": Broken()}, step=1)
        ck.checkpoint({"a": Box(1)}, step=1).wait(timeout=200)
        with pytest.raises(deeppart.StateError, match="ZeroDivisionError: oops"):
            ck.restore({"a": Broken()})
        assert ck.restore({"a": Box(0)}) == 1


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
