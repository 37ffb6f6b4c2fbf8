"""What every rank of benchmarks/aggregate.py measures, by way of benchmarks/checkout.py."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path, PurePath

from mpi4py import MPI

import deeppart
from benchmarks.checkout import Times
from benchmarks.rig import Rig
from benchmarks.settings import Settings
from deeppart.testing import StorageFaults

_TIMEOUT_S = 300.0
FILES = ("rank", "node")
# What is counted of a checkpoint, on all ranks together.
CREATED, OPENED, RENAMED = "files created", "files opened to write", "files renamed"
SYNCED, SYNCED_DIRECTORIES, LOOKED = "files synced", "directories synced", "directories opened, names looked up"
_LOOKS = frozenset({"open", "stat", "lstat", "mkdir", "listdir", "scandir"})


class Measurement:
    """Both ways of writing, in turn.

    Args:
        rig: the ranks, the state and the directories.
    """

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.found: Times = {}

    def run(self) -> Times:
        """Seconds of the slowest rank, each time, and counts, by the value of ``files`` and what was measured.

        The first round does not count. What is counted is counted in a checkpoint of its own, the last of each.
        """
        repetitions = self._rig.settings.repetitions
        for number in range(repetitions + 2):
            self._rig.next_state()
            for files in random.Random(number).sample(FILES, len(FILES)):
                self._turn(files, number, counts=number > repetitions)
        return {what: values[1:] if what in FILES else values for what, values in self.found.items()}

    def _turn(self, files: str, number: int, *, counts: bool) -> None:
        """Two checkpoints, of which the second is looked at: the first one makes what a job makes once."""
        rig, path = self._rig, self._rig.disk / files
        config = deeppart.Config(
            persistent_dir=str(path),
            files=files,
            compression="none",
            incremental=False,
            node_size=rig.settings.node_size or None,
            timeout=_TIMEOUT_S,
        )
        with deeppart.Checkpointer(config) as checkpointer:
            checkpointer.checkpoint(rig.workload.tree, 1).wait("persistent", _TIMEOUT_S)
            rig.step()
            if counts:
                self._count(files, checkpointer, path)
            else:
                self.found.setdefault(files, []).append(self._timed(checkpointer))
        rig.wipe(path)

    def _timed(self, checkpointer: deeppart.Checkpointer) -> float:
        began = time.perf_counter()
        checkpointer.checkpoint(self._rig.workload.tree, 2).wait("persistent", _TIMEOUT_S)
        return self._rig.slowest(time.perf_counter() - began)

    def _count(self, files: str, checkpointer: deeppart.Checkpointer, path: Path) -> None:
        with StorageFaults(path) as operations:
            checkpointer.checkpoint(self._rig.workload.tree, 2).wait("persistent", _TIMEOUT_S)
            self._rig.comm.Barrier()
            log = list(operations.log)
        logs = self._rig.comm.allgather(log)
        for what, count in summary([each for rank in logs for each in rank]).items():
            self.found[f"{files}: {what}"] = [float(count)]


def summary(log: list[tuple[str, str]]) -> Counter[str]:
    """How often what was done, all ranks together; manifest and directories are counted with the rest."""
    temporary = [path for name, path in log if name == "open" and ".tmp-" in PurePath(path).name]
    counts = Counter({CREATED: len(set(temporary)), OPENED: len(temporary) - len(set(temporary))})
    for name, path in log:
        is_file = ".tmp-" in PurePath(path).name
        if name in ("rename", "rename_noreplace"):
            counts[RENAMED] += 1
        elif name == "fsync":
            counts[SYNCED if is_file else SYNCED_DIRECTORIES] += 1
        elif name in _LOOKS and not is_file:
            counts[LOOKED] += 1
    return counts


def measure(settings: Path, comm: MPI.Comm) -> Times:
    """Seconds of the slowest rank, each time, and counts, by what was measured."""
    return Measurement(Rig(Settings.read(settings), comm)).run()
