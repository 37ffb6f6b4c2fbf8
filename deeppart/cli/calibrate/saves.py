"""Real checkpoints of this library on this machine, stage by stage."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deeppart.checkpointer import Checkpointer
from deeppart.cli.calibrate.tasks import SaveTask
from deeppart.comm.base import Comm
from deeppart.comm.waiting import finish
from deeppart.config import Config
from deeppart.model import LEVELS, Level
from deeppart.plan.shards import Placed, Split, place_boxes

#: Checkpoints before those that count. Afterwards staging memory and files to write over are there: the third and the
#: fourth take twice as long until they are on the node as later ones.
_BEFORE = 4
_SEED = 1
#: Seconds that a checkpoint, and waiting for the other ranks, may take.
TIMEOUT_S = 300.0
#: What is measured of every checkpoint, in seconds of the slowest rank.
MEASURED = ("plan", "capture", "blocked", Level.LOCAL, Level.PERSISTENT, "restore")


def measure_save(comm: Comm, task: SaveTask, local_dir: Path, persistent_dir: Path) -> dict[str, list[float]]:
    """Checkpoint a state again and again, uncompressed (collective).

    Args:
        local_dir: a directory of this task's own, on the node's storage; not used without a local level.
        persistent_dir: another, on the file system.

    Returns:
        For each of MEASURED a number per round that counts: seconds of the slowest rank, for the levels until they
        were complete, counted from the call; 0 for what does not apply.
    """
    state = _state(task, comm.rank)
    config = Config(
        persistent_dir=str(persistent_dir),
        local_dir=str(local_dir) if task.local else None,
        every={level: int(level in task.levels) for level in LEVELS},
        keep={Level.LOCAL: 1, Level.PERSISTENT: 1},
        compression="none",
        capture=task.capture,
        flush_bandwidth=task.flush_bandwidth,
        timeout=TIMEOUT_S,
    )
    found: dict[str, list[float]] = {name: [] for name in MEASURED}
    with Checkpointer(config) as checkpointer:
        for turn in range(_BEFORE + task.rounds):
            _train(state, turn)
            meet(comm)
            pending = checkpointer.checkpoint(state, step=turn)
            for level in task.levels:
                pending.wait(level, TIMEOUT_S)
            report = pending.report
            blocked = report.blocked_s - report.waited_s
            row = {
                "plan": report.stages_s["flatten"] + report.stages_s["agree"],
                "capture": report.stages_s["capture"],
                "blocked": blocked,
                "restore": 0.0,
            }
            for level in (Level.LOCAL, Level.PERSISTENT):
                seconds = report.levels[level].seconds
                row[level] = 0.0 if seconds is None else blocked + seconds
            if task.restore:
                meet(comm)
                began = time.monotonic()
                checkpointer.restore(state)
                row["restore"] = time.monotonic() - began
            slowest = finish(
                comm, comm.maximum(np.array([round(1e9 * row[name]) for name in MEASURED])), "measuring", TIMEOUT_S
            )
            if turn >= _BEFORE:
                for name, nanoseconds in zip(MEASURED, slowest.tolist(), strict=True):
                    found[name].append(nanoseconds / 1e9)
    return found


def _state(task: SaveTask, rank: int) -> dict[str, Any]:
    """Random numbers: chunks that were alike would be written once."""
    elements = max(1, task.nbytes // 4 // task.tensors)
    random = torch.Generator().manual_seed(_SEED)
    names = (f"tensor{number}" for number in range(task.tensors))
    if task.shards == 1:
        return {name: torch.randn(elements, generator=random) for name in names}
    placed = place_boxes((elements,), [[Split(task.shards, rank % task.shards)]])
    return {name: _Shard.of(torch.randn(elements, generator=random), placed) for name in names}


class _Shard(torch.Tensor):
    """A rank's part of a tensor, that says itself which: unlike a DTensor, it needs no process group."""

    global_shape: tuple[int, ...]
    global_offsets: list[tuple[int, ...]]
    local_offsets: list[tuple[int, ...]]
    local_sizes: list[tuple[int, ...]]

    @classmethod
    def of(cls, whole: torch.Tensor, placed: Sequence[Placed]) -> _Shard:
        """Of a tensor with one dimension, the one box that a rank has; or none."""
        local = whole[placed[0].box.slices()].clone() if placed else whole[:0].clone()
        shard = local.as_subclass(cls)
        shard.global_shape = tuple(whole.shape)
        shard.global_offsets = [each.box.offset for each in placed]
        shard.local_offsets = [each.local.offset for each in placed]
        shard.local_sizes = [each.local.sizes for each in placed]
        return shard


def _train(state: dict[str, torch.Tensor], turn: int) -> None:
    """Change every chunk, the same way on all ranks, and go through the memory as an optimizer does."""
    for tensor in state.values():
        tensor.add_(0.01 * (turn + 1))


def meet(comm: Comm) -> None:
    """Wait until all ranks are here (collective)."""
    finish(comm, comm.maximum(np.zeros(1, dtype=np.int64)), "measuring", TIMEOUT_S)
