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

import numpy as np

from deeppart.errors import StateError
from deeppart.model import LeafSpec
from deeppart.partition.cost import IntArray

_DIGITS = re.compile("[0-9]+")
_TODO = "this is a fault of the code that describes the state; please report it with the state's structure"


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Leaves:
    """Leaves in canonical order: what ``partition`` computes from.

    Made by :meth:`of` from leaf specs, and worth keeping while the state's structure stands; or directly from arrays.

    Attributes:
        nbytes: int64[n], bytes per leaf, >= 0.
        itemsize: int64[n], bytes per element, >= 1.
        depth: int64[n], how many path components a leaf shares with the leaf before it; zeros if left out.
        index: int64[n], what spans call the leaf: its index in the caller's list; 0, 1, 2... if left out.

    Raises:
        StateError: sizes are impossible, or arrays differ in length.

    Example:
        >>> from deeppart.partition import Leaves, LeafSpec
        >>> leaves = Leaves.of([LeafSpec("layer/10", 8), LeafSpec("layer/2", 4)])
        >>> leaves.nbytes.tolist(), leaves.index.tolist()  # layer 2 precedes layer 10
        ([4, 8], [1, 0])
    """

    nbytes: IntArray
    itemsize: IntArray
    depth: IntArray
    index: IntArray

    def __init__(
        self,
        nbytes: IntArray,
        itemsize: IntArray,
        depth: IntArray | None = None,
        index: IntArray | None = None,
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

    def __len__(self) -> int:
        return len(self.nbytes)

    @classmethod
    def of(cls, specs: Sequence[LeafSpec]) -> Leaves:
        """Bring leaf specs into canonical order. O(n log n); about 4 us per leaf.

        Leaves of one path (there should be none) keep the caller's order.

        Args:
            specs: the leaves in any order; ``index`` refers to positions in it.

        Raises:
            StateError: impossible sizes; the message names the path.
        """
        index, depth = _canonical_order([spec.path for spec in specs])
        ordered = [specs[leaf] for leaf in index]
        nbytes = _int64([spec.nbytes for spec in ordered])
        itemsize = _int64([spec.itemsize for spec in ordered])
        _check_sizes(nbytes, itemsize, lambda leaf: ordered[leaf].path)
        return cls(nbytes, itemsize, _int64(depth), _int64(index))

    def without_empty(self) -> Leaves:
        """These leaves less those of zero bytes, which nobody needs to save: they have no spans in any share."""
        if self.nbytes.all():
            return self
        kept = np.flatnonzero(self.nbytes)
        if not len(kept):
            return Leaves(self.nbytes[kept], self.itemsize[kept])
        # Neighbours now share what all the leaves that stood between them shared: the least of their depths.
        since = np.concatenate(([0], kept[:-1] + 1))
        depth = np.minimum.reduceat(self.depth[: kept[-1] + 1], since)
        return Leaves(self.nbytes[kept], self.itemsize[kept], depth, self.index[kept])


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
