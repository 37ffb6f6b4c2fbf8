"""Models of how fast a job learns: statistical efficiency of a batch, from the gradient noise, and the duration of a
step, from seven parameters (Pollux, section 3.2).
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deeppart.errors import ConfigError

Floats = npt.NDArray[np.float64]
#: Range of ``overlap``: 10 is close enough to perfect overlap, which would be infinity.
LEAST_OVERLAP, MOST_OVERLAP = 1.0, 10.0
#: Used in place of a duration of 0, since logarithms are taken.
NOTHING_S = 1e-8


@dataclass(frozen=True, slots=True)
class GradientNoise:
    """Squared length and variance of the mean gradient of a batch, as AdaScale estimates them.

    Attributes:
        sqr: squared norm of the gradient's expectation.
        var: variance of the mean gradient of ``batch`` samples, summed over all elements.
        batch: samples.

    Raises:
        ConfigError: a number is impossible.

    Example:
        >>> from deeppart.elastic.goodput import GradientNoise
        >>> noise = GradientNoise(sqr=1.0, var=3.0, batch=32)
        >>> noise.scale  # samples that are needed for a variance as large as the squared gradient
        96.0
        >>> round(float(noise.gain(128)), 3), round(float(noise.efficiency(128)), 3)
        (2.286, 0.571)
    """

    sqr: float
    var: float
    batch: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sqr) and math.isfinite(self.var) and min(self.sqr, self.var) >= 0 < self.batch):
            raise ConfigError(
                "the noise of a gradient is impossible",
                expected="a squared norm and a variance >= 0, of a batch of 1 or more",
                found=f"sqr = {self.sqr!r}, var = {self.var!r}, batch = {self.batch!r}",
            )

    @property
    def scale(self) -> float:
        """The noise scale, in samples; infinity if the gradient is only noise."""
        return self.var / self.sqr * self.batch if self.sqr else math.inf if self.var else 0.0

    def gain(self, batch: Any) -> Any:
        """How many steps with ``self.batch`` samples a step with ``batch`` samples is worth: from 1 to their ratio."""
        return gain(self.sqr, self.var, np.asarray(batch, dtype=float) / self.batch)

    def efficiency(self, batch: Any) -> Any:
        """Progress per sample, relative to a batch of ``self.batch``."""
        return self.gain(batch) * self.batch / np.asarray(batch, dtype=float)


def gain(sqr: float, var: float, scale: Any) -> Any:
    """The worth of a step with a batch ``scale`` times as large: AdaScale's (var + sqr) / (var / scale + sqr).

    1 if both are 0.
    """
    below = var / np.asarray(scale, dtype=float) + sqr
    return np.where(below > 0, (var + sqr) / np.where(below > 0, below, 1.0), 1.0)


@dataclass(frozen=True, slots=True)
class Throughput:
    """The duration of a step, depending on the number of ranks.

    A micro-batch of m samples takes ``compute_s + sample_s * m`` to compute: Tc. Exchanging gradients takes ``*_s +
    *_rank_s * (ranks - 2)``: Tn, with other parameters if all ranks are on one node. A step with an exchange takes
    (Tc^g + Tn^g)^(1/g), where g is the ``overlap``: the sum for 1, and closer to the longer of the two for larger g. A
    micro-batch whose gradients are accumulated takes Tc.

    Attributes:
        compute_s, sample_s: computing, constant and per sample.
        between_s, between_rank_s: the network between nodes, constant and per rank beyond two.
        within_s, within_rank_s: the same within a node.
        overlap: from 1 to 10.

    All arguments of the methods may be numbers or numpy arrays of equal shape.

    Raises:
        ConfigError: a parameter is impossible.

    Example:
        >>> from deeppart.elastic.goodput import Throughput
        >>> job = Throughput(0.01, 0.001, 0.05, 0.001, 0.02, 0.0, overlap=1.0)
        >>> round(float(job.step_s(nodes=1, ranks=1, local_batch=30)), 4)
        0.04
        >>> round(float(job.step_s(nodes=2, ranks=8, local_batch=30, accumulation=1)), 4)  # two micro-batches
        0.136
        >>> round(float(job.samples_per_s(nodes=2, ranks=8, local_batch=30)))
        2500
    """

    compute_s: float
    sample_s: float
    between_s: float
    between_rank_s: float
    within_s: float
    within_rank_s: float
    overlap: float

    def __post_init__(self) -> None:
        good = all(math.isfinite(value) and value >= 0 for value in astuple(self))
        if not good or not LEAST_OVERLAP <= self.overlap <= MOST_OVERLAP:
            raise ConfigError(
                "a throughput model is impossible",
                expected=f"times >= 0, and an overlap from {LEAST_OVERLAP:g} to {MOST_OVERLAP:g}",
                found=repr(astuple(self)),
            )

    def accumulated_s(self, local_batch: Any) -> Any:
        """Duration of a rank's micro-batch whose gradients are accumulated."""
        return self.compute_s + self.sample_s * np.asarray(local_batch, dtype=float)

    def network_s(self, nodes: Any, ranks: Any) -> Any:
        """Duration of the exchange of gradients alone; nearly 0 for one rank."""
        beyond = np.maximum(np.asarray(ranks, dtype=float) - 2, NOTHING_S)
        between = self.between_s + self.between_rank_s * beyond
        within = self.within_s + self.within_rank_s * beyond
        alone = np.full_like(beyond, NOTHING_S)
        return np.select([np.greater(nodes, 1), np.greater(ranks, 1)], [between, within], alone)

    def step_s(self, nodes: Any, ranks: Any, local_batch: Any, accumulation: Any = 0) -> Any:
        """Duration of a whole step, with ``accumulation`` micro-batches before the last one."""
        accumulated = np.maximum(self.accumulated_s(local_batch), NOTHING_S)
        network = np.maximum(self.network_s(nodes, ranks), NOTHING_S)
        logarithm = np.logaddexp(self.overlap * np.log(accumulated), self.overlap * np.log(network)) / self.overlap
        return np.exp(logarithm) + accumulation * accumulated

    def samples_per_s(self, nodes: Any, ranks: Any, local_batch: Any, accumulation: Any = 0) -> Any:
        """Samples per second of all ranks together."""
        batch = np.asarray(ranks) * np.asarray(local_batch) * (np.asarray(accumulation) + 1)
        return batch / self.step_s(nodes, ranks, local_batch, accumulation)


@dataclass(frozen=True, slots=True)
class Goodput:
    """How fast a job learns, in samples of its original batch.

    Attributes:
        throughput: the durations of steps.
        noise: the current gradient noise; its batch is the reference for efficiency.

    Example:
        >>> from deeppart.elastic.goodput import Goodput, GradientNoise, Throughput
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
        """The same for a batch whose last micro-batches may be shorter: at most ``local_batch`` samples per rank."""
        return batch / self.throughput.step_s(nodes, ranks, local_batch, accumulation) * self.noise.efficiency(batch)
