"""A job that runs for months: nothing of a checkpoint, or of a restore, stays in memory when it is over."""

from __future__ import annotations

import gc
import itertools
import operator
import os
import statistics
import sys
from collections.abc import Callable
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
#: Looks at the memory, at most, after so many of them each; comparisons of two of them, at least. What stays is there
#: from each look to the next; what only happens to be there at one of them, or fills caches of the process, is not.
_LOOKS, _BETWEEN, _FEWEST = 12, 30, 3


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


def check_nothing_stays(once: Callable[[], None]) -> None:
    """Do it again and again, until there is as a rule nothing more at one look than at the one before."""
    looks: list[tuple[int, int, int]] = []
    for _ in range(_LOOKS):
        for _ in range(_BETWEEN):
            once()
        looks.append(left_over())
        growth = [tuple(map(operator.sub, after, before)) for before, after in pairwise(looks[1:])]
        if len(growth) >= _FEWEST:
            blocks, files, mappings = map(statistics.median_low, zip(*growth, strict=True))
            if blocks <= _MOST_BLOCKS * _BETWEEN and files <= 0 and mappings <= 0:
                return
    raise AssertionError(f"blocks, files and mappings more after {_BETWEEN} each: {growth}")


@pytest.mark.sweep(2)
@pytest.mark.parametrize("capture", ["eager", "lazy"])
def test_checkpoints_leave_nothing_in_memory(tmp_path: Path, capture: str) -> None:
    model, optimizer = training()
    steps = itertools.count(1)
    with deeppart.Checkpointer(config(tmp_path, capture=capture, compression="none")) as ck:

        def once() -> None:
            optimizer.zero_grad()
            model(torch.ones(2, 20)).sum().backward()
            optimizer.step()
            step = next(steps)
            ck.checkpoint({"model": model, "optimizer": optimizer, "step": step}, 1000 * step).wait(timeout=60)

        check_nothing_stays(once)


@pytest.mark.skipif("COVERAGE_PROCESS_START" in os.environ, reason="coverage keeps 6 blocks for every thread")
@pytest.mark.sweep(2)
@pytest.mark.parametrize("settings", [{}, {"local_dir": None}])
def test_restores_leave_nothing_in_memory(tmp_path: Path, settings: dict[str, Any]) -> None:
    model, optimizer = training()
    state = {"model": model, "optimizer": optimizer}
    with deeppart.Checkpointer(config(tmp_path, compression="none", **settings)) as ck:
        ck.checkpoint(state, 1).wait(timeout=60)

        def once() -> None:
            assert ck.restore(state) == 1

        check_nothing_stays(once)
