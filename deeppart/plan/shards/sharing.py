"""How ranks share out what some of them hold alike: the rules that the library and its simulator both follow.

What one rank alone has, it saves. Then come the sets of ranks that hold shards alike, fewer ranks first; those of one
size do not know of what others of this size are given. What all ranks hold comes last, and levels the load.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from deeppart.model import LeafSpec
from deeppart.model.boxes import Box
from deeppart.partition import DEFAULT_KAPPA_BYTES, Leaves, Plan, partition
from deeppart.partition.cost import IntArray, usual_kappa_of


def in_order(shards: Sequence[tuple[str, Box]]) -> list[int]:
    """The positions of shards (path, box) in an order that is the same on all ranks that hold them."""
    return sorted(range(len(shards)), key=shards.__getitem__)


def share_set(leaves: Sequence[LeafSpec] | Leaves, kappa: int, carried: IntArray, strategy: str = "deeppart") -> Plan:
    """The plan of one set of ranks, for what they hold alike."""
    return partition(leaves, len(carried), kappa, strategy, carried)


def least_usual_kappa(held: Iterable[tuple[int, int]]) -> int:
    """The cost of a span where none is given, and tensors are sharded: the least of what is usual on each rank."""
    return min((usual_kappa_of(nbytes, leaves) for nbytes, leaves in held), default=DEFAULT_KAPPA_BYTES)


def added_cost(plan: Plan) -> IntArray:
    """int64[ranks]: what a plan adds to what each rank carries."""
    return np.asarray(plan.bytes_per_rank() + plan.kappa * plan.spans_per_rank(), dtype=np.int64)
