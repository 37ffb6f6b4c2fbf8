"""Rules for scaling the learning rate with the batch size. Pure.

A rule returns a factor of the learning rate for each parameter group. ``scale`` is the batch size of the step relative
to the one that the training was tuned for.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from deeppart.elastic.goodput import gain

from .noise import NoiseScale


class ScalingRule(ABC):
    """Base class of scaling rules.

    Example:
        >>> from deeppart.elastic import NoiseScale, ScalingRule
        >>> class CubeRoot(ScalingRule):
        ...     def factors(self, scale, noise, progress):
        ...         return [scale ** (1 / 3)] * len(noise.by_group())
        >>> CubeRoot().factors(8.0, NoiseScale(groups=2), progress=0.0)
        [2.0, 2.0]
    """

    @abstractmethod
    def factors(self, scale: float, noise: NoiseScale, progress: float) -> list[float]:
        """A factor of the learning rate for each parameter group.

        Args:
            scale: samples of the step relative to a step at the beginning of the training.
            noise: the current estimate.
            progress: number of steps at scale 1 that the training so far is worth.
        """


class AdaScale(ScalingRule):
    """The gain, for SGD (Johnson et al., ICML 2020).

    Example:
        >>> from deeppart.elastic import AdaScale, NoiseScale, Norms
        >>> noise = NoiseScale(groups=1)
        >>> noise.update(Norms(mean_of_parts=(5.0,), of_mean=(3.0,), parts=2, scale=2.0))
        >>> AdaScale().factors(4.0, noise, progress=100.0)
        [2.5]
    """

    def factors(self, scale: float, noise: NoiseScale, progress: float) -> list[float]:
        """The gain of each group."""
        return [float(gain(squared, variance, scale)) for squared, variance in noise.by_group()]


class AdamScale(AdaScale):
    """The square root of the gain of preconditioned gradients, for Adam, AdamW and RMSprop.

    Example:
        >>> from deeppart.elastic import AdamScale, NoiseScale, Norms
        >>> noise = NoiseScale(groups=1)
        >>> noise.update(Norms(mean_of_parts=(5.0,), of_mean=(3.0,), parts=2, scale=2.0))
        >>> AdamScale().factors(4.0, noise, progress=100.0)
        [1.5811388300841898]
    """

    def factors(self, scale: float, noise: NoiseScale, progress: float) -> list[float]:
        """The square root of each group's gain."""
        return [math.sqrt(each) for each in super().factors(scale, noise, progress)]


class LinearScale(ScalingRule):
    """The scale (Goyal et al., 2017).

    Example:
        >>> from deeppart.elastic import LinearScale, NoiseScale
        >>> LinearScale().factors(4.0, NoiseScale(groups=1), progress=100.0)
        [4.0]
    """

    def factors(self, scale: float, noise: NoiseScale, progress: float) -> list[float]:
        """The same for all groups."""
        return [scale] * len(noise.by_group())


class SqrtScale(ScalingRule):
    """The square root of the scale (Krizhevsky, 2014).

    Example:
        >>> from deeppart.elastic import SqrtScale, NoiseScale
        >>> SqrtScale().factors(4.0, NoiseScale(groups=1), progress=100.0)
        [2.0]
    """

    def factors(self, scale: float, noise: NoiseScale, progress: float) -> list[float]:
        """The same for all groups."""
        return [math.sqrt(scale)] * len(noise.by_group())


class LEGWScale(ScalingRule):
    """The square root of the scale, after a linear warm-up of ``scale`` times as many epochs (You et al., 2019).

    The warm-up begins at a rate of 0, also at scale 1.

    Args:
        warmup_epochs: at scale 1.
        steps_per_epoch: at scale 1.

    Example:
        >>> from deeppart.elastic import LEGWScale, NoiseScale
        >>> LEGWScale(warmup_epochs=2, steps_per_epoch=100).factors(4.0, NoiseScale(groups=1), progress=100.0)
        [0.25]
    """

    def __init__(self, warmup_epochs: float, steps_per_epoch: float) -> None:
        self._warmup_steps = warmup_epochs * steps_per_epoch

    def factors(self, scale: float, noise: NoiseScale, progress: float) -> list[float]:
        """The same for all groups."""
        steps = self._warmup_steps * scale
        return [math.sqrt(scale) * (min(1.0, progress / steps) if steps else 1.0)] * len(noise.by_group())
