"""The gradient noise scale: |G|^2 and the variance of gradients, estimated from their norms. Pure.

A rank's mean gradient g_k over its n_k samples is the true gradient G plus noise, whose squared norm is tr(S) / n_k on
average. With B samples on K ranks, their mean gradient g, and the mean of the ranks' squared norms weighted by samples,
E mean |g_k|^2 = |G|^2 + tr(S) K / B and E |g|^2 = |G|^2 + tr(S) / B. So

    |G|^2 = (K |g|^2 - mean |g_k|^2) / (K - 1)        tr(S) / b = (mean |g_k|^2 - |g|^2) (B / b) / (K - 1)

for the noise of a batch of b samples, the one that the training began with. B / b is its *scale*.

Sources. S. McCandlish, J. Kaplan, D. Amodei, "An Empirical Model of Large-Batch Training", 2018 (appendix A.1); T.
Johnson, P. Agrawal, H. Gu, C. Guestrin, "AdaScale SGD", ICML 2020; A. Qiao et al., "Pollux", OSDI 2021 (section 3.1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deeppart.elastic.goodput import gain
from deeppart.errors import RestoreError

#: Decay of the moving averages per step at scale 1.
SMOOTHING = 0.999
#: Lower bound of variances, against division by 0.
MIN_VARIANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Norms:
    """Squared norms of one step, for each parameter group.

    Attributes:
        mean_of_parts: mean of the ranks' squared norms, weighted by samples.
        of_mean: squared norm of the mean gradient.
        parts: K, at least 2.
        scale: B / b.
        biased: whether they are of two consecutive steps on one rank (``norms_of_two_steps``).
        steps: number of steps for which they stand, as one step in so many is measured.

    Example:
        >>> from deeppart.elastic import Norms
        >>> norms = Norms(mean_of_parts=(5.0,), of_mean=(3.0,), parts=2, scale=2.0)
        >>> norms.squared_gradient(), norms.variance()
        ((1.0,), (4.0,))
    """

    mean_of_parts: tuple[float, ...]
    of_mean: tuple[float, ...]
    parts: int
    scale: float
    biased: bool = False
    steps: int = 1

    def squared_gradient(self) -> tuple[float, ...]:
        """Unbiased estimate of the squared norm of the true gradient; may be negative."""
        return tuple(
            (self.parts * whole - part) / (self.parts - 1)
            for part, whole in zip(self.mean_of_parts, self.of_mean, strict=True)
        )

    def variance(self) -> tuple[float, ...]:
        """Unbiased estimate of the variance at scale 1."""
        return tuple(
            (part - whole) * self.scale / (self.parts - 1)
            for part, whole in zip(self.mean_of_parts, self.of_mean, strict=True)
        )


def norms_of_two_steps(
    previous: Sequence[float], current: Sequence[float], of_mean: Sequence[float], scale: float
) -> Norms:
    """Norms on a single rank: two consecutive steps count as two ranks, which is biased by the step between them."""
    mean = tuple((a + b) / 2 for a, b in zip(previous, current, strict=True))
    return Norms(mean, tuple(of_mean), 2, 2 * scale, biased=True)


class NoiseScale:
    """Moving averages of the squared gradient and of the variance, for each parameter group.

    A step at scale s counts as s steps at scale 1: its weight is 1 - 0.999^s. The averages are corrected for their
    start at 0.

    Args:
        groups: number of parameter groups.

    Example:
        >>> from deeppart.elastic.noise import NoiseScale, Norms
        >>> noise = NoiseScale(1)
        >>> noise.update(Norms(mean_of_parts=(5.0,), of_mean=(3.0,), parts=2, scale=2.0))
        >>> noise.squared_gradient(), noise.variance(), noise.gain(4.0)
        (1.0, 4.0, 2.5)
    """

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._squared, self._variance = [0.0] * groups, [0.0] * groups
        self._weight = 0.0
        self._biased = False

    @property
    def known(self) -> bool:
        """True after the first step."""
        return self._weight > 0

    def update(self, norms: Norms) -> None:
        """Add a step. Norms that say nothing are ignored: not finite, as after an overflow of the loss scale; all 0.

        The first unbiased norms after biased ones replace the averages. Biased norms do not replace unbiased averages:
        a few of them may suggest that there is only noise, for which rules choose the highest learning rates.
        """
        if not all(map(math.isfinite, (*norms.mean_of_parts, *norms.of_mean))) or not any(norms.mean_of_parts):
            return
        if self._biased and not norms.biased:
            self._squared, self._variance, self._weight = [0.0] * self._groups, [0.0] * self._groups, 0.0
        self._biased = norms.biased
        keep = SMOOTHING ** (norms.scale * norms.steps)
        for averages, values in ((self._squared, norms.squared_gradient()), (self._variance, norms.variance())):
            averages[:] = [keep * old + (1 - keep) * new for old, new in zip(averages, values, strict=True)]
        self._weight = keep * self._weight + (1 - keep)

    def by_group(self) -> list[tuple[float, float]]:
        """Squared gradient and variance of each group; 1 and 0 before the first step."""
        if not self.known:
            return [(1.0, 0.0)] * self._groups
        return [
            (max(squared / self._weight, 0.0), max(variance / self._weight, MIN_VARIANCE))
            for squared, variance in zip(self._squared, self._variance, strict=True)
        ]

    def squared_gradient(self) -> float:
        """The squared gradient over all parameters."""
        return sum(squared for squared, _ in self.by_group())

    def variance(self) -> float:
        """The variance at scale 1 over all parameters."""
        return sum(variance for _, variance in self.by_group())

    def gain(self, scale: float) -> float:
        """Number of steps at scale 1 that a step at this scale is worth, from 1 to ``scale`` (AdaScale)."""
        return float(gain(self.squared_gradient(), self.variance(), scale))

    def rebase(self, ratio: float) -> None:
        """Multiply the number of samples at scale 1 by ``ratio``."""
        self._variance = [each / ratio for each in self._variance]

    def state_dict(self) -> dict[str, Any]:
        """The averages as plain values."""
        return {
            "squared": list(self._squared),
            "variance": list(self._variance),
            "weight": self._weight,
            "of_two_steps": self._biased,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from saved averages.

        Raises:
            RestoreError: the number of parameter groups is another one.
        """
        if len(state["squared"]) != self._groups:
            raise RestoreError(
                "the optimizer has another number of parameter groups than in the checkpoint",
                expected=f"{len(state['squared'])} groups",
                found=str(self._groups),
                todo="create the optimizer with the same groups",
            )
        self._squared, self._variance = list(state["squared"]), list(state["variance"])
        self._weight, self._biased = state["weight"], state["of_two_steps"]
