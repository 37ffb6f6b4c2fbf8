"""Simulates a cluster in rounds: jobs train, and at each interval a policy allocates the GPUs again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import numpy as np

from deeppart.elastic.goodput import Bounds, Goodput, GradientNoise, Measured, Throughput, best_step, fit
from deeppart.errors import ConfigError

from .applications import Placement, Request, Times, divided

# --- jobs -------------------------------------------------------------------------------------------------------------


#: Initial guess of a job's first fit.
_FIRST_GUESS = Throughput(0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001)


class Job:
    """A running or waiting job."""

    def __init__(self, request: Request, batch: int | None) -> None:
        self.request = request
        self.batch = batch
        self.epoch = 0  # the current one
        self.placement: Placement = ()  # GPUs on each of its nodes; empty while it waits
        self.restarts = 0  # without the first start
        self.finished_s: float | None = None
        self.throughput: Throughput | None = None  # this and noise: None before the first step, and for a fixed batch
        self.noise: GradientNoise | None = None
        self.most_gpus_seen = 0  # most GPUs so far
        self.stopped_s = 0.0
        self._started = False
        self._progress = 0.0
        self._waits_s = 0.0
        self._local, self._accumulation = 0, 0
        self._profile: dict[tuple[int, int, int], Times] = {}

    @property
    def bounds(self) -> Bounds:
        """The limits of its batch."""
        app = self.request.application
        return Bounds(app.batch, app.most_batch, app.most_local, app.least_local)

    @property
    def goodput(self) -> Goodput | None:
        """Its goodput by the measurements so far; None if unknown."""
        return None if self.throughput is None or self.noise is None else Goodput(self.throughput, self.noise)

    def place(self, placement: Placement, restart_s: float) -> None:
        """Stop, and continue with other GPUs, if any, after ``restart_s``."""
        self.placement = placement
        if not placement:
            return
        self._choose_batch()
        self._waits_s = restart_s
        self.restarts += self._started
        self._started = True

    def advance(self, now_s: float, seconds: float) -> None:
        """Train for ``seconds``."""
        if not self.placement or self.finished_s is not None:
            return
        waits = min(self._waits_s, seconds)
        self._waits_s -= waits
        self.stopped_s += waits
        now_s, seconds = now_s + waits, seconds - waits
        while seconds > 0 and self.finished_s is None:
            rate = self._steps_per_s()
            until = self.request.application.progress(self.epoch + 1)
            if self._progress + rate * seconds < until:
                self._progress += rate * seconds
                seconds = 0
            else:
                taken = min(float(round((until - self._progress) / rate)), seconds)
                self.epoch, self._progress = self.epoch + 1, until
                now_s, seconds = now_s + taken, seconds - taken
                if self.epoch >= self.request.application.settings.epochs:
                    self.finished_s = now_s
            if self.finished_s is None:
                self._choose_batch()

    def _steps_per_s(self) -> float:
        """The rate of progress, in steps with the first batch per second. Also records the measurements."""
        app, gpus = self.request.application, sum(self.placement)
        batch = gpus * self._local * (self._accumulation + 1)
        times = app.times(self.placement, self._local)
        sqr, var = app.noise(batch, self.epoch)
        noise = GradientNoise(sqr, var, app.batch)
        if self.batch is None or app.settings.batch is not None:
            self._learn(times, noise)
        taken = times.step_s + (times.step_s - times.sync_s) * self._accumulation
        return float(noise.gain(batch)) / taken

    def _learn(self, times: Times, noise: GradientNoise) -> None:
        self.noise = noise
        size = len(self.placement), sum(self.placement)
        self.most_gpus_seen = max(self.most_gpus_seen, size[1])
        key = (*size, self._local)
        if key in self._profile:
            return
        self._profile[key] = times
        measured = [Measured(*kind, each.step_s, each.step_s - each.sync_s) for kind, each in self._profile.items()]
        self.throughput = fit(measured, self.throughput or _FIRST_GUESS)

    def _choose_batch(self) -> None:
        app, gpus, goodput = self.request.application, sum(self.placement), self.goodput
        if self.batch is not None or goodput is None:
            batch = max(app.batch, app.least_local * gpus) if self.batch is None else self.batch
            self._local, self._accumulation = divided(batch, gpus, app)
            return
        step = best_step(goodput, len(self.placement), gpus, self.bounds)
        most = app.most_batch // (gpus * (step.accumulation + 1))  # all GPUs have equal micro-batches here
        self._local, self._accumulation = min(step.local_batch, most), step.accumulation


# --- policies ---------------------------------------------------------------------------------------------------------


#: The node of each GPU of a job.
Allocation = tuple[int, ...]


class Policy(Protocol):
    """Allocates GPUs to jobs in each round."""

    def batch(self, request: Request) -> int | None:
        """The fixed batch of a job; None if the job chooses its batch."""
        ...

    def share(self, now_s: float, jobs: Sequence[Job], held: Mapping[str, Allocation]) -> dict[str, Allocation]:
        """The allocation of each job from now on. ``held``: the current allocations."""
        ...


# --- rounds -----------------------------------------------------------------------------------------------------------


#: A workload that takes longer is assumed never to end.
_MOST_S = 365 * 86_400


@dataclass(frozen=True)
class Cluster:
    """A cluster."""

    nodes: int
    per_node: int  # GPUs of each node
    interval_s: float  # between decisions of the policy
    #: name of an application -> seconds from a change of its GPUs until it trains again
    restart_s: Callable[[str], float]


@dataclass(frozen=True)
class JobResult:
    """The result of a job."""

    name: str
    application: str
    submitted_s: float  # submitted_s, finished_s: since the beginning
    finished_s: float
    restarts: int  # with other GPUs, without the first start
    stopped_s: float  # spent with GPUs on starting

    @property
    def completion_s(self) -> float:
        """Seconds from submission to end."""
        return self.finished_s - self.submitted_s


def run(cluster: Cluster, policy: Policy, requests: Sequence[Request]) -> list[JobResult]:
    """Simulate all jobs to their end."""
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
                job.place(tuple(len(list(same)) for _, same in groupby(shared.get(name, ()))), restart_s)
        held = shared
    return [
        JobResult(
            job.request.name, job.request.application.name, job.request.submitted_s, job.finished_s or 0.0,
            job.restarts, job.stopped_s,
        )
        for job in jobs
    ]  # fmt: skip


# --- results ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """The results of a workload with one policy."""

    policy: str
    workload: str
    restart_s: dict[str, float]  # by the name of the application
    jobs: Sequence[JobResult]

    @property
    def figures(self) -> dict[str, float]:
        """Times from submission to end; the time until all jobs are done; mean restarts and starting time of a job."""
        took_s = [job.completion_s for job in self.jobs]
        return {
            "mean_s": float(np.mean(took_s)),
            "median_s": float(np.median(took_s)),
            "p90_s": float(np.quantile(took_s, 0.9)),
            "makespan_s": max(job.finished_s for job in self.jobs),
            "restarts": float(np.mean([job.restarts for job in self.jobs])),
            "stopped_s": float(np.mean([job.stopped_s for job in self.jobs])),
        }
