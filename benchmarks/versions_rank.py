"""What every rank of benchmarks/versions.py runs: ``python -m benchmarks.versions_rank CHECKOUT SETTINGS RESULT``.

The deeppart of the checkout under test is imported first; everything else comes from this one.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import signal
import sys
import time
from collections.abc import Callable
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
from benchmarks.workload import BERT_LAYERS, Workload, make_workload

_TIMEOUT_S = 300.0
#: Checkpoints before those that count: from then on, staging memory and files to write over are there.
_WARM_UPS = 3
_PR_SET_PDEATHSIG = 1


class Measurement:
    """One checkout, one state.

    Args:
        settings: as benchmarks/versions.py writes them.
        comm: all ranks.
    """

    def __init__(self, settings: dict[str, Any], comm: MPI.Comm) -> None:
        self._comm, self._repeat = comm, int(settings["repeat"])
        self._disk, self._tmpfs = Path(settings["disk"]), Path(settings["tmpfs"])
        self._workload: Workload = make_workload("bert-large+adam", settings["scale"], BERT_LAYERS, seed=1)

    def run(self) -> dict[str, list[float]]:
        """Seconds of the slowest rank, each time, by what was measured."""
        found = {}
        for capture, name in (("eager", ""), ("lazy", "lazy, ")):
            blocked, planning = self._saves(capture)
            found |= {f"{name}blocked": blocked, f"{name}planning": planning}
        return found | self._restores()

    def _config(self, **more: Any) -> deeppart.Config:
        return deeppart.Config(
            persistent_dir=str(self._disk / "persistent"),
            compression="none",
            keep={"local": 1, "persistent": 1},
            timeout=_TIMEOUT_S,
            **more,
        )

    def _saves(self, capture: str) -> tuple[list[float], list[float]]:
        """To the local level alone; all of the state has changed, as far as deeppart knows."""
        optimizer = Sweep(self._workload.leaves)
        blocked, planning = [], []
        local = self._tmpfs / capture
        config = self._config(local_dir=str(local), every={"local": 1, "persistent": 0}, capture=capture)
        with deeppart.Checkpointer(config) as checkpointer, optimizer:
            for step in range(1, _WARM_UPS + self._repeat + 1):
                self._workload.train(step)
                optimizer.step()
                self._comm.Barrier()
                began = time.perf_counter()
                pending = checkpointer.checkpoint(self._workload.tree, step)
                seconds = time.perf_counter() - began
                pending.wait("local", _TIMEOUT_S)
                stages = pending.report.stages_s
                if step > _WARM_UPS:
                    blocked.append(self._slowest(seconds))
                    planning.append(self._slowest(stages["flatten"] + stages["agree"]))
        self._remove(local, self._disk / "persistent")
        return blocked, planning

    def _restores(self) -> dict[str, list[float]]:
        """From tmpfs, and from the page cache of the disk; each the first thing that a session does."""
        local = self._tmpfs / "restored"
        levels = {"local_dir": str(local), "every": {"local": 1, "persistent": 1}}
        with deeppart.Checkpointer(self._config(**levels)) as checkpointer:
            checkpointer.checkpoint(self._workload.tree, 1).wait("persistent", _TIMEOUT_S)
        saved = self._workload.digest()
        found = {"restore from local": self._restored(levels, saved)}
        self._remove(local)
        if self._comm.rank == 0:
            for path in self._disk.rglob("*"):
                if path.is_file():
                    path.read_bytes()
        found["restore from persistent"] = self._restored({"every": {"persistent": 1}}, saved)
        return found

    def _restored(self, levels: dict[str, Any], saved: str) -> list[float]:
        times = []
        for _ in range(self._repeat + 1):
            self._workload.spoil()
            with deeppart.Checkpointer(self._config(**levels)) as checkpointer:
                self._comm.Barrier()
                times.append(self._slowest(_seconds(lambda checkpointer=checkpointer: self._restore(checkpointer))))
        assert self._workload.digest() == saved, "what came back differs from what was saved"
        return times[1:]

    def _restore(self, checkpointer: deeppart.Checkpointer) -> None:
        assert checkpointer.restore(self._workload.tree) == 1

    def _slowest(self, seconds: float) -> float:
        return float(self._comm.allreduce(seconds, MPI.MAX))

    def _remove(self, *directories: Path) -> None:
        self._comm.Barrier()
        if self._comm.rank == 0:
            for directory in directories:
                shutil.rmtree(directory)
        self._comm.Barrier()


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main(checkout: Path, settings_path: Path, result_path: Path) -> None:
    """Measure as this rank; rank 0 writes the result."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # never outlive the launcher
    torch.set_num_threads(1)
    assert Path(deeppart.__file__).is_relative_to(checkout), f"{deeppart.__file__} was imported instead"
    comm = MPI.COMM_WORLD.Dup()
    found = Measurement(json.loads(settings_path.read_text(encoding="utf-8")), comm).run()
    if comm.rank == 0:
        result_path.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
