"""How much of a batch's samples is worth its while: the noise of gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from deeppart.errors import ConfigError


@dataclass(frozen=True, slots=True)
class GradientNoise:
    """Squared length and variance of the mean gradient of a batch, as AdaScale estimates them.

    Attributes:
        sqr: squared norm of the gradient's expectation.
        var: variance of the mean gradient of ``batch`` samples, of all elements together.
        batch: samples.

    Raises:
        ConfigError: a number is impossible.

    Example:
        >>> from deeppart.plan.goodput import GradientNoise
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
        """The noise scale, in samples; infinity for a gradient that is nothing but noise."""
        return self.var / self.sqr * self.batch if self.sqr else math.inf if self.var else 0.0

    def gain(self, batch: Any) -> Any:
        """How many steps with ``self.batch`` samples one with so many is worth: from 1 to the ratio of the two."""
        return gain(self.sqr, self.var, np.asarray(batch, dtype=float) / self.batch)

    def efficiency(self, batch: Any) -> Any:
        """Progress by a sample, beside one in a batch of ``self.batch``."""
        return self.gain(batch) * self.batch / np.asarray(batch, dtype=float)


def gain(sqr: float, var: float, scale: Any) -> Any:
    """What a step whose batch is so many times as large is worth: (var + sqr) / (var / scale + sqr), of AdaScale.

    1 where both are 0.
    """
    below = var / np.asarray(scale, dtype=float) + sqr
    return np.where(below > 0, (var + sqr) / np.where(below > 0, below, 1.0), 1.0)
