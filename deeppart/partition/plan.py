"""The result: who saves which bytes. ``partition`` makes a Plan, which returns the shares."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from deeppart.errors import ConfigError, StateError
from deeppart.model import LeafSpec, Share, Span, show_bytes
from deeppart.partition.cost import LARGEST_TOTAL, CostLine, Cuts, FloatArray, IntArray, usual_kappa, whole_kappa
from deeppart.partition.leaves import Leaves, check_replicas
from deeppart.partition.strategies import STRATEGIES, Strategy, strategy_named


class SpanTable(NamedTuple):
    """Every span of a plan as columns of int64[spans]: the saving rank, leaf, first byte and length.

    Attributes:
        rank: the rank that saves it.
        leaf: index of the leaf in the caller's list.
        start: first byte.
        length: number of bytes.

    Example:
        >>> from deeppart.partition import LeafSpec, partition
        >>> table = partition([LeafSpec("a", 3000), LeafSpec("b", 1000)], ranks=2, kappa=0).table()
        >>> table.rank.tolist(), table.leaf.tolist(), table.length.tolist()
        ([0, 1, 1], [0, 0, 1], [2000, 1000, 1000])
    """

    rank: IntArray
    leaf: IntArray
    start: IntArray
    length: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class _SetShares:
    """The leaves of one replica set and their cuts. Arrays are in the order to which the cuts refer."""

    ranks: IntArray | None  # None: every rank, so that rank k is the k-th
    index: IntArray  # [n] the caller's
    nbytes: IntArray  # [n] > 0
    leaf: IntArray  # [ranks + 1]
    offset: IntArray  # [ranks + 1]

    def spans(self, k: int) -> tuple[IntArray, IntArray, IntArray]:
        """(leaf, start, length) of the spans of the set's k-th rank."""
        first, last = int(self.leaf[k]), int(self.leaf[k + 1])
        head, tail = int(self.offset[k]), int(self.offset[k + 1])
        if (first, head) == (last, tail):
            last, tail = first, 0
        chosen = slice(first, last + (tail > 0))
        length = self.nbytes[chosen].copy()
        start = np.zeros_like(length)
        if len(length):
            if tail:
                length[-1] = tail
            start[0] = head
            length[0] -= head
        return self.index[chosen], start, length

    def bytes_per_rank(self) -> IntArray:
        before = np.zeros(len(self.nbytes) + 1, dtype=np.int64)
        np.cumsum(self.nbytes, out=before[1:])
        return np.diff(before[self.leaf] + self.offset)

    def spans_per_rank(self) -> IntArray:
        touched = np.diff(self.leaf) + (self.offset[1:] > 0)
        return np.where(self.bytes_per_rank() > 0, touched, 0)

    def split(self) -> int:
        """The number of leaves in more than one share: those with a cut strictly inside."""
        return int(np.count_nonzero(np.diff(self.leaf[self.offset > 0], prepend=-1)))

    def table(self) -> SpanTable:
        before = np.zeros(len(self.nbytes) + 1, dtype=np.int64)
        np.cumsum(self.nbytes, out=before[1:])
        cut = before[self.leaf] + self.offset
        edge = np.unique(np.concatenate((before, cut)))
        begin, leaf = edge[:-1], np.searchsorted(before, edge[:-1], side="right") - 1
        owner = np.searchsorted(cut, begin, side="right") - 1
        rank = owner if self.ranks is None else self.ranks[owner]
        return SpanTable(rank, self.index[leaf], begin - before[leaf], np.diff(edge))


