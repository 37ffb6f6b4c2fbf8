"""What every rank of benchmarks/cold.py measures, by way of benchmarks/checkout.py."""

from __future__ import annotations

import errno
import mmap
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from mpi4py import MPI

import deeppart
from benchmarks.bare import BLOCK_BYTES
from benchmarks.checkout import Times
from benchmarks.peers import join_process_group
from benchmarks.rig import MalfunctionError, Rig
from benchmarks.settings import Settings

_TIMEOUT_S = 300.0
#: Reads of a rank that are under way at a time, to find the disk's rate.
_REQUESTS = 4


class Measurement:
    """One checkout.

    Args:
        rig: the ranks, the state and the directories.
    """

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.found: Times = {}

    def run(self) -> Times:
        """Seconds of the slowest rank, each time, by what was measured; the first round does not count."""
        rig = self._rig
        contestants = {"deeppart": (self._save, self._restore), "dcp": (self._save_with_dcp, self._restore_with_dcp)}
        contestants["local"] = (partial(self._save, local=True), partial(self._restore, local=True))
        for number in range(rig.settings.repetitions + 1):
            rig.next_state()
            for name in random.Random(number).sample(sorted(contestants), len(contestants)):
                save, restore = contestants[name]
                path = rig.disk / name
                rig.step()
                save(path)
                self._time(f"{name} left", partial(restore, path))
                self._drop(path)
                self._time(f"{name} cold", partial(restore, path))
                rig.warm_cache(path)
                self._time(f"{name} warm", partial(restore, path))
                rig.wipe(path, rig.tmpfs / "local")
            self._measure_disk(rig.disk / "again")
        return {what: times[1:] for what, times in self.found.items()}

    def _measure_disk(self, path: Path) -> None:
        """Read what has just been written, as the restore after a save does; and once more."""
        self._save(path)
        for what in ("disk left", "disk cold"):
            self._drop(path)
            self.found.setdefault(what, []).append(self._rig.timed(partial(self._read, path))[0])
        self._rig.wipe(path)

    def _time(self, what: str, restore: Callable[[], Any]) -> None:
        self.found.setdefault(what, []).append(self._rig.restored(what, restore))

    def _save(self, path: Path, *, local: bool = False) -> None:
        with self._checkpointer(path, local) as checkpointer:
            checkpointer.checkpoint(self._rig.workload.tree, 1).wait("persistent", _TIMEOUT_S)

    def _restore(self, path: Path, *, local: bool = False) -> None:
        # From the start of the job on: a restart pays for that, too.
        with self._checkpointer(path, local) as checkpointer:
            if checkpointer.restore(self._rig.workload.tree) != 1:
                raise MalfunctionError("nothing was restored")

    def _checkpointer(self, path: Path, local: bool) -> deeppart.Checkpointer:
        local_dir = str(self._rig.tmpfs / "local") if local else None
        settings: dict[str, Any] = {"local_dir": local_dir, "compression": "none", "timeout": _TIMEOUT_S}
        return deeppart.Checkpointer(persistent_dir=str(path), **settings)

    def _save_with_dcp(self, path: Path) -> None:
        dcp.save(self._rig.workload.tree, checkpoint_id=path)

    def _restore_with_dcp(self, path: Path) -> None:
        dcp.load(self._rig.workload.tree, checkpoint_id=path)

    def _drop(self, path: Path) -> None:
        """Have nothing of the files in the page cache."""
        self._rig.quiet()
        for file in _large_files(path)[self._rig.rank :: self._rig.size]:
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                if _is_cached(descriptor):
                    raise MalfunctionError(f"{file} is still in the page cache")
            finally:
                os.close(descriptor)
        self._rig.comm.Barrier()

    def _read(self, path: Path) -> None:
        """This rank's share of the large files, around the page cache, several requests at a time."""
        for file in _large_files(path)[self._rig.rank :: self._rig.size]:
            length = file.stat().st_size
            with ThreadPoolExecutor(_REQUESTS) as pool:
                list(pool.map(partial(_read_every, file, length), range(_REQUESTS)))


def _read_every(file: Path, length: int, first: int) -> None:
    memory = mmap.mmap(-1, BLOCK_BYTES)
    descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
    for at in range(first * BLOCK_BYTES, length, _REQUESTS * BLOCK_BYTES):
        os.preadv(descriptor, [memory], at)
    os.close(descriptor)


def _is_cached(descriptor: int) -> bool:
    """Whether a page at the beginning, in the middle or at the end of a file is in the page cache."""
    length = os.fstat(descriptor).st_size
    for at in {0, length // 2, max(0, length - 1)} if length else ():
        try:
            if os.preadv(descriptor, [bytearray(1)], at, os.RWF_NOWAIT):
                return True
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
    return False


def _large_files(path: Path) -> list[Path]:
    """Those with the bytes of the state in them; the others are next to nothing."""
    return sorted(file for file in path.rglob("*") if file.is_file() and file.stat().st_size >= BLOCK_BYTES)


def measure(settings: Path, comm: MPI.Comm) -> Times:
    """Seconds of the slowest rank, each time, by what was measured."""
    rig = Rig(Settings.read(settings), comm)
    join_process_group(rig)
    found = Measurement(rig).run()
    dist.destroy_process_group()
    return found
