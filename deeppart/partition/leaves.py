"""The leaves in canonical order, as arrays: the same whatever order the caller's dicts had.

Canonical order is that of the paths, component by component, with runs of digits in numeric order, so that layer 2
precedes layer 10. A path's components are separated by ``/``; dots separate too, because the keys of a module's
``state_dict()`` (``encoder.layer.3.attn.weight``) carry its nesting in dots. That only guides where cuts fall: spans
refer to leaves by index, never by path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from deeppart.errors import StateError
from deeppart.model import LeafSpec
from deeppart.partition.cost import IntArray

_DIGITS = re.compile("[0-9]+")
_TODO = "this is a fault of the code that describes the state; please report it with the state's structure"


class ReplicaSet(NamedTuple):
    """A run of ``leaves`` leaves that the same ``ranks`` hold identically, ascending; None means every rank.

    Attributes:
        ranks: the ranks that have a copy.
        leaves: how many leaves.

    Example:
        >>> from deeppart.partition import Leaves, LeafSpec
        >>> Leaves.of([LeafSpec("a", 8), LeafSpec("b", 8, replicas=(0, 1))], ranks=4).sets
        (ReplicaSet(ranks=(0, 1), leaves=1), ReplicaSet(ranks=None, leaves=1))
    """

    ranks: tuple[int, ...] | None
    leaves: int


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Leaves:
    """Leaves in canonical order, replica set by replica set: what ``partition`` computes from.

    Made by :meth:`of` from leaf specs, and worth keeping while the state's structure stands; or directly from arrays.

    Attributes:
        nbytes: int64[n], bytes per leaf, >= 0.
        itemsize: int64[n], bytes per element, >= 1.
        depth: int64[n], how many path components a leaf shares with the leaf before it; zeros if left out.
        index: int64[n], what spans call the leaf: its index in the caller's list; 0, 1, 2... if left out.
        sets: the replica sets, smallest first, covering the leaves in order; one set of every rank if left out.

    Raises:
        StateError: sizes are impossible, or arrays differ in length.

    Example:
        >>> from deeppart.partition import Leaves, LeafSpec
        >>> leaves = Leaves.of([LeafSpec("layer/10", 8), LeafSpec("layer/2", 4)], ranks=2)
        >>> leaves.nbytes.tolist(), leaves.index.tolist()  # layer 2 precedes layer 10
        ([4, 8], [1, 0])
    """

    nbytes: IntArray
    itemsize: IntArray
    depth: IntArray
    index: IntArray
    sets: tuple[ReplicaSet, ...]

    def __init__(
        self,
        nbytes: IntArray,
        itemsize: IntArray,
        depth: IntArray | None = None,
        index: IntArray | None = None,
        sets: tuple[ReplicaSet, ...] | None = None,
    ) -> None:
        count = len(nbytes)
        given = {
            "nbytes": nbytes,
            "itemsize": itemsize,
            "depth": np.zeros(count, dtype=np.int64) if depth is None else depth,
            "index": np.arange(count, dtype=np.int64) if index is None else index,
        }
        for name, values in given.items():
            array = np.asarray(values)
            if array.shape != (count,) or (count and array.dtype.kind not in "iu"):
                raise StateError(
                    f"the leaves' {name} is not an integer array of one entry per leaf",
                    expected=f"shape ({count},), an integer dtype",
                    found=f"shape {array.shape}, {array.dtype}",
                    where="deeppart.partition.Leaves",
                    todo=_TODO,
                )
            object.__setattr__(self, name, array.astype(np.int64))
        _check_sizes(self.nbytes, self.itemsize, lambda leaf: f"leaf {int(given['index'][leaf])}")
        object.__setattr__(self, "sets", (ReplicaSet(None, count),) if sets is None else sets)
        if sum(replicas.leaves for replicas in self.sets) != count:
            raise StateError(
                "the replica sets do not cover the leaves",
                expected=f"{count} leaves",
                found=f"{sum(replicas.leaves for replicas in self.sets)} leaves in {len(self.sets)} sets",
                where="deeppart.partition.Leaves",
                todo=_TODO,
            )

    def __len__(self) -> int:
        return len(self.nbytes)

    @classmethod
    def of(cls, specs: Sequence[LeafSpec], ranks: int) -> Leaves:
        """Bring leaf specs into canonical order. O(n log n); about 4 us per leaf.

        Leaves of one path (there should be none) keep the caller's order. A replica set of all ranks is the world.

        Args:
            specs: the leaves in any order; ``index`` refers to positions in it.
            ranks: size of the world that ``replicas`` refer to.

        Raises:
            StateError: impossible sizes or replica sets; the message names the path.
        """
        sets = _by_replica_set(specs, ranks)
        index: list[int] = []
        depth: list[int] = []
        for members in sets.values():
            order, shared = _canonical_order([specs[leaf].path for leaf in members])
            index += [members[position] for position in order]
            depth += shared
        ordered = [specs[leaf] for leaf in index]
        nbytes = _int64([spec.nbytes for spec in ordered])
        itemsize = _int64([spec.itemsize for spec in ordered])
        _check_sizes(nbytes, itemsize, lambda leaf: ordered[leaf].path)
        runs = tuple(ReplicaSet(replicas, len(members)) for replicas, members in sets.items())
        return cls(nbytes, itemsize, _int64(depth), _int64(index), runs)

    def without_empty(self) -> Leaves:
        """These leaves less those of zero bytes, which nobody needs to save: they have no spans in any share."""
        if self.nbytes.all():
            return self
        kept = np.flatnonzero(self.nbytes)
        ends = np.cumsum([replicas.leaves for replicas in self.sets])
        counts = np.bincount(np.searchsorted(ends, kept, side="right"), minlength=len(self.sets))
        sets = tuple(ReplicaSet(run.ranks, count) for run, count in zip(self.sets, counts.tolist(), strict=True))
        if not len(kept):
            return Leaves(self.nbytes[kept], self.itemsize[kept], sets=sets)
        # Neighbours now share what all the leaves that stood between them shared: the least of their depths.
        since = np.concatenate(([0], kept[:-1] + 1))
        depth = np.minimum.reduceat(self.depth[: kept[-1] + 1], since)
        return Leaves(self.nbytes[kept], self.itemsize[kept], depth, self.index[kept], sets)


def check_replicas(replicas: tuple[int, ...], ranks: int, where: str) -> IntArray:
    """A replica set as an array."""
    members = np.asarray(replicas)
    ok = members.ndim == 1 and members.size > 0 and members.dtype.kind == "i"
    ok = ok and 0 <= int(members[0]) and int(members[-1]) < ranks and bool((members[1:] > members[:-1]).all())
    if not ok:
        shown = repr(replicas) if len(repr(replicas)) <= 80 else repr(replicas)[:77] + "..."
        raise StateError(
            "a leaf's replica set is impossible",
            expected=f"at least one rank, ascending, each once, within 0..{ranks - 1}",
            found=shown,
            where=where,
            todo=_TODO,
        )
    return members.astype(np.int64)


def _by_replica_set(specs: Sequence[LeafSpec], ranks: int) -> dict[tuple[int, ...] | None, list[int]]:
    """The leaves' indices by replica set, smaller sets first, the world last."""
    found: dict[tuple[int, ...] | None, list[int]] = {None: []}
    # Hashing a large tuple is slow and is repeated each time; the same object is recognized without.
    known: dict[int, list[int]] = {id(None): found[None]}
    for leaf, spec in enumerate(specs):
        members = known.get(id(spec.replicas))
        if members is None:
            replicas = spec.replicas
            if replicas is not None and replicas not in found:
                check_replicas(replicas, ranks, spec.path)
                found[replicas] = found[None] if len(replicas) == ranks else []
            members = known[id(replicas)] = found[replicas]
        members.append(leaf)
    proper = sorted((s for s in found if s is not None and len(s) < ranks), key=lambda s: (len(s), s))
    return {**{replicas: found[replicas] for replicas in proper}, None: found[None]}


