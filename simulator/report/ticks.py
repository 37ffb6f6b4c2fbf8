"""Round numbers for axes: 1, 2 and 5 with zeros, and times in seconds, minutes, hours and days."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from deeppart.model.units import show_seconds

_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86400.0
#: Times that read well above half a minute; below, and above some days, it is 1, 2 and 5 with zeros.
_LONG_STEPS_S = (
    *(minutes * _MINUTE_S for minutes in (1, 2, 5, 10, 20, 30)),
    *(hours * _HOUR_S for hours in (1, 2, 4, 6, 12)),
)
#: Marks of a logarithmic axis of time, from fine to coarse, in the same way.
_FINE_S = (*(m * _MINUTE_S for m in (1, 2, 5, 10, 20)), *(h * _HOUR_S for h in (1, 2, 5, 10)))
_COARSE_S = (_MINUTE_S, 10 * _MINUTE_S, _HOUR_S, 10 * _HOUR_S)
#: A rounding error at the ends of an axis.
_NEARLY = 1e-9


def linear_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from ``low`` to ``high``, evenly apart, as many as fit."""
    return _evenly(low, high, most, _decimal_step)


def time_ticks(end_s: float, most: int = 5) -> list[float]:
    """The same for times from 0 on."""
    return _evenly(0.0, end_s, most, _time_step)


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from ``low`` to ``high``, both above 0, for a logarithmic axis."""
    digits = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    return _fitting(
        low, high, most, [m * 10.0**n for n in digits for m in (1, 2, 5)], [10.0**n for n in digits], linear_ticks
    )


def log_time_ticks(low_s: float, high_s: float, most: int = 6) -> list[float]:
    """The same for times."""
    digits = range(math.floor(math.log10(low_s)) - 1, 2)
    days = range(max(1, math.ceil(math.log10(max(high_s, _DAY_S) / _DAY_S)) + 1))
    fine = [m * 10.0**n for n in digits for m in (1, 2, 5) if m * 10.0**n < _MINUTE_S]
    fine += [*_FINE_S, *(m * _DAY_S * 10.0**n for n in days for m in (1, 2, 5))]
    coarse = [10.0**n for n in digits] + [*_COARSE_S, *(_DAY_S * 10.0**n for n in days)]
    return _fitting(low_s, high_s, most, fine, coarse, linear_ticks)


def time_labels(ticks_s: Sequence[float]) -> list[str]:
    """Times as texts, those below 100 s all in the unit of the longest, so that they can be compared at a glance."""
    longest = max(ticks_s, default=0.0)
    if longest >= 100:
        return [show_seconds(tick) if tick else "0" for tick in ticks_s]
    factor, unit = next(
        ((factor, unit) for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")) if longest >= factor * 0.9995),
        (1e-9, "ns"),
    )
    return [f"{tick / factor:.6g} {unit}" if tick else "0" for tick in ticks_s]


def _evenly(low: float, high: float, most: int, larger: Callable[[float], float]) -> list[float]:
    if not high > low:
        return [low]
    step = larger((high - low) / most)
    first, last = math.ceil(low / step - _NEARLY), math.floor(high / step + _NEARLY)
    while last - first + 1 > most:
        step = larger(step * (1 + 1e-6))
        first, last = math.ceil(low / step - _NEARLY), math.floor(high / step + _NEARLY)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def _decimal_step(least: float) -> float:
    """The smallest of 1, 2 and 5 with zeros that is not below."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= least * (1 - _NEARLY))


def _time_step(least_s: float) -> float:
    """The smallest round time that is not below."""
    if least_s <= 0.5 * _MINUTE_S:
        step = _decimal_step(least_s)
        return step if step <= 20 else 0.5 * _MINUTE_S if least_s <= 30 else _MINUTE_S
    for step in _LONG_STEPS_S:
        if step >= least_s * (1 - _NEARLY):
            return step
    return _decimal_step(least_s / _DAY_S) * _DAY_S if least_s > _DAY_S else _DAY_S


def _fitting(
    low: float,
    high: float,
    most: int,
    fine: Sequence[float],
    coarse: Sequence[float],
    even: Callable[[float, float, int], list[float]],
) -> list[float]:
    """Of some marks as many as fit; evenly apart where hardly one of them lies there."""
    for marks in (fine, coarse, *(coarse[::every] for every in range(2, 9))):
        found = [float(f"{mark:.12g}") for mark in marks if low * (1 - _NEARLY) <= mark <= high * (1 + _NEARLY)]
        if len(found) <= most:
            return found if len(found) > 1 else even(low, high, most)
    return [low, high]
