"""Water filling: how much each rank takes of an amount, given what it carries already."""

from __future__ import annotations

import numpy as np

from deeppart.partition.cost import IntArray


def fill(load: IntArray, amount: int) -> IntArray:
    """Raise the lowest loads to one common level by pouring ``amount`` onto them.

    No other division leaves a lower maximum, and with a level of ``(amount + what the filled ranks carry) / filled
    ranks`` no filled rank ends above that rounded up.
    """
    low, high = int(load.min()), int(load.max())
    if low == high:  # the ordinary case: nobody carries anything, or all the same
        each, rest = divmod(amount, len(load))
        capacity = np.full(len(load), each, dtype=np.int64)
        capacity[:rest] += 1
        return capacity
    ascending = np.sort(load)
    carried = np.cumsum(ascending)
    filled = _filled(ascending, carried, amount)
    level, rest = divmod(amount + int(carried[filled - 1]), filled)
    under = load <= ascending[filled - 1]
    capacity = np.where(under, level - load, 0)
    capacity[np.flatnonzero(under)[:rest]] += 1
    return capacity


def _filled(ascending: IntArray, carried: IntArray, amount: int) -> int:
    """The number of the lowest loads that are raised: the largest j whose j lowest can all be raised to the j-th.

    The products exceed int64 at a petabyte over 65,536 ranks, hence Python integers, and a bisection to need few.
    """
    lowest, beyond = 1, len(ascending) + 1
    while beyond - lowest > 1:
        middle = (lowest + beyond) // 2
        if int(ascending[middle - 1]) * middle - int(carried[middle - 1]) <= amount:
            lowest = middle
        else:
            beyond = middle
    # Equal loads stand or fall together: the j-th costs nothing more once the level is at it, so bisection took all.
    return lowest
