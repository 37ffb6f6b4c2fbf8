"""Real checkpoints of this library on this machine, stage by stage."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from deeppart.checkpointer import Checkpointer
from deeppart.cli.calibrate.tasks import SaveTask
from deeppart.comm.base import Comm
from deeppart.comm.waiting import finish
from deeppart.config import Config
from deeppart.model import LEVELS, Level
from deeppart.plan.shards import Split, place_boxes

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
    spec = _Spec(_Mesh((task.shards,), (rank % task.shards,)), (_Divided(),))
    return {name: _Shard.of(torch.randn(elements, generator=random), spec) for name in names}


class _Mesh(NamedTuple):
    """As a DeviceMesh with one dimension says it of a rank."""

    shape: tuple[int]
    place: tuple[int]

    def get_coordinate(self) -> tuple[int]:
        """The place of this rank."""
        return self.place


class _Divided(NamedTuple):
    """As the placement ``Shard(0)``."""

    dim: int = 0

    def is_replicate(self) -> bool:
        """False: every rank has a part of its own."""
        return False

    def is_partial(self) -> bool:
        """False: these are no summands."""
        return False


class _Spec(NamedTuple):
    mesh: _Mesh
    placements: tuple[_Divided]


class _Shard(torch.Tensor):
    """A rank's part of a tensor with one dimension, described as by a DTensor; but no process group is needed."""

    _local_tensor: torch.Tensor
    _spec: _Spec

    @classmethod
    def of(cls, whole: torch.Tensor, spec: _Spec) -> _Shard:
        """The part of a tensor that a rank has by a description."""
        make = torch.Tensor._make_wrapper_subclass  # a shape without memory of its own, as a DTensor
        shard: _Shard = make(cls, whole.shape, dtype=whole.dtype)
        boxes = place_boxes(whole.shape, [[Split(spec.mesh.shape[0], spec.mesh.place[0])]])
        shard._local_tensor = whole[boxes[0].box.slices()].clone() if boxes else whole[:0].clone()
        shard._spec = spec
        return shard

    @property
    def device_mesh(self) -> _Mesh:
        """The ranks."""
        return self._spec.mesh

    @property
    def placements(self) -> tuple[_Divided]:
        """What is done along the dimensions of the mesh."""
        return self._spec.placements

    @classmethod
    def __torch_dispatch__(cls, *called: Any) -> Any:
        raise NotImplementedError("a shard is there to be saved and restored")


def _train(state: dict[str, torch.Tensor], turn: int) -> None:
    """Change every chunk, the same way on all ranks, and go through the memory as an optimizer does."""
    for tensor in state.values():
        local = tensor._local_tensor if isinstance(tensor, _Shard) else tensor
        local.add_(0.01 * (turn + 1))


def meet(comm: Comm) -> None:
    """Wait until all ranks are here (collective)."""
    finish(comm, comm.maximum(np.zeros(1, dtype=np.int64)), "measuring", TIMEOUT_S)
