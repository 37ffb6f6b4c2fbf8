"""What DCP calls what is in a state, and the steps that a checkpoint_id means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint import DefaultSavePlanner

from deeppart.interop.dcp.names import dcp_state, step_of


def state() -> dict[str, Any]:
    w = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([w], lr=0.1)
    w.grad = torch.ones(3)
    optimizer.step()
    return {
        "model": {"a": w, 7: torch.ones(2), "deep": {"empty": {}, "x": torch.zeros(())}},
        "optimizer": optimizer.state_dict(),
        "list": [torch.ones(1), {"n": 1}, [1, 2], [torch.ones(1)], (torch.ones(1), 2)],
        "plain": [1, [2, 3]],
        "tuple": (torch.ones(1), 2),
        "none": None,
    }


def test_names_are_those_of_dcps_planner() -> None:
    planner = DefaultSavePlanner()
    planner.set_up_planner(state(), None, True)
    found = dcp_state(state())
    assert {item.name: item.path for item in found.items} == planner.mappings
    tensors = {name: value for name, value in planner.state_dict.items() if isinstance(value, torch.Tensor)}
    kinds = {item.name: (item.dtype, item.shape) for item in found.items if item.dtype is not None}
    assert kinds == {name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()}


@pytest.mark.parametrize(
    ("given", "step"),
    [(0, 0), (100, 100), (np.int64(7), 7), ("step_100", 100), ("a/b1/checkpoint-00020/", 20), (Path("x/9"), 9)],
)
def test_steps(given: Any, step: int) -> None:
    assert step_of(given) == step
