"""First in, first out: who came first has the GPUs that it asked for until it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..jobs import Job, Request
from .policy import Allocation, Free


class Fifo:
    """Nobody is stopped, and nobody gets ahead of one that waits.

    Args:
        nodes, per_node: of the cluster, and GPUs of each.
    """

    def __init__(self, nodes: int, per_node: int) -> None:
        self._nodes, self._per_node = nodes, per_node

    def batch(self, request: Request) -> int:
        """That of its user."""
        return request.batch

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
