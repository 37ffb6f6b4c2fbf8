"""The result: who saves which bytes. ``partition`` makes a Plan, which returns the shares."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from deeppart.errors import ConfigError, StateError
from deeppart.model import LeafSpec, Share, Span, show_bytes
from deeppart.partition.cost import LARGEST_TOTAL, CostLine, Cuts, FloatArray, IntArray, usual_kappa, whole_kappa
from deeppart.partition.leaves import Leaves
from deeppart.partition.strategies import STRATEGIES, strategy_named


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


class Plan:
    """The byte ranges of leaves that each rank saves. Immutable; made by :func:`partition`.

    Every byte of every leaf is in exactly one share. A leaf of zero bytes is in no share. Spans begin and end at whole
    elements.

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

    __slots__ = ("_before", "_bytes", "_cut", "_cuts", "_index", "_spans", "kappa", "preload", "ranks", "strategy")

    def __init__(self, strategy: str, kappa: int, preload: IntArray, leaves: Leaves, cuts: Cuts) -> None:
        self.strategy, self.ranks, self.kappa, self.preload = strategy, len(preload), kappa, preload
        #: The rest is in the order to which the cuts refer: the caller's index of each leaf, and the bytes before it.
        order = slice(None) if cuts.order is None else cuts.order
        self._cuts, self._index = cuts, leaves.index[order]
        self._before = np.zeros(len(leaves) + 1, dtype=np.int64)
        np.cumsum(leaves.nbytes[order], out=self._before[1:])
        self._cut = self._before[cuts.leaf] + cuts.offset
        self._bytes: IntArray = np.diff(self._cut)
        self._spans = np.where(self._bytes > 0, np.diff(cuts.leaf) + (cuts.offset[1:] > 0), 0)

    def share(self, rank: int) -> Share:
        """One rank's share: two lookups, whatever the number of ranks.

        Raises:
            ConfigError: there is no such rank.
        """
        if not 0 <= rank < self.ranks:
            raise ConfigError(
                "the plan has no such rank",
                expected=f"0..{self.ranks - 1}",
                found=repr(rank),
                where="Plan.share",
                todo="make the plan for as many ranks as there are",
            )
        first = int(self._cuts.leaf[rank])
        chosen = slice(first, first + int(self._spans[rank]))
        begin = np.maximum(self._before[chosen], self._cut[rank])
        end = np.minimum(self._before[chosen.start + 1 : chosen.stop + 1], self._cut[rank + 1])
        columns = self._index[chosen], begin - self._before[chosen], end - begin
        order = np.argsort(columns[0], kind="stable")
        return Share(rank, tuple(map(Span, *(column[order].tolist() for column in columns))))

    def shares(self) -> Iterator[Share]:
        """All shares in rank order, one at a time. For many ranks :meth:`table` is much quicker."""
        return map(self.share, range(self.ranks))

    def table(self) -> SpanTable:
        """All spans as arrays, ordered by (rank, leaf, start)."""
        edge = np.unique(np.concatenate((self._before, self._cut)))
        begin, leaf = edge[:-1], np.searchsorted(self._before, edge[:-1], side="right") - 1
        owner = np.searchsorted(self._cut, begin, side="right") - 1
        joined = SpanTable(owner, self._index[leaf], begin - self._before[leaf], np.diff(edge))
        order = np.lexsort((joined.start, joined.leaf, joined.rank))
        return SpanTable(*(column[order] for column in joined))

    def costs(self) -> FloatArray:
        """float64[ranks]: bytes + kappa * spans of each share, plus what the rank carried before."""
        total: IntArray = self._bytes + self.kappa * self._spans + self.preload
        return total.astype(np.float64)

    def bytes_per_rank(self) -> IntArray:
        """int64[ranks]: bytes of each share, without preload."""
        return self._bytes.copy()

    def spans_per_rank(self) -> IntArray:
        """int64[ranks]: spans of each share, without preload."""
        return self._spans.copy()

    def split_leaves(self) -> int:
        """The number of leaves in more than one share: those with a cut strictly inside."""
        return int(np.count_nonzero(np.diff(self._cuts.leaf[self._cuts.offset > 0], prepend=-1)))

    def __repr__(self) -> str:
        return f"Plan({self.strategy}, {self.ranks} ranks, {int(self._bytes.sum())} bytes)"

    def __str__(self) -> str:
        total, least, most = (show_bytes(int(value)) for value in (self._bytes.sum(), *np.sort(self._bytes)[[0, -1]]))
        split = self.split_leaves()
        return f"{total} on {self.ranks} ranks: {least} to {most} each, leaves that are split: {split}"


def partition(
    leaves: Sequence[LeafSpec] | Leaves,
    ranks: int,
    kappa: float | None = None,
    strategy: str = "deeppart",
    preload: Sequence[float] | FloatArray | IntArray | None = None,
) -> Plan:
    """Share leaves out so that all ranks' costs, counting what they carry already, are as equal as cuts allow.

    Leaves that only some ranks hold are shared out among these by a call of their own, smaller sets of ranks before
    larger, on top of what each rank carries already (``preload``); then what every rank holds fills up the rest. For
    sets that are disjoint or nested in one another this order reaches the lowest common level.

    What the default strategy guarantees, and why, is in ``deeppart.partition.strategies``: without a preload, max cost
    <= 1.01 * mean + kappa (mean: cost of all leaves unsplit / ranks) and at most ranks - 1 leaves split; plus at most
    one element where the mean is below 100 elements.

    The result depends on paths and sizes, not on the order of ``leaves`` (beyond the indices in spans), and is computed
    in integers: every rank gets the same one on any machine.

    Args:
        leaves: one LeafSpec per leaf in any order, or :class:`Leaves` kept from an earlier call.
        ranks: number of ranks, >= 1.
        kappa: cost of one span in bytes, >= 0; rounded to whole bytes. None: :func:`usual_kappa` of the leaves, with
            which no rank has more than 1.1 times the mean of the bytes.
        strategy: one of STRATEGIES.
        preload: cost (bytes + kappa * spans) per rank already carried; rounded to whole bytes.

    Raises:
        ConfigError: ranks, kappa, strategy or preload is impossible.
        StateError: a leaf's size is impossible.
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
    ordered = (leaves if isinstance(leaves, Leaves) else Leaves.of(leaves)).without_empty()
    span_cost = usual_kappa(ordered.nbytes) if kappa is None else whole_kappa(kappa)
    _check_total(ordered, span_cost, carried)
    cuts = Cuts(np.zeros(ranks + 1, dtype=np.int64), np.zeros(ranks + 1, dtype=np.int64))
    if len(ordered):
        cuts = chosen(CostLine.of(ordered.nbytes, ordered.itemsize, ordered.depth, span_cost), carried)
    return Plan(strategy, span_cost, carried, ordered, cuts)


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
    """Everything added up must stay within what int64 arithmetic keeps exact. Each cut costs at most kappa."""
    about = float(leaves.nbytes.sum(dtype=np.float64)) + float(preload.sum(dtype=np.float64))
    about += float(kappa) * (len(leaves) + len(preload))
    if about >= LARGEST_TOTAL:
        raise StateError(
            "the state is beyond what one plan can count",
            expected="bytes + kappa * spans below 2**62 (4.6 exabytes) in all",
            found=f"about {about:.3g}",
            where="partition",
            todo="check the leaves' sizes and kappa",
        )