class Plan:
    """The byte ranges of leaves that each rank saves. Immutable; made by :func:`partition`.

    Every byte of every leaf is in exactly one share, that of a rank which holds the leaf. A leaf of zero bytes is in no
    share. Spans begin and end at whole elements.

    Attributes:
        strategy: the name of the strategy that made it.
        ranks: number of ranks.
        kappa: cost of a span in whole bytes.
        preload: int64[ranks], the cost that each rank carried before.

    Example:
        >>> from deeppart.partition import LeafSpec, partition
        >>> plan = partition([LeafSpec("embedding", 600_000, itemsize=4), LeafSpec("head", 200_000)], ranks=2)
        >>> print(plan)
        800 kB on 2 ranks: 400 kB to 400 kB each, leaves that are split: 1
    """

    __slots__ = ("_bytes", "_member", "_member_set", "_sets", "_spans", "kappa", "preload", "ranks", "strategy")

    def __init__(self, strategy: str, ranks: int, kappa: int, preload: IntArray, sets: Sequence[_SetShares]) -> None:
        self.strategy = strategy
        self.ranks = ranks
        self.kappa = kappa
        self.preload = preload
        self._sets = tuple(sets)
        self._bytes = np.zeros(ranks, dtype=np.int64)
        self._spans = np.zeros(ranks, dtype=np.int64)
        for part in self._sets:
            members = slice(None) if part.ranks is None else part.ranks
            self._bytes[members] += part.bytes_per_rank()
            self._spans[members] += part.spans_per_rank()
        # The sets of each rank, without a search: pairs (rank, set) sorted by rank.
        smaller = [(number, part.ranks) for number, part in enumerate(self._sets) if part.ranks is not None]
        member = np.concatenate([np.zeros(0, dtype=np.int64), *(members for _, members in smaller)])
        number = np.repeat([n for n, _ in smaller], [len(members) for _, members in smaller]).astype(np.int64)
        by_rank = np.argsort(member, kind="stable")
        self._member, self._member_set = member[by_rank], number[by_rank]

    def share(self, rank: int) -> Share:
        """One rank's share: two lookups per replica set the rank is in, whatever the number of ranks.

        Raises:
            ConfigError: there is no such rank.
        """
        spans = self._columns(rank)
        return Share(rank, tuple(map(Span, *(column.tolist() for column in spans))))

    def shares(self) -> Iterator[Share]:
        """All shares in rank order, one at a time. For many ranks :meth:`table` is much quicker."""
        return map(self.share, range(self.ranks))

    def table(self) -> SpanTable:
        """All spans as arrays, ordered by (rank, leaf, start)."""
        empty = SpanTable(*(np.zeros(0, dtype=np.int64) for _ in range(4)))
        tables = [empty, *(part.table() for part in self._sets)]
        joined = SpanTable(*(np.concatenate(columns) for columns in zip(*tables, strict=True)))
        order = np.lexsort((joined.start, joined.leaf, joined.rank))
        return SpanTable(*(column[order] for column in joined))

    def costs(self) -> FloatArray:
        """float64[ranks]: bytes + kappa * spans of each share, plus what the rank carried before."""
        total = self._bytes + self.kappa * self._spans + self.preload
        return total.astype(np.float64)

    def bytes_per_rank(self) -> IntArray:
        """int64[ranks]: bytes of each share, without preload."""
        return self._bytes.copy()

    def spans_per_rank(self) -> IntArray:
        """int64[ranks]: spans of each share, without preload."""
        return self._spans.copy()

    def split_leaves(self) -> int:
        """The number of leaves in more than one share."""
        return sum(part.split() for part in self._sets)

    def __repr__(self) -> str:
        return f"Plan({self.strategy}, {self.ranks} ranks, {int(self._bytes.sum())} bytes)"

    def __str__(self) -> str:
        total, least, most = (show_bytes(int(value)) for value in (self._bytes.sum(), *np.sort(self._bytes)[[0, -1]]))
        split = self.split_leaves()
        return f"{total} on {self.ranks} ranks: {least} to {most} each, leaves that are split: {split}"

    def _columns(self, rank: int) -> tuple[IntArray, IntArray, IntArray]:
        """(leaf, start, length) of a rank's spans in ascending order."""
        if not 0 <= rank < self.ranks:
            raise ConfigError(
                "the plan has no such rank",
                expected=f"0..{self.ranks - 1}",
                found=repr(rank),
                where="Plan.share",
                todo="make the plan for as many ranks as there are",
            )
        first, last = np.searchsorted(self._member, rank, side="left"), np.searchsorted(self._member, rank, "right")
        found = []
        for number in self._member_set[first:last].tolist():
            part = self._sets[number]
            assert part.ranks is not None
            found.append(part.spans(int(np.searchsorted(part.ranks, rank))))
        if self._sets and self._sets[-1].ranks is None:
            found.append(self._sets[-1].spans(rank))
        if not found:
            return (np.zeros(0, dtype=np.int64),) * 3
        leaf, start, length = (np.concatenate(columns) for columns in zip(*found, strict=True))
        order = np.argsort(leaf, kind="stable")
        return leaf[order], start[order], length[order]


