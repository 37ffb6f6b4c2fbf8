"""Multiples to try: at every how many-th call each level is written. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

#: A level that is best left out is written that often all the same; one that is not, more often.
MOST_EVERY = 10_000
#: Multiples that do not divide each other are harder to follow, and looked at where they are small: there whole numbers
#: leave few that do. So long are their patterns at most.
_LONGEST_APART = 400


def around(intervals: Sequence[float], period_s: float) -> set[tuple[int, ...]]:
    """Multiples of a period next to the intervals, each one of that before; every call goes to the cheapest level."""
    found: set[tuple[int, ...]] = {(1,)}
    for interval in intervals[1:]:
        ratio = interval / period_s
        found = {(*every, n) for every in found for n in _multiples(every, ratio)}
    return found


def _multiples(every: tuple[int, ...], ratio: float) -> set[int]:
    if math.isinf(ratio):
        return {MOST_EVERY}
    last = max(n for n in every if n != MOST_EVERY)
    return {last * count for count in _near(min(ratio, MOST_EVERY - 1) / last)}


def _near(ratio: float) -> set[int]:
    return {max(1, math.floor(ratio)), max(1, math.ceil(ratio))}


def neighbours(every: tuple[int, ...]) -> set[tuple[int, ...]]:
    """One of the ratios between levels is another one; the higher levels follow, or stay where they are, nearly."""
    kept = [n for n in every if n != MOST_EVERY]
    ratios = [b // a for a, b in pairwise(kept)]
    changed: list[list[int]] = []
    for place, ratio in enumerate(ratios):
        for other in {ratio - 1, ratio + 1, round(ratio * 0.8), round(ratio * 1.25)} - {0, ratio}:
            changed.append([*ratios[:place], other, *ratios[place + 1 :]])
            if place + 1 < len(ratios):
                after = max(1, round(ratio * ratios[place + 1] / other))
                changed.append([*ratios[:place], other, after, *ratios[place + 2 :]])
    found = set()
    for each in changed:
        multiples = list(accumulate(each, int.__mul__, initial=1))
        if multiples[-1] < MOST_EVERY:
            following = iter(multiples)
            found.add(tuple(n if n == MOST_EVERY else next(following) for n in every))
    return found


def apart(every: tuple[int, ...]) -> set[tuple[int, ...]]:
    """One of the multiples is another one, whether or not it divides the others; or a level in between is left out, or
    not.
    """
    found = set[tuple[int, ...]]()
    for place in range(1, len(every)):
        below, n, above = every[:place], every[place], every[place + 1 :]
        if n != MOST_EVERY:
            others = {n - 2, n - 1, n + 1, n + 2, round(n * 0.8), round(n * 1.25)} | ({MOST_EVERY} if above else set())
            found |= {(*below, other, *above) for other in others if other > 0}
        elif above and min(above) != MOST_EVERY:
            lower, higher = max(each for each in below if each != MOST_EVERY), min(above)
            twice = tuple(each if each == MOST_EVERY else 2 * each for each in above)
            others = {lower, lower + 1, 2 * lower, (lower + higher) // 2, higher - 1, higher} - {0}
            found |= {(*below, other, *higher_ones) for other in others for higher_ones in (above, twice)}
    return {each for each in found if math.lcm(*(n for n in each if n != MOST_EVERY)) <= _LONGEST_APART}
