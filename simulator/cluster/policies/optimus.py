"""Optimus (Y. Peng et al., EuroSys 2018), with an oracle: a GPU goes to the job that it brings nearer to its end most.

As AdaptDL's artefact has it: each job has one GPU first; it knows how many steps are left, and how long they take on
any number of GPUs. Jobs keep their batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..applications import divided, packed
from ..jobs import Job
from .policy import Allocation, Free, KeepsBatch


class Optimus(KeepsBatch):
    """Sizes by marginal gain."""

    def share(self, now_s: float, jobs: Sequence[Job], held: Mapping[str, Allocation]) -> dict[str, Allocation]:
        """GPUs by gain; who keeps its number keeps its place."""
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
        """Seconds that one more GPU saves a job."""
        app = job.request.application
        most = app.settings.most_gpus or job.request.batch // app.least_local
        if gpus + 1 > most or not left:
            return 0.0
        return (self._step_s(job, gpus) - self._step_s(job, gpus + 1)) * _steps_left(job)

    def _step_s(self, job: Job, gpus: int) -> float:
        app = job.request.application
        local, accumulation = divided(job.request.batch, gpus, app)
        if gpus == 1 and not accumulation:  # as the artefact has it, whatever the batch
            accumulation = 1
            local = min(-(-job.request.batch // 2), app.most_batch // 2)
        times = app.times(packed(gpus, self._per_node), local)
        return times.step_s + (times.step_s - times.sync_s) * accumulation


def _steps_left(job: Job) -> float:
    app, batch = job.request.application, job.request.batch
    last = app.settings.epochs - 1
    return app.iterations(batch, last) - app.iterations(batch, job.epoch) if job.epoch < last else 1.0
