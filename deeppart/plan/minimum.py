"""The least value of a function of one variable, without derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable

_GOLDEN = (3 - math.sqrt(5)) / 2
_MOST_STEPS = 60


def least_of(function: Callable[[float], float], low: float, guess: float, close: float) -> float:
    """Where a function with one valley is least, from ``low`` on.

    Brent's method (Algorithms for Minimization without Derivatives, 1973, chapter 5): parabolas through the lowest
    points, and golden sections where these lead nowhere, as where the function is infinite.
    """
    low, high = _bracket(function, low, max(guess, low))
    best = second = third = low + _GOLDEN * (high - low)
    at_best = at_second = at_third = function(best)
    step = before = 0.0
    for _ in range(_MOST_STEPS):
        middle = (low + high) / 2
        if abs(best - middle) + (high - low) / 2 <= 2 * close:
            break
        parabola = _parabola(best, second, third, at_best, at_second, at_third)
        if parabola is not None and abs(parabola) < abs(before) / 2 and low < best + parabola < high:
            before, step = step, parabola
        else:
            before = (high if best < middle else low) - best
            step = _GOLDEN * before
        if abs(step) < close:
            step = math.copysign(close, step or middle - best)
        new = best + step
        at_new = function(new)
        if at_new <= at_best:
            low, high = (best, high) if new >= best else (low, best)
            third, second, best = second, best, new
            at_third, at_second, at_best = at_second, at_best, at_new
            continue
        low, high = (new, high) if new < best else (low, new)
        if at_new <= at_second or second == best:
            third, second, at_third, at_second = second, new, at_second, at_new
        elif at_new <= at_third or third in (best, second):
            third, at_third = new, at_new
    return low if function(low) < at_best else best


def _bracket(function: Callable[[float], float], low: float, start: float) -> tuple[float, float]:
    """Between which two points the valley is."""
    here, step = function(start), 0.7
    down = max(low, start - step)
    at_down = function(down)
    if at_down < here or not math.isfinite(here):
        high = start
        while down > low and (at_down < here or not math.isfinite(here)):
            high, start, here = start, down, at_down
            step *= 2
            down = max(low, start - step)
            at_down = function(down)
        return down, high
    up, at_up = start + step, function(start + step)
    while at_up < here:
        down, start, here = start, up, at_up
        step *= 2
        up, at_up = start + step, function(start + step)
    return down, up


def _parabola(x: float, w: float, v: float, fx: float, fw: float, fv: float) -> float | None:
    """From the lowest of three points to the bottom of the parabola through them; None if there is none."""
    if len({x, w, v}) < 3 or not all(map(math.isfinite, (fx, fw, fv))):
        return None
    r, q = (x - w) * (fx - fv), (x - v) * (fx - fw)
    p, q = (x - v) * q - (x - w) * r, 2 * (q - r)
    return None if q == 0 else -p / q
