"""One training on the cluster: how far it is, what it has measured, and when it is done."""

from __future__ import annotations

from dataclasses import dataclass

from deeppart.plan.goodput import Bounds, Goodput, GradientNoise, Measured, Throughput, best_step, fit

from .applications import Application, Placement, Times, divided

#: Where the first fit of a job begins.
_FIRST_GUESS = Throughput(0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001)


@dataclass(frozen=True)
class Request:
    """A row of a workload.

    Attributes:
        name: of the job.
        submitted_s: from the beginning.
        application: that it runs.
        gpus, batch: that its user asks for.
    """

    name: str
    submitted_s: float
    application: Application
    gpus: int
    batch: int


class Job:
    """A job under way.

    Attributes:
        epoch: that it is in.
        placement: GPUs on each of its nodes; empty while it waits.
        restarts: that it had beside its first start.
        finished_s: when it was done, or None.
        throughput, noise: as it knows them; None before its first step, and where it keeps its batch.
        most_gpus_seen: GPUs that it has had at most.
    """

    def __init__(self, request: Request, batch: int | None) -> None:
        self.request = request
        self.batch = batch
        self.epoch = 0
        self.placement: Placement = ()
        self.restarts = 0
        self.finished_s: float | None = None
        self.throughput: Throughput | None = None
        self.noise: GradientNoise | None = None
        self.most_gpus_seen = 0
        self.stopped_s = 0.0
        self._started = False
        self._progress = 0.0
        self._waits_s = 0.0
        self._local, self._accumulation = 0, 0
        self._profile: dict[tuple[int, int, int], Times] = {}

    @property
    def bounds(self) -> Bounds:
        """What a batch of it may be."""
        app = self.request.application
        return Bounds(app.batch, app.most_batch, app.most_local, app.least_local)

    @property
    def goodput(self) -> Goodput | None:
        """As far as it is known."""
        return None if self.throughput is None or self.noise is None else Goodput(self.throughput, self.noise)

    def place(self, placement: Placement, restart_s: float) -> None:
        """Stop, and go on with other GPUs, or none, after so long."""
        self.placement = placement
        if not placement:
            return
        self._choose_batch()
        self._waits_s = restart_s
        self.restarts += self._started
        self._started = True

    def advance(self, now_s: float, seconds: float) -> None:
        """Train for some time."""
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
        """Progress now, in steps with the first batch; what is measured on the way is kept."""
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
        most = app.most_batch // (gpus * (step.accumulation + 1))  # GPUs share it evenly here
        self._local, self._accumulation = min(step.local_batch, most), step.accumulation
