"""What every rank of benchmarks/versions.py measures, by way of benchmarks/checkout.py."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from mpi4py import MPI

import deeppart
from benchmarks.checkout import Times
from benchmarks.ours import Sweep
from benchmarks.rig import Rig
from benchmarks.settings import Settings

_TIMEOUT_S = 300.0
#: Checkpoints before those that count: from then on, staging memory and files to write over are there.
_WARM_UPS = 4


class Measurement:
    """One checkout, one state.

    Args:
        rig: the ranks, the state and the directories.
    """

    def __init__(self, rig: Rig) -> None:
        self._rig, self._repeat = rig, rig.settings.repetitions

    def run(self) -> Times:
        """Seconds of the slowest rank, each time, by what was measured."""
        found: Times = {}
        for capture, name in (("eager", ""), ("lazy", "lazy, ")):
            blocked, planning = self._saves(capture)
            found |= {f"{name}blocked": blocked, f"{name}planning": planning}
        return found | self._restores()

    def _config(self, **more: Any) -> deeppart.Config:
        return deeppart.Config(
            persistent_dir=str(self._rig.disk / "persistent"),
            compression="none",
            keep={"local": 1, "persistent": 1},
            timeout=_TIMEOUT_S,
            **more,
        )

    def _saves(self, capture: str) -> tuple[list[float], list[float]]:
        """To the local level alone; all of the state has changed, as far as deeppart knows."""
        rig = self._rig
        optimizer = Sweep(rig.workload.leaves)
        blocked, planning = [], []
        local = rig.tmpfs / capture
        config = self._config(local_dir=str(local), every={"local": 1, "persistent": 0}, capture=capture)
        with deeppart.Checkpointer(config) as checkpointer, optimizer:
            for step in range(1, _WARM_UPS + self._repeat + 1):
                rig.workload.train(step)
                optimizer.step()
                save = partial(checkpointer.checkpoint, rig.workload.tree, step)
                seconds, pending = rig.timed(save)
                pending.wait("local", _TIMEOUT_S)
                stages = pending.report.stages_s
                if step > _WARM_UPS:
                    blocked.append(seconds)
                    planning.append(rig.slowest(stages["flatten"] + stages["agree"]))
        rig.wipe(local, rig.disk / "persistent")
        return blocked, planning

    def _restores(self) -> dict[str, list[float]]:
        """From tmpfs, and from the page cache of the disk; each the first thing that a session does."""
        rig = self._rig
        local = rig.tmpfs / "restored"
        levels = {"local_dir": str(local), "every": {"local": 1, "persistent": 1}}
        rig.next_state()
        with deeppart.Checkpointer(self._config(**levels)) as checkpointer:
            checkpointer.checkpoint(rig.workload.tree, 1).wait("persistent", _TIMEOUT_S)
        found = {"restore from local": self._restored("local", levels)}
        rig.wipe(local)
        rig.warm_cache(rig.disk)
        found["restore from persistent"] = self._restored("persistent", {"every": {"persistent": 1}})
        return found

    def _restored(self, level: str, settings: dict[str, Any]) -> list[float]:
        times = []
        for _ in range(self._repeat + 1):
            with deeppart.Checkpointer(self._config(**settings)) as checkpointer:
                restore = partial(self._restore, checkpointer)
                times.append(self._rig.restored(f"restore from {level}", restore))
        return times[1:]

    def _restore(self, checkpointer: deeppart.Checkpointer) -> None:
        assert checkpointer.restore(self._rig.workload.tree) == 1


def measure(settings: Path, comm: MPI.Comm) -> Times:
    """Seconds of the slowest rank, each time, by what was measured."""
    return Measurement(Rig(Settings.read(settings), comm)).run()
