"""What every contestant measures with: the ranks, the state, the directories, and the order that keeps it fair.

Timed work starts at a barrier with nothing left to write on the machine, and its time is that of the slowest rank.
Right before a save every rank goes through its state once, as the optimizer does in a training step.
Files are removed outside of any timing. Before a restore every live byte is overwritten, and after it every rank
compares a digest of all its bytes with the state that was saved.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from mpi4py import MPI

from benchmarks.settings import Settings
from benchmarks.workload import Workload, make_workload

T = TypeVar("T")
#: Metric -> value of one turn; seconds (name ends in ``_s``), bytes (``_bytes``) or a plain number.
Turn = dict[str, float]
_READ_BYTES = 8 << 20


class MalfunctionError(Exception):
    """A restore did not bring back what was saved, or a library failed: the numbers mean nothing."""


class Rig:
    """One rank's view of the run.

    Args:
        settings: see :class:`benchmarks.settings.Settings`.
        comm: the ranks.

    Attributes:
        share_bytes: an equal share of the state, rounded up.
        restores_compared: how many restores were found to be exact, on all ranks.
    """

    def __init__(self, settings: Settings, comm: MPI.Comm) -> None:
        self.settings = settings
        self.comm = comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        if self.size != settings.ranks:
            raise MalfunctionError(f"mpirun made an MPI world of {self.size} ranks, not of {settings.ranks}")
        self.disk, self.tmpfs = Path(settings.disk), Path(settings.tmpfs)
        self.workload: Workload = make_workload(settings.state, settings.scale, settings.layers, settings.seed)
        self.share_bytes = -(-self.workload.nbytes // self.size)
        self.restores_compared = 0
        self._digest = ""
        self._turn = 0

    def say(self, text: str) -> None:
        """One line of progress, from rank 0."""
        if self.rank == 0:
            print(text, file=sys.stderr, flush=True)

    def next_state(self) -> None:
        """Train: every round saves a state of its own."""
        self._turn += 1
        self.workload.train(self._turn)
        self._digest = self.workload.digest()
        if len(set(self.comm.allgather(self._digest))) != 1:
            raise MalfunctionError("the ranks' states differ, though they should be replicas")

    def slowest(self, value: float) -> float:
        """The largest value on any rank."""
        return float(self.comm.allreduce(value, op=MPI.MAX))

    def total(self, value: float) -> float:
        """The sum over all ranks."""
        return float(self.comm.allreduce(value, op=MPI.SUM))

    def timed(self, work: Callable[[], T]) -> tuple[float, T]:
        """Run work that all ranks begin together; (seconds of the slowest rank, this rank's result)."""
        self.comm.Barrier()
        began = time.perf_counter()
        result = work()
        return self.slowest(time.perf_counter() - began), result

    def quiet(self) -> None:
        """Let the machine finish writing."""
        self.comm.Barrier()
        if self.rank == 0:
            os.sync()
        self.comm.Barrier()

    def step(self) -> None:
        """What comes before a save in training: every element is read and written. And nothing is left to write."""
        self.quiet()
        self.workload.sweep()
        self.comm.Barrier()

    def wipe(self, *paths: Path) -> None:
        """Remove files and directories; not timed."""
        self.comm.Barrier()
        if self.rank == 0:
            for path in paths:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        self.quiet()

    def warm_cache(self, *roots: Path) -> None:
        """Read every file once, so that all restores find their bytes in the page cache; not timed."""
        self.comm.Barrier()
        if self.rank == 0:
            buffer = bytearray(_READ_BYTES)
            for file in _files(roots):
                with file.open("rb", buffering=0) as stream:
                    while stream.readinto(buffer):
                        pass
        self.comm.Barrier()

    def restored(self, what: str, restore: Callable[[], Any]) -> float:
        """Time a restore into the live state and check every byte of it; seconds.

        Raises:
            MalfunctionError: on every rank, if any rank got other bytes.
        """
        self.workload.spoil()
        seconds, _ = self.timed(restore)
        self.compare(what)
        return seconds

    def compare(self, what: str) -> None:
        """Check the live state against what was saved; raise as :meth:`restored` does."""
        good = self.workload.digest() == self._digest
        bad = [rank for rank, fine in enumerate(self.comm.allgather(good)) if not fine]
        if bad:
            raise MalfunctionError(f"{what}: the restored bytes are not those saved, on ranks {bad}")
        self.restores_compared += 1


def _files(roots: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for root in roots:
        found += [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
    return found
