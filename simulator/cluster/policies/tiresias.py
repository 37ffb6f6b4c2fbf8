"""Tiresias (J. Gu et al., NSDI 2019): those come first that have had little service; with two queues.

As AdaptDL's artefact has it: a job is in the first queue until its GPUs have worked for 16 hours together, then in the
second. Within a queue who came first is first. Jobs keep their size; one that does not fit lets smaller ones pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..jobs import Job
from .policy import Allocation, Free, KeepsBatch

#: GPU seconds after which a job goes to the second queue.
_THRESHOLD_S = 16 * 3600.0


class Tiresias(KeepsBatch):
    """Two queues by attained service."""

    def __init__(self, nodes: int, per_node: int) -> None:
        super().__init__(nodes, per_node)
        self._queues: tuple[list[str], list[str]] = ([], [])
        self._ran_s: dict[str, float] = {}
        self._running: set[str] = set()
        self._before_s = 0.0

    def share(self, now_s: float, jobs: Sequence[Job], held: Mapping[str, Allocation]) -> dict[str, Allocation]:
        """GPUs for those who have had least, which others give up for them."""
        gpus = {job.request.name: job.request.gpus for job in jobs}
        self._update(now_s, gpus)
        order = [name for queue in self._queues for name in queue]
        left = self._nodes * self._per_node
        self._running = set()
        for name in order:
            if gpus[name] <= left:
                self._running.add(name)
                left -= gpus[name]
        found = {name: allocation for name, allocation in held.items() if name in self._running}
        free = Free(self._nodes, self._per_node, found)
        for name in order:
            if name in self._running and name not in found:
                found[name] = free.take(gpus[name])
        return found

    def _update(self, now_s: float, gpus: Mapping[str, int]) -> None:
        """Who is in which queue."""
        first, second = ([name for name in queue if name in gpus] for queue in self._queues)
        first += [name for name in gpus if name not in self._ran_s]
        for name in gpus:
            ran_s = self._ran_s.get(name, 0.0) + (now_s - self._before_s if name in self._running else 0.0)
            self._ran_s[name] = ran_s
            if name in first and ran_s * gpus[name] >= _THRESHOLD_S:
                first.remove(name)
                second.append(name)
        self._queues, self._before_s = (first, second), now_s
