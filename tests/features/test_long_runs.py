"""A job that runs for months: nothing of a checkpoint, or of a restore, stays in memory when it is over."""

from __future__ import annotations

import gc
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from tests.unit.one_rank import config

#: Blocks of the interpreter's memory for each checkpoint or restore. What stays of one is a block or more; threads of
#: the background, caches and tables come and go with some less.
_MOST_BLOCKS = 0.8
#: Looks at the memory, after so many of them each. What stays of each one is there from every look to the next; what
#: only happens to be there at one of them is not.
_LOOKS, _BETWEEN = 5, 30


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


def check_nothing_stays(looks: list[tuple[int, int, int]]) -> None:
    for what, most in ((0, _MOST_BLOCKS * _BETWEEN), (1, 0), (2, 0)):
        growth = [later[what] - earlier[what] for earlier, later in pairwise(looks[1:])]
        assert min(growth) <= most, f"{('blocks', 'files', 'mappings')[what]}: {growth} for each {_BETWEEN}"


@pytest.mark.sweep(2)
@pytest.mark.parametrize("capture", ["eager", "lazy"])
def test_checkpoints_leave_nothing_in_memory(tmp_path: Path, capture: str) -> None:
    model, optimizer = training()
    looks: list[tuple[int, int, int]] = []
    with deeppart.Checkpointer(config(tmp_path, capture=capture, compression="none")) as ck:
        for number in range(1, _LOOKS * _BETWEEN + 1):
            optimizer.zero_grad()
            model(torch.ones(2, 20)).sum().backward()
            optimizer.step()
            state = {"model": model, "optimizer": optimizer, "step": number}
            ck.checkpoint(state, 1000 * number).wait(timeout=60)
            if number % _BETWEEN == 0:
                looks.append(left_over())
    check_nothing_stays(looks)


@pytest.mark.skipif("COVERAGE_PROCESS_START" in os.environ, reason="coverage keeps 6 blocks for every thread")
@pytest.mark.sweep(2)
@pytest.mark.parametrize("settings", [{}, {"local_dir": None}])
def test_restores_leave_nothing_in_memory(tmp_path: Path, settings: dict[str, Any]) -> None:
    model, optimizer = training()
    state = {"model": model, "optimizer": optimizer}
    looks: list[tuple[int, int, int]] = []
    with deeppart.Checkpointer(config(tmp_path, compression="none", **settings)) as ck:
        ck.checkpoint(state, 1).wait(timeout=60)
        for number in range(1, _LOOKS * _BETWEEN + 1):
            assert ck.restore(state) == 1
            if number % _BETWEEN == 0:
                looks.append(left_over())
    check_nothing_stays(looks)
