"""Throughput times statistical efficiency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deeppart.plan.goodput.noise import GradientNoise
from deeppart.plan.goodput.throughput import Throughput


@dataclass(frozen=True, slots=True)
class Goodput:
    """How fast a job learns, counted in samples of its first batch.

    Attributes:
        throughput: how long steps take.
        noise: of its gradients now; its batch is the one that efficiency is counted against.

    Example:
        >>> from deeppart.plan.goodput import Goodput, GradientNoise, Throughput
        >>> job = Goodput(Throughput(0.01, 0.001, 0.05, 0.001, 0.02, 0.0, 1.0), GradientNoise(1.0, 3.0, 32))
        >>> round(float(job.samples_per_s(nodes=1, ranks=4, local_batch=32)))  # of 2,065 that are computed
        1180
    """

    throughput: Throughput
    noise: GradientNoise

    def samples_per_s(self, nodes: Any, ranks: Any, local_batch: Any, accumulation: Any = 0) -> Any:
        """Useful samples per second; numbers or numpy arrays of equal shape."""
        fast = self.throughput.samples_per_s(nodes, ranks, local_batch, accumulation)
        return fast * self.noise.efficiency(ranks * local_batch * (accumulation + 1))

    def of_batch(self, nodes: Any, ranks: Any, batch: Any, local_batch: Any, accumulation: Any = 0) -> Any:
        """The same of a batch whose last micro-batches are shorter: no rank has more than ``local_batch`` samples."""
        return batch / self.throughput.step_s(nodes, ranks, local_batch, accumulation) * self.noise.efficiency(batch)
