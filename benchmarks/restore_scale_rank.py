"""What every rank of benchmarks/restore_scale.py measures, by way of benchmarks/checkout.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpi4py import MPI

import deeppart
from benchmarks.checkout import Times
from benchmarks.rig import Rig
from benchmarks.settings import Settings

_TIMEOUT_S = 300.0
#: How often a rank that waits for others looks, and leaves them the processor in between.
_LOOK_S = 1e-3


class Measurement:
    """One checkout, one number of ranks.

    Args:
        rig: the ranks, the state and the directories.
    """

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def run(self) -> Times:
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
            node_size=self._rig.settings.node_size or None,
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


def measure(settings: Path, comm: MPI.Comm) -> Times:
    """Seconds of the slowest rank, each time, by what was measured."""
    return Measurement(Rig(Settings.read(settings), comm)).run()
