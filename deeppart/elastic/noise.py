"""How much gradients differ from batch to batch: |G|^2 and the variance, from norms of gradients. Pure.

A rank's mean gradient g_k over its n_k samples is the gradient G plus noise, of which the squared norm is
tr(S) / n_k on average. With B samples on K ranks, g their mean, and the mean of the ranks' squared norms weighted by
their samples, E mean |g_k|^2 = |G|^2 + tr(S) K / B and E |g|^2 = |G|^2 + tr(S) / B. So

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

from deeppart.errors import RestoreError
from deeppart.plan.goodput import gain

#: Of the moving averages, for each step at scale 1.
SMOOTHING = 0.999
#: Of which a variance is never below: nothing is divided by 0.
LEAST_VARIANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Norms:
    """Squared norms of one step, of each group of parameters.

    Attributes:
        mean_of_parts: mean of the squares of the ranks' gradients, weighted by samples.
        of_mean: of the mean gradient.
        parts: K, at least 2.
        scale: B / b.

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

    def squared_gradient(self) -> tuple[float, ...]:
        """Of the gradient itself, without bias; it may be negative."""
        return tuple(
            (self.parts * whole - part) / (self.parts - 1)
            for part, whole in zip(self.mean_of_parts, self.of_mean, strict=True)
        )

    def variance(self) -> tuple[float, ...]:
        """Of a gradient at scale 1, without bias."""
        return tuple(
            (part - whole) * self.scale / (self.parts - 1)
            for part, whole in zip(self.mean_of_parts, self.of_mean, strict=True)
        )


def of_two_steps(before: Sequence[float], now: Sequence[float], of_mean: Sequence[float], scale: float) -> Norms:
    """Two steps one after the other taken for two ranks: what one rank alone can have, with the bias of the step."""
    mean = tuple((a + b) / 2 for a, b in zip(before, now, strict=True))
    return Norms(mean, tuple(of_mean), 2, 2 * scale)


class NoiseScale:
    """Moving averages of the squared gradient and of the variance, by group of parameters.

    A step at scale s counts as s steps at scale 1: its weight is 1 - 0.999^s. Both are without the bias of a beginning
    at 0.

    Args:
        groups: of parameters.

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
        self._of_two_steps = False

    @property
    def known(self) -> bool:
        """True once a step has been seen."""
        return self._weight > 0

    def update(self, norms: Norms, *, of_two_steps: bool = False) -> None:
        """Take in a step; those whose norms are not finite, as with a loss scale that was too large, are left out.

        Args:
            of_two_steps: it is biased. Averages with such in them are given up when the first without comes. Not the
                other way round: a job that goes on with one rank would know nothing, and the few steps that it has
                compared may say that there is no gradient but noise, for which a rate is multiplied most.
        """
        if not all(map(math.isfinite, (*norms.mean_of_parts, *norms.of_mean))):
            return
        if self._of_two_steps and not of_two_steps:
            self._squared, self._variance, self._weight = [0.0] * self._groups, [0.0] * self._groups, 0.0
        self._of_two_steps = of_two_steps
        keep = SMOOTHING**norms.scale
        for averages, values in ((self._squared, norms.squared_gradient()), (self._variance, norms.variance())):
            averages[:] = [keep * old + (1 - keep) * new for old, new in zip(averages, values, strict=True)]
        self._weight = keep * self._weight + (1 - keep)

    def by_group(self) -> list[tuple[float, float]]:
        """Squared gradient and variance of each group; 1 and 0 before the first step."""
        if not self.known:
            return [(1.0, 0.0)] * self._groups
        return [
            (max(squared / self._weight, 0.0), max(variance / self._weight, LEAST_VARIANCE))
            for squared, variance in zip(self._squared, self._variance, strict=True)
        ]

    def squared_gradient(self) -> float:
        """The squared norm of the gradient of all parameters."""
        return sum(squared for squared, _ in self.by_group())

    def variance(self) -> float:
        """The variance of a gradient at scale 1, of all parameters."""
        return sum(variance for _, variance in self.by_group())

    def gain(self, scale: float) -> float:
        """How many steps at scale 1 a step at this scale is worth: from 1 to ``scale`` (AdaScale)."""
        return float(gain(self.squared_gradient(), self.variance(), scale))

    def rebase(self, ratio: float) -> None:
        """From now on a step at scale 1 has so many times as many samples."""
        self._variance = [each / ratio for each in self._variance]

    def state_dict(self) -> dict[str, Any]:
        """Small values."""
        return {
            "squared": list(self._squared),
            "variance": list(self._variance),
            "weight": self._weight,
            "of_two_steps": self._of_two_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from saved averages.

        Raises:
            RestoreError: they are of other groups of parameters.
        """
        if len(state["squared"]) != self._groups:
            raise RestoreError(
                "the optimizer has other groups of parameters than when the checkpoint was made",
                expected=f"{len(state['squared'])} groups",
                found=str(self._groups),
                todo="make the optimizer as then",
            )
        self._squared, self._variance = list(state["squared"]), list(state["variance"])
        self._weight, self._of_two_steps = state["weight"], state["of_two_steps"]
