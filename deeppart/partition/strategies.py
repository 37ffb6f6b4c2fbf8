"""How a line of leaves is cut among ranks: deeppart's heuristic, with its proof, and the alternatives for comparison.

A strategy is pure: (line, load) -> Cuts, where load is int64[ranks of the set], the cost each carries already.

deeppart's heuristic cuts the cost line evenly, but where structure is near a cut, it cuts along the structure.

Source: the DeepPart thesis (Perello Bacardit, UPC 2023), which walks a nested state, chooses the best sub-collection
to partition, shares sub-collections out in proportion to their cost, descends into the one that straddles two ranks,
and splits a single element only where the balance needs it. Sharing out in proportion, all the way down, gives every
rank an interval of the line on which the leaves lie in canonical order; the recursion finds the ends of the intervals.
Here they are computed directly, each from its own position alone.

The rule. Pour the line's length T over the ranks on top of what they carry (:func:`fill`): rank k gets capacity[k],
and cut k ideally falls at t[k] = capacity[0] + ... + capacity[k-1]. Then, for each cut on its own:

1. If leaf boundaries lie within +-tolerance of t[k], take the most significant one (fewest path components shared by
   the leaves on its two sides: where the shallowest sub-collection ends), the nearest of equals, the lower of those.
2. Else, inside a leaf's kappa zone, take the leaf's start.
3. Else, inside a leaf's bytes, round down to a whole element; a rank that starts here pays kappa again.

Guarantees. Write a for the largest itemsize on the line, L for the water level (with no preload, the mean cost T/N),
m = T / (ranks with capacity), the mean share. Then a rank with capacity ends

    below L + kappa + max(m / 100, a)                 -- and a rank without capacity gets nothing.

With no preload that is the required 1.01 * mean + kappa whenever the mean is at least 100 elements (1,600 bytes for
16-byte elements). With a smaller mean it is below mean + kappa + one element, and an element's worth cannot be avoided:
N ranks and N + 1 elements leave some rank with two. At most (ranks with capacity) - 1 leaves are split, since a cut
splits at most one. Every byte has exactly one owner, because the cuts ascend from 0 to T.

Proof of the bound. Let k be a rank with capacity, which is at most ceil(L) less what it carries. Its interval ends at
most ``tolerance`` after t[k+1]: only (1) can move a cut up. It begins
    (1) at most ``tolerance`` before t[k], at a leaf's start, or
    (2) less than kappa before it, at a leaf's start, or
    (3) at most a - 1 before it with one more kappa to pay, or, when rounding reaches the leaf's first byte and so the
        leaf's start, at most kappa + a - 1 before it with none.
So its cost is at most ceil(L) + tolerance + max(tolerance, kappa + a - 1). ``tolerance`` is chosen such that, where
positive, 2 * tolerance <= m/100 - 1 and tolerance <= m/100 - a; insert, and use ceil(L) < L + 1.

Proof that cuts ascend. Let t <= u be two targets with cuts b and c; suppose c < b.
  - Both by (1): c >= u - tol >= t - tol and c < b <= t + tol, so c is in t's window, and b likewise in u's. t prefers
    b to c and u prefers c to b, so they are equally deep; then t is nearer to the upper one and u to the lower one,
    which with t <= u leaves t = u, and equal targets have equal cuts.
  - Only t by (1): if b were within u's window, u would have been cut by (1) too; so b < u - tol, and (2), (3) never
    fall below a boundary at or below u.
  - Only u by (1): c is not in t's window, so c > t + tol >= b.
  - Neither: (2) and (3) round down to points of one fixed set, which keeps order.

What is not promised: the least possible maximum. A rank that begins inside a leaf pays a kappa the water level did not
know of, so when one leaf spans many ranks all of these end near L + kappa, which is the price of closed-form cuts.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from deeppart.partition.cost import CostLine, Cuts, IntArray

Strategy = Callable[[CostLine, IntArray], Cuts]


#: Boundaries with more shared components than this count as equally insignificant; bounds the work on deep nestings.
_DEEPEST = 32


def cut(line: CostLine, load: IntArray, *, structure: bool = True) -> Cuts:
    """Cut a line among ranks; see the module's docstring for the rule and its guarantees."""
    capacity = fill(load, line.total)
    target = np.zeros(len(capacity) + 1, dtype=np.int64)
    np.cumsum(capacity, out=target[1:])
    reach = tolerance(line.total // int(np.count_nonzero(capacity)), int(line.itemsize.max())) if structure else 0
    boundary = _significant(line, target, reach)

    leaf = np.searchsorted(line.start[:-1], target, side="right") - 1
    within = np.maximum(target - line.start[leaf] - line.kappa, 0)
    offset = within - within % line.itemsize[leaf]
    snapped = boundary >= 0
    leaf[snapped] = boundary[snapped]
    offset[snapped] = 0
    return Cuts(leaf, offset)


def tolerance(mean: int, element: int) -> int:
    """The distance that a cut may move to a boundary: 0.5 % of the mean share, less if an element is a large part of
    it.
    """
    return max(0, min((mean // 100 - 1) // 2, mean // 100 - element))


def _significant(line: CostLine, target: IntArray, reach: int) -> IntArray:
    """For each target the boundary to which it moves, as an index into ``line.start``; -1 if none is within reach."""
    chosen = np.full(len(target), -1, dtype=np.int64)
    first = np.searchsorted(line.start, target - reach, side="left")
    last = np.searchsorted(line.start, target + reach, side="right")
    waiting = np.flatnonzero(first < last)
    depth = np.minimum(line.depth, _DEEPEST)
    for level in np.unique(depth):
        if not len(waiting):
            break
        boundaries = np.flatnonzero(depth == level)
        where, sought = line.start[boundaries], target[waiting]
        above = np.searchsorted(where, sought)
        below = np.maximum(above - 1, 0)
        above = np.minimum(above, len(where) - 1)
        up, down = np.abs(where[above] - sought), np.abs(sought - where[below])
        hit = np.minimum(up, down) <= reach
        nearest = np.where(up < down, above, below)
        chosen[waiting[hit]] = boundaries[nearest[hit]]
        waiting = waiting[~hit]
    return chosen


def fill(load: IntArray, amount: int) -> IntArray:
    """Raise the lowest loads to one common level by pouring ``amount`` onto them.

    No other division leaves a lower maximum, and with a level of ``(amount + what the filled ranks carry) / filled
    ranks`` no filled rank ends above that rounded up.
    """
    low, high = int(load.min()), int(load.max())
    if low == high:  # the usual case: equal loads
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


def rank0(line: CostLine, load: IntArray) -> Cuts:
    """The lowest rank of the set saves everything, like ``torch.save`` on rank 0."""
    leaf = np.full(len(load) + 1, len(line.nbytes), dtype=np.int64)
    leaf[0] = 0
    return Cuts(leaf, np.zeros_like(leaf))


def whole(line: CostLine, load: IntArray) -> Cuts:
    """Whole tensors, each to the rank with the lowest cost so far, the largest first.

    Like PyTorch's distributed checkpoint for replicated tensors (``dedup_save_plans``), but better: that takes the
    tensors in the state's order and only counts bytes. O(leaves * log ranks).
    """
    least = [(carried, rank) for rank, carried in enumerate(load.tolist())]
    heapq.heapify(least)
    owner = np.empty(len(line.nbytes), dtype=np.int64)
    largest_first = np.argsort(-line.nbytes, kind="stable")
    for leaf, nbytes in zip(largest_first.tolist(), line.nbytes[largest_first].tolist(), strict=True):
        carried, rank = least[0]
        owner[leaf] = rank
        heapq.heapreplace(least, (carried + nbytes + line.kappa, rank))
    order = np.argsort(owner, kind="stable")
    leaf_cut = np.searchsorted(owner[order], np.arange(len(load) + 1))
    return Cuts(leaf_cut, np.zeros_like(leaf_cut), order)


def flat(line: CostLine, load: IntArray) -> Cuts:
    """The bytes in canonical order cut evenly, aligned to elements, regardless of structure and number of tensors."""
    bytes_only = CostLine.of(line.nbytes, line.itemsize, line.depth[:-1], kappa=0)
    return cut(bytes_only, load, structure=False)


_STRATEGIES: Mapping[str, Strategy] = MappingProxyType({"deeppart": cut, "rank0": rank0, "whole": whole, "flat": flat})

#: Names ``partition(strategy=...)`` takes; the first is the default.
STRATEGIES: tuple[str, ...] = tuple(_STRATEGIES)


def strategy_named(name: str) -> Strategy | None:
    """The strategy of that name, or None."""
    return _STRATEGIES.get(name)
