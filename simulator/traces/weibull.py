"""The shape of a Weibull distribution of times between failures, by its likelihood, with bounds.

Times may be of several classes, which have one shape and each a scale of its own; some are *censored*: nothing had
failed when watching ended. The scales are of no interest, and to take the most likely one for each would make few
failures look like more: the shape then comes out too large, by a fifth with eight of them, and its bounds too narrow.
So the scales are integrated out, the logarithm of each with equal weight. With d_c failures among the times t of class
c that leaves, but for a constant,

    l(k) = sum over c of  (d_c - 1) ln(k) - d_c ln(sum(t^k)) + k sum(ln t of failures)

which is the likelihood of what does not depend on the scales: of the ratios of the times (J. Kalbfleisch and D. Sprott,
Journal of the Royal Statistical Society B 32, 1970). Bounds are where it is 1.92 below its largest value, half the 95 %
quantile of chi-square with one degree of freedom. Against k = 1, twice the difference tests whether times are
exponential.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .record import Floats

CONFIDENCE = 0.95
#: A shape is looked for between these.
_LEAST, _MOST = 0.02, 50.0
#: Fewer failures say nothing of a shape.
_FEWEST = 3


@dataclass(frozen=True, slots=True)
class Times:
    """Times between failures of one class.

    Attributes:
        failed: that ended in a failure; above 0.
        censored: that did not.
    """

    failed: Floats
    censored: Floats


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape.

    Attributes:
        shape: most likely; 1 is exponential, below, failures come in bursts.
        low, high: bounds of it.
        p_exponential: the probability of a likelihood ratio such as this if times are exponential.
        failures: that it is from.
    """

    shape: float
    low: float
    high: float
    p_exponential: float
    failures: int

    @property
    def exponential(self) -> bool:
        """True if the times do not speak against it: p of at least 0.05."""
        return self.p_exponential >= 0.05

    @property
    def dispersion(self) -> float:
        """Variance of the times over their mean squared; 1 for exponential ones."""
        first, second = math.lgamma(1 + 1 / self.shape), math.lgamma(1 + 2 / self.shape)
        return math.expm1(second - 2 * first)


def fit_shape(classes: Sequence[Times], confidence: float = CONFIDENCE) -> Shape | None:
    """The shape that all classes have in common; None with fewer than three failures."""
    from scipy.optimize import brentq, minimize_scalar
    from scipy.special import chdtrc, chdtri

    used = [times for times in classes if len(times.failed)]
    failures = sum(len(times.failed) for times in used)
    if failures < _FEWEST:
        return None
    if any(times.failed.min() <= 0 for times in used):
        raise ValueError("times to failure have to be above 0")
    likelihood = _Likelihood(used)
    best = minimize_scalar(
        lambda log_k: -likelihood(math.exp(log_k)), bounds=(math.log(_LEAST), math.log(_MOST)), method="bounded",
        options={"xatol": 1e-9},
    )  # fmt: skip
    shape, top = math.exp(float(best.x)), -float(best.fun)
    drop = float(chdtri(1, 1 - confidence)) / 2

    def below(log_k: float) -> float:
        return likelihood(math.exp(log_k)) - (top - drop)

    middle = math.log(shape)
    low = math.exp(brentq(below, math.log(_LEAST), middle)) if below(math.log(_LEAST)) < 0 else _LEAST
    high = math.exp(brentq(below, middle, math.log(_MOST))) if below(math.log(_MOST)) < 0 else _MOST
    ratio = max(0.0, 2 * (top - likelihood(1.0)))
    return Shape(shape, low, high, float(chdtrc(1, ratio)), failures)


class _Likelihood:
    """The logarithm of the likelihood of a shape, whatever the scales."""

    def __init__(self, classes: Sequence[Times]) -> None:
        # Relative to the mean, or powers would overflow; scales take that up.
        self._classes = []
        for times in classes:
            every = np.concatenate([times.failed, times.censored])
            mean = float(every.mean())
            logs = np.log(every[every > 0] / mean)
            self._classes.append((len(times.failed), logs, float(np.log(times.failed / mean).sum())))

    def __call__(self, shape: float) -> float:
        total = 0.0
        for count, logs, failed_logs in self._classes:
            powers = shape * logs
            largest = float(powers.max())
            log_sum = largest + math.log(float(np.exp(powers - largest).sum()))
            total += (count - 1) * math.log(shape) - count * log_sum + shape * failed_logs
        return total
