"""What every rank of benchmarks/restore_scale.py runs: the module, a checkout, settings, a result, ranks per node.

The deeppart of the checkout under test is imported first; everything else comes from this one.
"""

from __future__ import annotations

import ctypes
import json
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

from benchmarks.rig import Rig
from benchmarks.settings import Settings

_TIMEOUT_S = 300.0
_PR_SET_PDEATHSIG = 1
#: How often a rank that waits for others looks, and leaves them the processor in between.
_LOOK_S = 1e-3


class Measurement:
    """One checkout, one number of ranks.

    Args:
        rig: the ranks, the state and the directories.
        node_size: ranks per node, or None to tell by their names.
    """

    def __init__(self, rig: Rig, node_size: int | None) -> None:
        self._rig, self._node_size = rig, node_size

    def run(self) -> dict[str, list[float]]:
        """Seconds of the slowest rank, each time, by what was measured."""
        rig = self._rig
        local = rig.tmpfs / "local"
        levels: dict[str, Any] = {
            "local_dir": str(local / "{node}"),
            "every": {"local": 1, "persistent": 1, "partner": 0},
        }
        rig.next_state()
        with self._checkpointer(levels) as checkpointer:
            checkpointer.checkpoint(rig.workload.tree, 1).wait("persistent", _TIMEOUT_S)
        found = {"copy": self._copies(), "local": self._restores(levels)}
        rig.wipe(local)
        rig.warm_cache(rig.disk)
        return found | {"persistent": self._restores({"every": {"persistent": 1}})}

    def _checkpointer(self, levels: dict[str, Any]) -> deeppart.Checkpointer:
        config = deeppart.Config(
            persistent_dir=str(self._rig.disk / "persistent"),
            compression="none",
            node_size=self._node_size,
            timeout=_TIMEOUT_S,
            **levels,
        )
        return deeppart.Checkpointer(config)

    def _copies(self) -> list[float]:
        """A copy of the whole state on every rank at once, leaf by leaf, which has been made before."""
        leaves = self._rig.workload.leaves
        saved = [leaf.clone() for leaf in leaves]

        def copy() -> None:
            for leaf, source in zip(leaves, saved, strict=True):
                leaf.copy_(source)

        return [self._timed(copy) for _ in range(self._rig.settings.repetitions + 1)][1:]

    def _restores(self, levels: dict[str, Any]) -> list[float]:
        times = []
        for _ in range(self._rig.settings.repetitions + 1):
            with self._checkpointer(levels) as checkpointer:
                self._rig.workload.spoil()
                times.append(self._timed(lambda checkpointer=checkpointer: self._restore(checkpointer)))  # type: ignore[misc]
            self._rig.compare("restore")
        return times[1:]

    def _restore(self, checkpointer: deeppart.Checkpointer) -> None:
        assert checkpointer.restore(self._rig.workload.tree) == 1

    def _timed(self, work: Callable[[], None]) -> float:
        """Seconds from when all ranks begin together until the last has finished; who waits leaves the processor."""
        self._meet()
        began = time.perf_counter()
        work()
        self._meet()
        return self._rig.slowest(time.perf_counter() - began)

    def _meet(self) -> None:
        meeting = self._rig.comm.Ibarrier()
        while not meeting.Test():
            time.sleep(_LOOK_S)


def main(checkout: Path, settings_path: Path, result_path: Path, node_size: str) -> None:
    """Measure as this rank; rank 0 writes the result."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # never outlive the launcher
    torch.set_num_threads(1)
    assert Path(deeppart.__file__).is_relative_to(checkout), f"{deeppart.__file__} was imported instead"
    comm = MPI.COMM_WORLD.Dup()
    found = Measurement(Rig(Settings.read(settings_path), comm), int(node_size) or None).run()
    if comm.rank == 0:
        result_path.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
