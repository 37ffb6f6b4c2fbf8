"""What every rank of benchmarks/versions.py runs: ``python -m benchmarks.versions_rank CHECKOUT SETTINGS RESULT``.

The deeppart of the checkout under test is imported first; everything else comes from this one.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])

import deeppart

if __name__ == "__main__":
    sys.path.remove(sys.argv[1])

import torch
from mpi4py import MPI

from benchmarks.ours import Sweep
from benchmarks.rig import Rig
from benchmarks.settings import Settings

_TIMEOUT_S = 300.0
#: Checkpoints before those that count: from then on, staging memory and files to write over are there.
_WARM_UPS = 3
_PR_SET_PDEATHSIG = 1


class Measurement:
    """One checkout, one state.

    Args:
        rig: the ranks, the state and the directories.
    """

    def __init__(self, rig: Rig) -> None:
        self._rig, self._repeat = rig, rig.settings.repetitions

    def run(self) -> dict[str, list[float]]:
        """Seconds of the slowest rank, each time, by what was measured."""
        found: dict[str, list[float]] = {}
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


def main(checkout: Path, settings_path: Path, result_path: Path) -> None:
    """Measure as this rank; rank 0 writes the result."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # never outlive the launcher
    torch.set_num_threads(1)
    assert Path(deeppart.__file__).is_relative_to(checkout), f"{deeppart.__file__} was imported instead"
    comm = MPI.COMM_WORLD.Dup()
    found = Measurement(Rig(Settings.read(settings_path), comm)).run()
    if comm.rank == 0:
        result_path.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
