"""First in, first out: who came first has the GPUs that it asked for until it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..jobs import Job
from .policy import Allocation, Free, KeepsBatch


class Fifo(KeepsBatch):
    """Nobody is stopped, and nobody gets ahead of one that waits."""

    def share(self, now_s: float, jobs: Sequence[Job], held: Mapping[str, Allocation]) -> dict[str, Allocation]:
        """What each has, and GPUs for those who come next and find enough."""
        found = dict(held)
        free = Free(self._nodes, self._per_node, held)
        left = self._nodes * self._per_node - sum(map(len, held.values()))
        for job in jobs:
            name, gpus = job.request.name, job.request.gpus
            if name in found:
                continue
            if gpus > left:
                break
            found[name] = free.take(gpus)
            left -= gpus
        return found
