"""deeppart's turns: local level in memory, persistent level on disk; eager and lazy, with and without compression."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

import deeppart
from benchmarks.memory import MemoryWatch
from benchmarks.rig import MalfunctionError, Rig, Turn
from deeppart import Report

_TIMEOUT_S = 300.0
#: Checkpoints before the one that is timed: from then on, staging memory is there, files of retired steps are written
#: over, which this process has mapped when it did so before, and "auto" has measured what it goes by.
_WARM_UPS = 4


class Sweep(torch.optim.Optimizer):
    """Reads and writes every element, and changes none: from its first step on, all tensors are known to be trained.

    While entered, the tensors ask for gradients, which take no memory.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__(tensors, {})
        self._tensors = tensors

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """As a training step does."""
        for tensor in self._tensors:
            tensor.mul_(1.0)

    def __enter__(self) -> None:
        for tensor in self._tensors:
            tensor.requires_grad_()
            tensor.grad = torch.zeros(()).expand(tensor.shape)
        self.step()

    def __exit__(self, *error: object) -> None:
        for tensor in self._tensors:
            tensor.grad = None
            tensor.requires_grad_(False)


class Deeppart:
    """Each turn opens a checkpointer, saves a few times to warm it, saves once timed, and restores from both levels.

    Each restore is the first thing a fresh checkpointer does, as after a restart: its memory is cold.
    """

    capture = "eager"
    compression = "none"
    replicated = "auto"

    def __init__(self, name: str = "deeppart") -> None:
        self.name = name
        self._step = 0

    def turn(self, rig: Rig) -> Turn:
        """Measure once."""
        disk, local = rig.disk / "deeppart", rig.tmpfs / "deeppart"
        measured = self._save(rig, disk, local)
        measured |= self._restore(rig, disk, local, "local")
        rig.wipe(local)
        rig.warm_cache(disk)
        measured |= self._restore(rig, disk, local, "persistent")
        rig.wipe(disk, local)
        return measured

    def _config(self, disk: Path, local: Path) -> deeppart.Config:
        return deeppart.Config(
            persistent_dir=str(disk),
            local_dir=str(local),
            every={"local": 1, "persistent": 1},
            keep={"local": 1, "persistent": 1},
            compression=self.compression,
            capture=self.capture,
            replicated=self.replicated,
            timeout=_TIMEOUT_S,
        )

    def _save(self, rig: Rig, disk: Path, local: Path) -> Turn:
        optimizer = Sweep(rig.workload.leaves)
        with deeppart.Checkpointer(self._config(disk, local)) as checkpointer, optimizer:
            rig.step()
            with MemoryWatch(local) as cold:
                early = self._early_saves(rig, checkpointer, optimizer)
                with MemoryWatch(local) as warm:
                    measured = self._timed_save(rig, checkpointer, optimizer)
        share_bytes = measured["own_share_bytes"]
        return measured | {
            "first_blocked_s": early[0][0],
            "first_local_s": early[0][1],
            "second_blocked_s": early[1][0],
            "memory_bytes": rig.slowest(cold.growth_bytes),
            "mapped_bytes": rig.slowest(cold.mapped_bytes),
            "memory_over_share_bytes": rig.slowest(cold.growth_bytes - share_bytes),
            "steady_memory_bytes": rig.slowest(warm.growth_bytes),
        }

    def _early_saves(
        self, rig: Rig, checkpointer: deeppart.Checkpointer, optimizer: torch.optim.Optimizer
    ) -> list[tuple[float, float]]:
        """The checkpoints before the one that is timed: seconds blocked, and until local, of each."""
        found = []
        for number in range(_WARM_UPS):
            if number:
                rig.next_state()  # or there would be nothing to write
                optimizer.step()
            blocked_s, pending = rig.timed(lambda: checkpointer.checkpoint(rig.workload.tree, self._next_step()))
            pending.wait("persistent", _TIMEOUT_S)
            local_s = pending.report.levels["local"].seconds or 0.0
            found.append((blocked_s, blocked_s + rig.slowest(local_s)))
        return found

    def _timed_save(self, rig: Rig, checkpointer: deeppart.Checkpointer, optimizer: torch.optim.Optimizer) -> Turn:
        step = self._next_step()
        rig.next_state()
        optimizer.step()
        rig.step()
        began = time.perf_counter()
        pending = checkpointer.checkpoint(rig.workload.tree, step)
        blocked_s = time.perf_counter() - began
        if self.capture == "lazy":
            optimizer.step()  # at once: the worst that can come
        pending.wait("local", _TIMEOUT_S)
        local_s = time.perf_counter() - began
        pending.wait("persistent", _TIMEOUT_S)
        persistent_s = time.perf_counter() - began
        report = pending.report
        return {
            "blocked_s": rig.slowest(blocked_s),
            "local_s": rig.slowest(local_s),
            "persistent_s": rig.slowest(persistent_s),
            "bytes": rig.total(report.levels["persistent"].nbytes),
            "share_bytes": rig.slowest(report.raw_bytes),
            "own_share_bytes": report.raw_bytes,
            "held_s": rig.slowest(report.held_s),
            **_stages(rig, report),
        }

    def _restore(self, rig: Rig, disk: Path, local: Path, level: str) -> Turn:
        rig.quiet()
        with deeppart.Checkpointer(self._config(disk, local)) as checkpointer:
            with MemoryWatch() as memory:
                seconds = rig.restored(
                    f"deeppart.restore from {level}", lambda: checkpointer.restore(rig.workload.tree)
                )
            self._check_source(checkpointer, level)
        return {f"restore_{level}_s": seconds, f"restore_{level}_memory_bytes": rig.slowest(memory.growth_bytes)}

    def _check_source(self, checkpointer: deeppart.Checkpointer, level: str) -> None:
        """The restore must be of the last step and have read what is being timed."""
        text = "\n".join(checkpointer.explanation)
        if f"step {self._step}" not in text or level not in text:
            raise MalfunctionError(f"step {self._step} should have come from level {level}; the restore says: {text}")

    def _next_step(self) -> int:
        self._step += 1
        return self._step


class DeeppartLazy(Deeppart):
    """The same with ``capture="lazy"``: all tensors are an optimizer's."""

    capture = "lazy"


class DeeppartVerify(Deeppart):
    """The same with ``replicated="verify"``: all is compared in full at every checkpoint."""

    replicated = "verify"


class DeeppartTensor(Deeppart):
    """The same with the codec made for tensors, always."""

    compression = "tensor"


class DeeppartAuto(Deeppart):
    """The same with compression where it is sooner; what is timed is the checkpoint after those that measured."""

    compression = "auto"


def _stages(rig: Rig, report: Report) -> Turn:
    stages = report.stages_s
    planning = stages["flatten"] + stages["agree"]
    return {"planning_s": rig.slowest(planning)} | {
        f"{stage}_s": rig.slowest(stages[stage]) for stage in ("flatten", "agree", "capture")
    }
