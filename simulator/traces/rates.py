"""How often something happens, from a count and the time in which it was counted, with bounds.

If events come at a constant rate, a count in a time T that was fixed before is Poisson, and its exact bounds are
quantiles of the chi-square distribution (F. Garwood, Biometrika 28, 1936): for r events and a confidence of 1 - a,

    chi2(a/2; 2 r) / (2 T)  <=  rate  <=  chi2(1 - a/2; 2 r + 2) / (2 T)

With no event the upper bound is still one: 3.69 / T for 95 %. Where gaps are not exponential, counts vary more or less:
for long times their variance is c^2 times Poisson's, c being the gaps' standard deviation over their mean (D. R. Cox,
Renewal Theory, 1962, section 3.3). Bounds are then those of r / c^2 events in T / c^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate, as the mean time between events.

    Attributes:
        events: how many.
        exposure_s: time in which they were counted, of all things that could have had one together.
        mtbf_s: the time between two of one thing; infinity if there was none.
        low_s, high_s: bounds of it, at the given confidence; high_s is infinity if there was none.
    """

    events: int
    exposure_s: float
    mtbf_s: float
    low_s: float
    high_s: float


def rate(events: int, exposure_s: float, dispersion: float = 1.0, confidence: float = CONFIDENCE) -> Rate:
    """The rate at which something happens.

    Example:
        >>> found = rate(0, 100.0)
        >>> found.mtbf_s, round(found.low_s, 1), found.high_s
        (inf, 27.1, inf)
    """
    from scipy.special import gammaincinv

    tail, count, time_s = (1 - confidence) / 2, events / dispersion, exposure_s / dispersion
    # Half the chi-square quantile of 2 r degrees of freedom is the gamma quantile of shape r.
    most = float(gammaincinv(count + 1, 1 - tail)) / time_s
    least = float(gammaincinv(count, tail)) / time_s if events else 0.0
    return Rate(
        events, exposure_s, exposure_s / events if events else math.inf, 1 / most, 1 / least if least else math.inf
    )
