"""deeppart's cutting and the alternatives kept beside it for comparison, all behind one signature.

A strategy is pure: (line, load) -> Cuts, where load is int64[ranks of the set], the cost each carries already.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from deeppart.partition import heuristic
from deeppart.partition.cost import CostLine, Cuts, IntArray

Strategy = Callable[[CostLine, IntArray], Cuts]


def rank0(line: CostLine, load: IntArray) -> Cuts:
    """The lowest rank of the set takes everything, whatever it carries: what ``torch.save`` on rank 0 does."""
    leaf = np.full(len(load) + 1, len(line.nbytes), dtype=np.int64)
    leaf[0] = 0
    return Cuts(leaf, np.zeros_like(leaf))


def whole(line: CostLine, load: IntArray) -> Cuts:
    """Whole tensors, each to the rank with the lowest cost so far, the largest first.

    What PyTorch's distributed checkpoint balances replicated tensors by (``dedup_save_plans``), made kinder: that takes
    the tensors in the state's order and counts bytes only. O(leaves * log ranks).
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
    """The bytes in canonical order cut evenly, aligned to elements, blind to structure and to the number of tensors."""
    bytes_only = CostLine.of(line.nbytes, line.itemsize, line.depth[:-1], kappa=0)
    return heuristic.cut(bytes_only, load, structure=False)


_STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {"deeppart": heuristic.cut, "rank0": rank0, "whole": whole, "flat": flat}
)

#: Names ``partition(strategy=...)`` takes; the first is the default.
STRATEGIES: tuple[str, ...] = tuple(_STRATEGIES)


def strategy_named(name: str) -> Strategy | None:
    """The strategy of that name, or None."""
    return _STRATEGIES.get(name)
