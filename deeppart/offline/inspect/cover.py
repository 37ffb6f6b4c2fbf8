"""The check that spans cover leaves exactly once, and the places where they do not. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Fault:
    """Bytes ``[start, stop)`` of a leaf that no span holds (GAP), or that one span too many holds (EXTRA)."""

    leaf: int
    start: int
    stop: int
    kind: str


GAP, EXTRA = "gap", "extra"


def find_faults(sizes: npt.NDArray[np.uint64], spans: Iterable[npt.NDArray[np.void]]) -> list[Fault]:
    """Compare spans with the leaves they should cover."""
    tables = list(spans)
    empty = np.zeros(0, dtype=np.uint64)
    leaf, start, length = (
        np.concatenate([table[name].astype(np.uint64) for table in tables]) if tables else empty
        for name in ("leaf", "start", "length")
    )
    order = np.lexsort((start, leaf))
    leaf, start, stop = leaf[order], start[order], (start + length)[order]
    expected = np.zeros(len(leaf), dtype=np.uint64)
    same = leaf[1:] == leaf[:-1]
    expected[1:][same] = stop[:-1][same]
    suspects = set(leaf[start != expected].tolist()) | set(leaf[leaf >= len(sizes)].tolist())
    known = leaf < len(sizes)
    covered = np.zeros(len(sizes), dtype=np.uint64)
    np.maximum.at(covered, leaf[known].astype(np.int64), stop[known])
    suspects |= set(np.flatnonzero(covered != sizes).tolist())
    faults: list[Fault] = []
    for suspect in sorted(suspects):
        first, last = np.searchsorted(leaf, np.array([suspect, suspect + 1], dtype=np.uint64)).tolist()
        ranges = zip(start[first:last].tolist(), stop[first:last].tolist(), strict=True)
        faults += _leaf_faults(suspect, int(sizes[suspect]) if suspect < len(sizes) else 0, ranges)
    return faults


def _leaf_faults(leaf: int, size: int, ranges: Iterable[tuple[int, int]]) -> list[Fault]:
    """Walk the spans of one leaf, ascending by start."""
    faults: list[Fault] = []
    done = 0
    for start, stop in (*ranges, (size, size)):
        if min(start, size) > done:
            faults.append(Fault(leaf, done, min(start, size), GAP))
        for first, last in ((start, min(done, stop)), (max(start, done, size), stop)):  # held before; behind the end
            if first < last:
                faults.append(Fault(leaf, first, last, EXTRA))
        done = max(done, stop)
    return faults
