"""Policies that allocate GPUs; :mod:`.pollux` has another one.

*fifo*: jobs get the GPUs that they request in order of submission, and keep them until they are done. *tiresias* (J. Gu
et al., NSDI 2019): two queues; a job moves to the second after 16 GPU-hours. *optimus* (Y. Peng et al., EuroSys 2018),
with an oracle: a GPU goes to the job whose remaining time it shortens most. All as in AdaptDL's artifact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .applications import Request, divided, packed
from .engine import Allocation, Job, Policy
from .pollux import Pollux


class KeepsBatch:
    """Base of policies under which jobs keep the batches of their users."""

    def __init__(self, nodes: int, per_node: int) -> None:
        self._nodes, self._per_node = nodes, per_node

    def batch(self, request: Request) -> int:
        """The batch of its user."""
        return request.batch


class Free:
    """The free GPUs of each node."""

    def __init__(self, nodes: int, per_node: int, held: Mapping[str, Allocation]) -> None:
        self._left = [per_node] * nodes
        for allocation in held.values():
            for node in allocation:
                self._left[node] -= 1

    def take(self, gpus: int) -> Allocation:
        """Take ``gpus`` GPUs, from the nodes with the most free ones first."""
        taken: list[int] = []
        while len(taken) < gpus:
            node = max(range(len(self._left)), key=self._left.__getitem__)
            count = min(self._left[node], gpus - len(taken))
            self._left[node] -= count
            taken += [node] * count
        return tuple(taken)


class Fifo(KeepsBatch):
    """First in, first out: no job is stopped, and none overtakes a waiting one."""

    def share(self, now_s: float, jobs: Sequence[Job], held: Mapping[str, Allocation]) -> dict[str, Allocation]:
        """Keep all allocations, and add those of the next jobs as long as there are enough GPUs."""
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


#: GPU seconds after which a job moves to the second queue.
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
        """Allocate GPUs in the order of the queues; later jobs are preempted."""
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
        """Update the queues."""
        first, second = ([name for name in queue if name in gpus] for queue in self._queues)
        first += [name for name in gpus if name not in self._ran_s]
        for name in gpus:
            ran_s = self._ran_s.get(name, 0.0) + (now_s - self._before_s if name in self._running else 0.0)
            self._ran_s[name] = ran_s
            if name in first and ran_s * gpus[name] >= _THRESHOLD_S:
                first.remove(name)
                second.append(name)
        self._queues, self._before_s = (first, second), now_s


class Optimus(KeepsBatch):
    """Sizes by marginal gain."""

    def share(self, now_s: float, jobs: Sequence[Job], held: Mapping[str, Allocation]) -> dict[str, Allocation]:
        """Allocate GPUs by gain; a job whose number of GPUs does not change keeps them."""
        gpus = self._sizes(jobs)
        found = {name: allocation for name, allocation in held.items() if len(allocation) == gpus[name]}
        free = Free(self._nodes, self._per_node, found)
        for job in sorted(jobs, key=lambda job: gpus[job.request.name]):
            name = job.request.name
            if gpus[name] and name not in found:
                found[name] = free.take(gpus[name])
        return found

    def _sizes(self, jobs: Sequence[Job]) -> dict[str, int]:
        left = self._nodes * self._per_node
        sizes: dict[str, int] = {}
        gains: dict[str, float] = {}
        by_name = {job.request.name: job for job in jobs}
        for name, job in by_name.items():
            sizes[name], gains[name] = 0, 0.0
            if left:
                sizes[name], left = 1, left - 1
                gains[name] = self._gain(job, 1, left)
        while left and max(gains.values()) > 0:
            name = max(gains, key=gains.__getitem__)
            sizes[name] += 1
            gains[name] = self._gain(by_name[name], sizes[name], left)
            left -= 1
        return sizes

    def _gain(self, job: Job, gpus: int, left: int) -> float:
        """Seconds that another GPU would save a job."""
        app = job.request.application
        most = app.settings.most_gpus or job.request.batch // app.least_local
        if gpus + 1 > most or not left:
            return 0.0
        return (self._step_s(job, gpus) - self._step_s(job, gpus + 1)) * _steps_left(job)

    def _step_s(self, job: Job, gpus: int) -> float:
        app = job.request.application
        local, accumulation = divided(job.request.batch, gpus, app)
        if gpus == 1 and not accumulation:  # as in the artifact, for any batch
            accumulation = 1
            local = min(-(-job.request.batch // 2), app.most_batch // 2)
        times = app.times(packed(gpus, self._per_node), local)
        return times.step_s + (times.step_s - times.sync_s) * accumulation


def _steps_left(job: Job) -> float:
    app, batch = job.request.application, job.request.batch
    last = app.settings.epochs - 1
    return app.iterations(batch, last) - app.iterations(batch, job.epoch) if job.epoch < last else 1.0


POLICIES: Mapping[str, Callable[[int, int, float], Policy]] = {
    "fifo": lambda nodes, per_node, _: Fifo(nodes, per_node),
    "tiresias": lambda nodes, per_node, _: Tiresias(nodes, per_node),
    "optimus": lambda nodes, per_node, _: Optimus(nodes, per_node),
    "pollux": Pollux,
}
