"""Shards that several ranks hold alike: compared among these at every checkpoint, as replicated leaves are among all.

A *replica set* is the ranks that hold the same shards. Each of its ranks saves a part of their bytes, so a rank that
has other bytes would spoil the shard for all of them. What is read of each shard, and when, is the same as of
replicated leaves (:mod:`deeppart.state.compare.comparing`), but nothing trails. One reduction over all ranks tells
every set at once whether its ranks agree: of a set, only its own ranks bring numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from deeppart.comm import Comm, finish
from deeppart.state.compare.comparing import UNREAD, Comparison
from deeppart.state.compare.divergence import MOST_NAMED, NEVER, Calls, ComparedRecord, Divergence
from deeppart.state.compare.optimizers import TrainingWatch
from deeppart.state.tree.fingerprint import hash_json
from deeppart.state.tree.flat import FlatState
from deeppart.state.tree.globs import ALL, NONE, VERIFY, Replication
from deeppart.state.tree.leaves import LeafType
from deeppart.state.tree.paths import readable

_NOTHING = np.iinfo(np.int64).min
_Numbers = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Differing:
    """What a comparison has found.

    Attributes:
        leaves: numbers of this rank's shards that differ from those of other ranks, found now.
        diverged: shards that were alike before, on any ranks; the same on every rank.
        unlike: paths of those that never were.
    """

    leaves: frozenset[int] = frozenset()
    diverged: tuple[Divergence, ...] = ()
    unlike: tuple[str, ...] = ()


@dataclass(slots=True)
class _Set:
    """One replica set of this rank.

    Attributes:
        number: among all sets of the job.
        leaves: in the order that all of its ranks have.
        comparison, record: of these leaves, less those that differ or are trusted.
    """

    number: int
    leaves: list[int]
    comparison: Comparison
    record: ComparedRecord


@dataclass(slots=True)
class ReplicaSets:
    """The replica sets of a state's shards. Every method is collective, among all ranks.

    Attributes:
        comm, timeout: between which ranks, and seconds for each exchange.
        apart: this rank's shards that others hold in another form: each rank saves its own.
    """

    comm: Comm
    timeout: float
    apart: set[int] = field(default_factory=set)
    _sets: list[_Set] = field(default_factory=list)
    #: Of every set of the job, how many leaves it has.
    _lengths: list[int] = field(default_factory=list)
    _types: list[LeafType] = field(default_factory=list)
    _replication: Replication = field(default_factory=lambda: Replication(ALL))

    def agree(
        self,
        flat: FlatState,
        types: list[LeafType],
        held: Mapping[tuple[int, ...], list[int]],
        replication: Replication,
        what: str,
    ) -> None:
        """Take in which shards are held by whom."""
        mine = [[list(ranks), len(leaves)] for ranks, leaves in sorted(held.items()) if ranks[0] == self.comm.rank]
        told = finish(self.comm, self.comm.allgather(json.dumps(mine).encode()), what, self.timeout)
        every = sorted((tuple(ranks), count) for text in told for ranks, count in json.loads(text))
        numbers = {ranks: number for number, (ranks, _) in enumerate(every)}
        self._lengths = [count for _, count in every]
        self._types, self._replication = types, replication
        self._sets = [
            _Set(numbers[ranks], leaves, self._comparison(leaves, flat), ComparedRecord(len(types)))
            for ranks, leaves in sorted(held.items())
        ]

    def _comparison(self, leaves: list[int], flat: FlatState) -> Comparison:
        modes = {leaf: self._replication.mode(flat.arrays[leaf].path) for leaf in leaves if leaf not in self.apart}
        self.apart |= {leaf for leaf, mode in modes.items() if mode == NONE}
        verified = [leaf for leaf, mode in modes.items() if mode == VERIFY]
        compared = [leaf for leaf, mode in modes.items() if mode not in (ALL, NONE)]
        return Comparison(compared, flat, self._types, verified)

    @property
    def any(self) -> bool:
        """True if any rank holds a shard that another one holds too; the same on all ranks."""
        return bool(self._lengths)

    def compare(
        self, flat: FlatState, calls: Calls, now: tuple[int, int], watch: TrainingWatch | None, what: str
    ) -> Differing:
        """Compare what is due at a turn; all bytes of a set, if its ranks differ in anything."""
        trained = {} if watch is None else watch.trained()  # asked once: asking begins to watch anew
        told = np.full((2, 2, len(self._lengths)), _NOTHING, dtype=np.int64)
        for each in self._sets:
            fields = each.comparison.digests(flat, now[0], trained)
            unread = fields.pop(UNREAD)
            for row, value in enumerate((hash_json(sorted(fields.items())), unread)):
                told[row, :, each.number] = value, -value
        most = self._maximum(told.reshape(-1), what).reshape(told.shape)
        unequal = most[:, 0] != -most[:, 1]
        for each in self._sets:
            if not unequal[0, each.number]:
                self._record(each, now[0], unread_alike=not unequal[1, each.number])
        return self._in_full(flat, unequal[0], calls, now, what) if unequal[0].any() else Differing()

    def compare_all(self, flat: FlatState, calls: Calls, now: tuple[int, int], what: str) -> Differing:
        """Compare all bytes of all shards that several ranks hold."""
        return self._in_full(flat, np.ones(len(self._lengths), dtype=np.bool_), calls, now, what)

    def forget_digests(self) -> None:
        """The state's memory has been written to in ways that torch does not count."""
        for each in self._sets:
            each.comparison.cache.forget()

    def _maximum(self, values: _Numbers, what: str) -> _Numbers:
        return finish(self.comm, self.comm.maximum(values), what, self.timeout)

    def _record(self, each: _Set, turn: int, *, unread_alike: bool) -> None:
        found = each.comparison
        read = [number for number in found.full if number not in found.unread] if unread_alike else []
        each.record.in_full([*found.small, *read], turn)
        each.record.in_part(found.in_turn, found.orders[found.ways > 0], turn)

    def _in_full(self, flat: FlatState, asked: _Flags, calls: Calls, now: tuple[int, int], what: str) -> Differing:
        """Read all shards of some sets, leaf by leaf; what differs stands apart from now on."""
        starts = np.concatenate([[0], np.cumsum(np.where(asked, self._lengths, 0))])
        told = np.full((3, 2, int(starts[-1])), _NOTHING, dtype=np.int64)
        mine = [each for each in self._sets if asked[each.number]]
        for each in mine:
            columns = slice(starts[each.number], starts[each.number + 1])
            for row, values in enumerate(_by_leaf(each, flat)):
                told[row, :, columns] = values, -values
        most = self._maximum(told.reshape(-1), what).reshape(told.shape)
        unequal = most[:, 0] != -most[:, 1]
        new: list[tuple[_Set, int]] = []
        for each in mine:
            columns = slice(starts[each.number], starts[each.number + 1])
            differs, orders, training = unequal[:, columns]
            large = [each.leaves.index(leaf) for leaf in each.comparison.large]
            each.comparison.settle_ways(orders[large], training[large], np.zeros(len(large), dtype=np.bool_))
            new += [(each, leaf) for leaf, found in zip(each.leaves, differs.tolist(), strict=True) if found]
            alike = [leaf for leaf, found in zip(each.leaves, differs.tolist(), strict=True) if not found]
            each.record.all_of([leaf for leaf in alike if leaf not in self.apart], now[0])
        if not unequal[0].any():
            return Differing()
        found = self._tell(flat, new, calls, now, what)
        self.apart |= found.leaves
        for each in {id(each): each for each, _ in new}.values():
            each.comparison = self._comparison(each.leaves, flat)
        return found

    def _tell(
        self, flat: FlatState, new: list[tuple[_Set, int]], calls: Calls, now: tuple[int, int], what: str
    ) -> Differing:
        """Which ranks hold what of the shards that differ, for all ranks."""
        mine: dict[str, Any] = {}
        for each, leaf in new[:MOST_NAMED]:
            digest = int(each.comparison.in_full(flat)[leaf])
            key = f"{each.number} {each.leaves.index(leaf)}"
            mine[key] = [readable(flat.arrays[leaf].path), digest, each.record.last(leaf)]
        told = finish(self.comm, self.comm.allgather(json.dumps(mine).encode()), what, self.timeout)
        groups: dict[str, dict[int, list[int]]] = {}
        about: dict[str, tuple[str, int]] = {}
        for rank, text in enumerate(told):
            for key, (path, digest, last) in json.loads(text).items():
                groups.setdefault(key, {}).setdefault(digest, []).append(rank)
                about[key] = path, last
        diverged, unlike = [], []
        for key, (path, last) in sorted(about.items(), key=lambda item: item[1]):
            ordered = sorted(groups[key].values(), key=lambda ranks: (-len(ranks), ranks))
            if last == NEVER:
                unlike.append(path)
            else:
                diverged.append(Divergence(path, tuple(map(tuple, ordered)), calls.interval(last, *now)))
        return Differing(frozenset(leaf for _, leaf in new), tuple(diverged), tuple(dict.fromkeys(unlike)))


def _by_leaf(each: _Set, flat: FlatState) -> tuple[_Numbers, _Numbers, _Numbers]:
    """Of each leaf of a set the digest of all its bytes, its order in memory, and whether it is trained."""
    digests = each.comparison.in_full(flat)[each.leaves]
    orders, training = np.zeros_like(digests), np.zeros_like(digests)
    places = [each.leaves.index(leaf) for leaf in each.comparison.large]
    orders[places], training[places] = each.comparison.orders, each.comparison.training
    return digests, orders, training
