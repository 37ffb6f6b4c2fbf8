"""The time of transfers that share a bandwidth: processor sharing, in closed form.

Everyone gets an equal part of the bandwidth, up to a limit of their own; whoever is done leaves their part to the
others (L. Kleinrock, Queueing Systems, volume 2, 1976).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def finish_times(amounts: FloatArray, each: float, together: float) -> FloatArray:
    """The time at which each of several transfers ends that begin together."""
    order = np.argsort(amounts, axis=1, kind="stable")
    ascending = np.take_along_axis(amounts, order, axis=1)
    steps = np.diff(ascending, axis=1, prepend=0.0)
    members = amounts.shape[1]
    active = np.arange(members, 0, -1)
    # While the j-th smallest is under way, it and all larger ones are; what is empty never was.
    rate = np.minimum(each, together / active)
    times = np.cumsum(steps / rate, axis=1)
    found = np.empty_like(times)
    np.put_along_axis(found, order, times, axis=1)
    return np.where(amounts > 0, found, 0.0)


def finish_times_of_all(amounts: FloatArray, each: float, together: float, all_rows: float) -> FloatArray:
    """The same, where the rows share a bandwidth with one another, too, in equal parts."""
    times = finish_times(amounts, each, together)
    slowest, everything = float(times.max()), float(amounts.sum()) / all_rows
    return times * (everything / slowest) if slowest and everything > slowest else times


def by_node(per_rank: NDArray[np.int64] | FloatArray, ranks_per_node: int) -> FloatArray:
    """float64[nodes, ranks_per_node] from one entry per rank; the last node is filled up with zeros."""
    nodes = -(-len(per_rank) // ranks_per_node)
    padded = np.zeros(nodes * ranks_per_node)
    padded[: len(per_rank)] = per_rank
    return padded.reshape(nodes, ranks_per_node)
