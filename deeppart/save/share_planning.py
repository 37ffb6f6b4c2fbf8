"""This rank's share of a state: planned alike on every rank, laid out for this one.

What one rank alone has, it saves. What some ranks hold alike, shards of tensors, is shared out among these, fewer
holders first, on top of what they have; what all ranks hold levels the load. The rules are those of
:mod:`deeppart.plan.shards.sharing`; every rank computes only the sets that it is in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deeppart.comm.base import Comm
from deeppart.comm.waiting import finish
from deeppart.model import LeafSpec
from deeppart.partition import usual_kappa
from deeppart.plan.shards import in_order, share_set
from deeppart.save.shard_holders import Holders
from deeppart.state.capture.layout import ShareLayout, lay_out
from deeppart.state.compare.optimizers import trained_leaves
from deeppart.state.compare.state_layout import StateLayout
from deeppart.state.tree.flat import FlatState
from deeppart.state.tree.leaves import LeafType
from deeppart.state.tree.paths import readable

#: (leaf, first byte, bytes)
_Span = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Leaves:
    """Numbers of the leaves with bytes, by who has them.

    Attributes:
        shared: on all ranks, in the structure that they share.
        rank0: rank 0's, for all.
        own: of this rank alone.
        everywhere: shards that all ranks hold.
        held: shards by the ranks that hold them: some, but not all.
    """

    shared: list[int]
    rank0: list[int]
    own: list[int]
    everywhere: list[int]
    held: dict[tuple[int, ...], list[int]]


def plan_share(
    comm: Comm,
    layout: StateLayout,
    flat: FlatState,
    kappa: float | None,
    within: tuple[str, float],
    *,
    all_tell: bool,
    holders: Holders | None = None,
) -> ShareLayout | str:
    """Plan the share of this rank: all ranks compute the same plan and exchange sizes of per-rank leaves only."""
    leaves, types = _leaves(layout, flat, holders, comm.size), layout.types
    kappa_bytes = _kappa(comm, leaves, types, kappa, within, holders)
    carried = np.zeros(comm.size, dtype=np.int64)
    carries = leaves.own + leaves.rank0
    carried[comm.rank] = sum(types[i].nbytes for i in carries) + kappa_bytes * len(carries)
    if layout.per_rank[: flat.shared[0]].any() or all_tell:
        carried = _everyones(comm, carried, within)
    planning = _Planning(comm, layout, flat, kappa_bytes)
    failure = ""
    own_spans = [(leaf, 0, types[leaf].nbytes) for leaf in leaves.own]
    for size in _set_sizes(comm, leaves, within) if holders is not None else ():
        sets = {ranks: held for ranks, held in leaves.held.items() if len(ranks) == size}
        try:
            own_spans += planning.of_sets(sets, carried)
        except Exception as error:  # the other ranks go on
            failure = f"{type(error).__name__}: {error}"
        carried = _everyones(comm, planning.added(carried), within)
    if failure:
        return failure
    try:
        spans, everywhere = planning.of_all(leaves, carried)
        spans += [(leaf, 0, types[leaf].nbytes) for leaf in leaves.rank0]
        return lay_out(types, spans, own_spans + everywhere, trained_leaves(flat))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _leaves(layout: StateLayout, flat: FlatState, holders: Holders | None, size: int) -> _Leaves:
    found = _Leaves([], [], [], [], {})
    for leaf, kind in enumerate(layout.types):
        if not kind.nbytes or leaf in layout.aliases:
            continue
        if not layout.per_rank[leaf]:
            found.shared.append(leaf)
        elif flat.shared[0] <= leaf < flat.common[0]:
            found.rank0.append(leaf)
        elif leaf < flat.before_shards or holders is None or len(holders.ranks[leaf]) == 1:
            found.own.append(leaf)
        elif len(holders.ranks[leaf]) == size:
            found.everywhere.append(leaf)
        else:
            found.held.setdefault(holders.ranks[leaf], []).append(leaf)
    return found


class _Planning:
    """One plan being made, as this rank sees it."""

    def __init__(self, comm: Comm, layout: StateLayout, flat: FlatState, kappa: int) -> None:
        self._rank, self._kappa = comm.rank, kappa
        self._types, self._flat, self._load = layout.types, flat, 0
        #: Of each shard, what brings those of one tensor into one order on all ranks.
        self._offsets = {n: box for leaf in flat.sharded for n, box in zip(leaf.numbers, leaf.boxes, strict=True)}

    def of_sets(self, sets: dict[tuple[int, ...], list[int]], carried: npt.NDArray[np.int64]) -> list[_Span]:
        """This rank's spans of shards that some ranks hold."""
        found: list[_Span] = []
        for ranks, held in sorted(sets.items()):
            ordered = self._in_order(held)
            plan = share_set(self._specs(ordered), self._kappa, carried[list(ranks)])
            share = plan.share(ranks.index(self._rank))
            found += [(ordered[span.leaf], span.start, span.length) for span in share.spans]
        self._load += sum(length for _, _, length in found) + self._kappa * len(found)
        return found

    def added(self, carried: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """What ranks carry, with what this one was given since the last time."""
        carried = carried.copy()
        carried[self._rank] += self._load
        self._load = 0
        return carried

    def of_all(self, leaves: _Leaves, carried: npt.NDArray[np.int64]) -> tuple[list[_Span], list[_Span]]:
        """This rank's spans of what all ranks hold: of leaves in the shared structure, and of shards."""
        shards = self._in_order(leaves.everywhere)
        numbers = leaves.shared + shards
        plan = share_set(self._specs(numbers), self._kappa, carried)
        spans = [(numbers[span.leaf], span.start, span.length) for span in plan.share(self._rank).spans]
        is_shard = set(shards)
        return [each for each in spans if each[0] not in is_shard], [each for each in spans if each[0] in is_shard]

    def _specs(self, numbers: Sequence[int]) -> list[LeafSpec]:
        paths, types = self._flat.arrays, self._types
        return [LeafSpec(readable(paths[i].path), types[i].nbytes, types[i].itemsize) for i in numbers]

    def _in_order(self, shards: Sequence[int]) -> list[int]:
        """Shards in an order that is the same on all ranks that hold them."""
        order = in_order([(readable(self._flat.arrays[leaf].path), self._offsets[leaf]) for leaf in shards])
        return [shards[position] for position in order]


def _kappa(
    comm: Comm,
    leaves: _Leaves,
    types: Sequence[LeafType],
    kappa: float | None,
    within: tuple[str, float],
    holders: Holders | None,
) -> int:
    """The cost of a span; of the usual ones, where ranks hold other shards, the least."""
    if kappa is not None:
        return int(kappa)
    held = [leaf for each in leaves.held.values() for leaf in each] + leaves.everywhere
    mine = [leaf for leaf in leaves.own if holders is not None and leaf in holders.ranks]
    counted = leaves.shared + (held + mine if holders is not None else [])
    usual = usual_kappa(np.array([types[i].nbytes for i in counted], dtype=np.int64))
    if holders is None:
        return usual
    return int(-_everyones(comm, np.array([-usual], dtype=np.int64), within)[0])


def _set_sizes(comm: Comm, leaves: _Leaves, within: tuple[str, float]) -> list[int]:
    """How many ranks the sets of holders have, on any rank, ascending."""
    found = np.zeros(comm.size + 1, dtype=np.int64)
    found[[len(ranks) for ranks in leaves.held]] = 1
    sizes: list[int] = np.flatnonzero(_everyones(comm, found, within)).tolist()
    return sizes


def _everyones(comm: Comm, values: npt.NDArray[np.int64], within: tuple[str, float]) -> npt.NDArray[np.int64]:
    what, timeout = within
    return finish(comm, comm.maximum(values), what, timeout)