def partition(
    leaves: Sequence[LeafSpec] | Leaves,
    ranks: int,
    kappa: float | None = None,
    strategy: str = "deeppart",
    preload: Sequence[float] | FloatArray | IntArray | None = None,
) -> Plan:
    """Share leaves out so that all ranks' costs, counting what they carry already, are as equal as cuts allow.

    A save and the simulator call this once for each set of ranks, in the order of ``deeppart.plan.shards``; only the
    planner for DCP passes several replica sets at once.

    Replica sets smaller than the world are balanced first, each within its ranks on top of what these carry, smaller
    sets before larger; then what every rank holds fills up the rest. For sets that are disjoint or nested in one
    another this order reaches the lowest common level. What the default strategy guarantees for each set, and why, is
    in ``deeppart.partition.strategies``: with one set and no preload, max cost <= 1.01 * mean + kappa (mean: cost of
    all leaves unsplit / ranks) and at most ranks - 1 leaves split; plus at most one element where the mean is below
    100 elements.

    The result depends on paths, sizes and replica sets, not on the order of ``leaves`` (beyond the indices in spans),
    and is computed in integers: every rank gets the same one on any machine.

    Args:
        leaves: one LeafSpec per leaf in any order, or :class:`Leaves` kept from an earlier call.
        ranks: number of ranks, >= 1.
        kappa: cost of one span in bytes, >= 0; rounded to whole bytes. None: :func:`usual_kappa` of the leaves, with
            which no rank has more than 1.1 times the mean of the bytes.
        strategy: one of STRATEGIES.
        preload: cost (bytes + kappa * spans) per rank already carried; rounded to whole bytes.

    Raises:
        ConfigError: ranks, kappa, strategy or preload is impossible.
        StateError: a leaf's size or replica set is impossible.
    """
    ranks = _whole_ranks(ranks)
    chosen = strategy_named(strategy)
    if chosen is None:
        raise ConfigError(
            "there is no such partition strategy",
            expected=" or ".join(STRATEGIES),
            found=repr(strategy),
            where="partition(strategy=...)",
            todo="use one of these names",
        )
    carried = _whole_preload(preload, ranks)
    ordered = (leaves if isinstance(leaves, Leaves) else Leaves.of(leaves, ranks)).without_empty()
    span_cost = usual_kappa(ordered.nbytes) if kappa is None else whole_kappa(kappa)
    _check_total(ordered, span_cost, carried)
    return Plan(strategy, ranks, span_cost, carried, _cut_sets(ordered, ranks, span_cost, carried, chosen))


def _cut_sets(leaves: Leaves, ranks: int, kappa: int, preload: IntArray, strategy: Strategy) -> list[_SetShares]:
    """Cut set after set, each on top of what the sets before it gave its ranks."""
    load = preload.copy()
    load.setflags(write=True)
    done: list[_SetShares] = []
    stop = 0
    for replicas, count in leaves.sets:
        start, stop = stop, stop + count
        members = None if replicas is None else check_replicas(replicas, ranks, f"replica set {len(done)}")
        if not count:
            continue
        line = CostLine.of(leaves.nbytes[start:stop], leaves.itemsize[start:stop], leaves.depth[start:stop], kappa)
        index = leaves.index[start:stop]
        held = slice(None) if members is None else members
        cuts: Cuts = strategy(line, load[held])
        order = slice(None) if cuts.order is None else cuts.order
        part = _SetShares(members, index[order], line.nbytes[order], cuts.leaf, cuts.offset)
        load[held] += part.bytes_per_rank() + kappa * part.spans_per_rank()
        done.append(part)
    return done


def _whole_ranks(ranks: int) -> int:
    try:
        count = operator.index(ranks)
    except TypeError:
        count = 0
    if count < 1:
        raise ConfigError(
            "the number of ranks is impossible",
            expected="a whole number >= 1",
            found=repr(ranks),
            where="partition(ranks=...)",
            todo="pass the size of the communicator",
        )
    return count


def _whole_preload(preload: Sequence[float] | FloatArray | IntArray | None, ranks: int) -> IntArray:
    """Preload as read-only int64[ranks], rounded to whole bytes."""
    if preload is None:
        load = np.zeros(ranks, dtype=np.int64)
    else:
        try:
            given = np.asarray(preload, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            given = np.full(0, np.nan)
        # A sum below the limit also rules out NaN and infinity, and any single value that int64 cannot hold.
        if given.shape != (ranks,) or not (given >= 0).all() or not given.sum() < LARGEST_TOTAL:
            shown = repr(preload) if len(repr(preload)) <= 80 else repr(preload)[:77] + "..."
            raise ConfigError(
                "the preload is impossible",
                expected=f"{ranks} finite costs in bytes >= 0, one per rank, below 2**62 in all",
                found=f"shape {given.shape}: {shown}",
                where="partition(preload=...)",
                todo="pass bytes + kappa * spans of what each rank saves anyway, or leave it out",
            )
        load = np.rint(given).astype(np.int64)
    load.setflags(write=False)
    return load


def _check_total(leaves: Leaves, kappa: int, preload: IntArray) -> None:
    """Everything added up must stay within what int64 arithmetic keeps exact. Each cut of a set costs at most kappa."""
    cuts = sum(len(preload) if replicas.ranks is None else len(replicas.ranks) for replicas in leaves.sets)
    about = float(leaves.nbytes.sum(dtype=np.float64)) + float(preload.sum(dtype=np.float64))
    about += float(kappa) * (len(leaves) + cuts)
    if about >= LARGEST_TOTAL:
        raise StateError(
            "the state is beyond what one plan can count",
            expected="bytes + kappa * spans below 2**62 (4.6 exabytes) in all",
            found=f"about {about:.3g}",
            where="partition",
            todo="check the leaves' sizes and kappa",
        )