class _Natural(dict[str, str]):
    """Path component -> a string that compares in natural order; components repeat so often that it pays to keep."""

    def __missing__(self, component: str) -> str:
        key = self[component] = _DIGITS.sub(_digits_key, component)
        return key


def _digits_key(run: re.Match[str]) -> str:
    """Digits led by a control character for their number, so that fewer digits come first and before any letter."""
    digits = run.group().lstrip("0") or "0"
    return chr(1 + min(len(digits), 30)) + digits


def _canonical_order(paths: list[str]) -> tuple[list[int], list[int]]:
    """The order of the paths, and for each in that order how many components it shares with the one before."""
    natural = _Natural()
    parts = [[natural[name] for name in path.replace(".", "/").split("/")] for path in paths]
    # NUL sorts before all else, so that comparing the joined strings compares component by component.
    keys = ["\0".join(names) for names in parts]
    order = sorted(range(len(paths)), key=keys.__getitem__)
    if len(frozenset(keys)) < len(keys):  # "a/b" beside "a.b", "07" beside "7": the paths themselves decide
        order.sort(key=lambda leaf: (keys[leaf], paths[leaf], leaf))
    shared = [_shared(parts[one], parts[other]) for one, other in pairwise(order)]
    return order, [0, *shared] if order else []


def _shared(one: list[str], other: list[str]) -> int:
    """The number of leading components that two paths have in common."""
    depth = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        depth += 1
    return depth


def _int64(values: list[int]) -> IntArray:
    """Exact int64, or an error where one does not fit."""
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        raise StateError(
            "a leaf's size is beyond what a file can hold",
            expected="below 2**63 bytes",
            found=f"{max(values, key=abs)} bytes",
            where="leaves",
            todo=_TODO,
        ) from None


def _check_sizes(nbytes: IntArray, itemsize: IntArray, name: Callable[[int], str]) -> None:
    """Raise StateError for the first leaf whose sizes are impossible."""
    bad = (nbytes < 0) | (itemsize < 1)
    bad |= nbytes % np.where(itemsize < 1, 1, itemsize) != 0
    if bad.any():
        leaf = int(np.argmax(bad))
        raise StateError(
            "a leaf's size is impossible",
            expected="nbytes >= 0 and a multiple of itemsize >= 1",
            found=f"nbytes={int(nbytes[leaf])}, itemsize={int(itemsize[leaf])}",
            where=name(leaf),
            todo=_TODO,
        )
