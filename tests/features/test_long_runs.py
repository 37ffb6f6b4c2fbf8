"""A job that runs for months: nothing of a checkpoint, or of a restore, stays in memory when it is over."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from tests.unit.one_rank import config

#: Blocks of the interpreter's memory that may come and go, whatever runs.
_CHANCE = 60


def training() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = torch.nn.Linear(20, 20)
    return model, torch.optim.Adam(model.parameters())


def left_over() -> tuple[int, int, int]:
    """Blocks that the interpreter has given out, open files, and mappings of files."""
    gc.collect()
    # 4,096 names of attributes that were looked up stay, most of them made by C for one look and at a new address.
    sys._clear_type_cache()
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").count(".dpp")
    return sys.getallocatedblocks(), len(os.listdir("/proc/self/fd")), maps


@pytest.mark.parametrize("capture", ["eager", "lazy"])
def test_checkpoints_leave_nothing_in_memory(tmp_path: Path, capture: str) -> None:
    model, optimizer = training()
    found: list[tuple[int, int, int]] = []
    with deeppart.Checkpointer(config(tmp_path, capture=capture, compression="none")) as ck:
        for step in range(100, 36_100, 100):
            optimizer.zero_grad()
            model(torch.ones(2, 20)).sum().backward()
            optimizer.step()
            ck.checkpoint({"model": model, "optimizer": optimizer, "step": step}, step).wait(timeout=60)
            if step % 12_000 == 0:
                found.append(left_over())
    (early, files, maps), _, (late, files_late, maps_late) = found
    assert late - early < _CHANCE, f"{(late - early) / 240:.1f} blocks for each checkpoint"
    assert abs(files_late - files) <= 1 and abs(maps_late - maps) <= 1


@pytest.mark.parametrize("settings", [{}, {"local_dir": None}])
def test_restores_leave_nothing_in_memory(tmp_path: Path, settings: dict[str, Any]) -> None:
    model, optimizer = training()
    state = {"model": model, "optimizer": optimizer}
    with deeppart.Checkpointer(config(tmp_path, compression="none", **settings)) as ck:
        ck.checkpoint(state, 1).wait(timeout=60)
        for number in range(90):
            assert ck.restore(state) == 1
            if number == 29:
                early, files, maps = left_over()
        late, files_late, maps_late = left_over()
    assert late - early < _CHANCE, f"{(late - early) / 60:.1f} blocks for each restore"
    assert (files_late, maps_late) == (files, maps)
