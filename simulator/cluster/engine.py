"""The rounds of a cluster: jobs train, and every so often a policy shares out the GPUs anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from deeppart.errors import ConfigError

from .applications import Placement
from .jobs import Job, Request
from .policies.policy import Allocation, Policy

#: A workload that is not done after so long never will be.
_MOST_S = 365 * 86_400


@dataclass(frozen=True)
class Cluster:
    """What jobs share, and how.

    Attributes:
        nodes: of it.
        per_node: GPUs of each.
        interval_s: from one decision to the next.
        restart_s: of an application, by name: from the moment that its GPUs change until it trains again.
    """

    nodes: int
    per_node: int
    interval_s: float
    restart_s: Callable[[str], float]


@dataclass(frozen=True)
class JobResult:
    """How a job went.

    Attributes:
        name, application: of it.
        submitted_s, finished_s: from the beginning.
        restarts: with other GPUs, after its first start.
        stopped_s: that it spent with GPUs and without training, since it was starting.
    """

    name: str
    application: str
    submitted_s: float
    finished_s: float
    restarts: int
    stopped_s: float

    @property
    def completion_s(self) -> float:
        """From its submission to its end."""
        return self.finished_s - self.submitted_s


def run(cluster: Cluster, policy: Policy, requests: Sequence[Request]) -> list[JobResult]:
    """Every job to its end."""
    jobs = [Job(request, policy.batch(request)) for request in requests]
    held: dict[str, Allocation] = {}
    now_s = 0.0
    while any(job.finished_s is None for job in jobs):
        if now_s > _MOST_S:
            raise ConfigError("a workload is not done after a year", found=f"{len(jobs)} jobs, {cluster.nodes} nodes")
        for job in jobs:
            job.advance(now_s, cluster.interval_s)
        now_s += cluster.interval_s
        waiting = [job for job in jobs if job.finished_s is None and job.request.submitted_s <= now_s]
        names = {job.request.name for job in waiting}
        held = {name: allocation for name, allocation in held.items() if name in names}
        if not waiting:
            continue
        shared = {name: found for name, found in policy.share(now_s, waiting, held).items() if found}
        for job in waiting:
            name = job.request.name
            if shared.get(name) != held.get(name):
                restart_s = cluster.restart_s(job.request.application.name)
                job.place(placement_of(shared.get(name, ())), restart_s)
        held = shared
    return [_result(job) for job in jobs]


def placement_of(allocation: Allocation) -> Placement:
    """GPUs on each node, in the order of the allocation."""
    return tuple(len(list(same)) for _, same in groupby(allocation))


def _result(job: Job) -> JobResult:
    assert job.finished_s is not None
    request = job.request
    return JobResult(
        request.name, request.application.name, request.submitted_s, job.finished_s, job.restarts, job.stopped_s
    )
