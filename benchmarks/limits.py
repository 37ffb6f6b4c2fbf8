"""What the machine can do with the same bytes at best: the limits that checkpoint libraries are measured against.

Every rank moves its equal share, all at the same time.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from mpi4py import MPI

from benchmarks.bare import BLOCK_BYTES, copy_each, copy_each_with_torch, cut, memmove, warm_memory, writer
from benchmarks.rig import Rig, Turn
from benchmarks.workload import halves

_MESSAGE_BYTES = 4 << 20
_MESSAGES_IN_FLIGHT = 8

Bytes = npt.NDArray[np.uint8]


class Limits:
    """Addresses of all tensors, bare copy, digest, disk, memory file system, page cache and broadcast."""

    name = "limits"

    def turn(self, rig: Rig) -> Turn:
        """Measure all of them once."""
        share = halves(rig.workload.leaves, rig.size, rig.rank)
        nbytes = sum(view.nbytes for view in share)
        fresh_s, memory = rig.timed(lambda: warm_memory(nbytes))
        buffer = torch.frombuffer(memory, dtype=torch.uint8)[:nbytes]
        targets = cut(buffer, share)
        rig.step()
        measured = {"visit_s": rig.timed(lambda: [leaf.data_ptr() for leaf in rig.workload.leaves])[0]}
        measured |= {"fresh_s": fresh_s, "copy_s": rig.timed(lambda: copy_each(targets, share))[0]}
        rig.step()
        measured |= {"torch_copy_s": rig.timed(lambda: copy_each_with_torch(targets, share))[0]}
        measured["bare_copy_s"] = min(measured["copy_s"], measured["torch_copy_s"])
        measured["fresh_copy_s"] = fresh_s + measured["bare_copy_s"]
        staged: Bytes = buffer.numpy()
        measured["xxh3_s"] = rig.timed(lambda: xxhash.xxh3_128_digest(staged.data))[0]
        measured |= self._copy_in_one_block(rig, buffer)
        measured |= self._bcast(rig, staged)
        for place, root, direct in (("disk", rig.disk, True), ("tmpfs", rig.tmpfs, False)):
            path = root / f"limit-{rig.rank}"
            rig.quiet()
            measured[f"{place}_write_s"] = rig.timed(writer(path, memory, nbytes, direct))[0]
            if place == "disk":
                rig.warm_cache(*(rig.disk / f"limit-{rank}" for rank in range(rig.size)))
                measured["cache_read_s"] = rig.timed(_reader(path, memory, nbytes))[0]
            path.unlink()
            rig.quiet()
        path = rig.disk / f"limit-{rig.rank}"
        measured["disk_buffered_write_s"] = rig.timed(writer(path, memory, nbytes, direct=False))[0]
        path.unlink()
        rig.quiet()
        return measured

    def _copy_in_one_block(self, rig: Rig, buffer: torch.Tensor) -> Turn:
        """The largest leaf over and over: long copies may bypass the cache, which short ones may not."""
        largest = max(rig.workload.leaves, key=lambda leaf: leaf.nbytes)
        source, count = largest.data_ptr(), min(largest.nbytes, buffer.nbytes)

        def copy() -> None:
            for at in range(0, buffer.nbytes - count + 1, count):
                memmove(buffer.data_ptr() + at, source, count)

        copied = buffer.nbytes - buffer.nbytes % count
        return {"long_copy_s": rig.timed(copy)[0] * buffer.nbytes / copied}

    def _bcast(self, rig: Rig, staged: Bytes) -> Turn:
        """Every share from the rank that has it to all others, several messages in flight and roots taking turns."""
        length = min(rig.comm.allgather(len(staged)))
        starts = range(0, length, _MESSAGE_BYTES)
        # every root is at another place of the buffer, so that no message leaves from where another arrives
        apart = len(starts) // rig.size
        most = max(1, min(_MESSAGES_IN_FLIGHT, apart))

        def broadcast() -> None:
            flying: deque[MPI.Request] = deque()
            for number in range(len(starts)):
                for root in range(rig.size):
                    at = starts[(number + root * apart) % len(starts)]
                    flying.append(rig.comm.Ibcast(staged[at : min(at + _MESSAGE_BYTES, length)], root=root))
                    if len(flying) >= most:
                        flying.popleft().Wait()
            MPI.Request.Waitall(list(flying))

        return {"bcast_s": rig.timed(broadcast)[0]}


def _reader(path: Path, memory: mmap.mmap, nbytes: int) -> Callable[[], None]:
    def read() -> None:
        view = memoryview(memory)[:nbytes]
        with path.open("rb", buffering=0) as stream:
            at = 0
            while count := stream.readinto(view[at : at + BLOCK_BYTES]):
                at += count
        view.release()

    return read
