"""Two small values: whether they are the same, and which items of two runs of values are not."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from deeppart.offline.diff.records import Items, Tolerance
from deeppart.state.tree.paths import id_key, readable
from deeppart.state.tree.runs import describe_leaf_value, run_items, run_kind, same_leaf_value
from deeppart.state.tree.values import same_value

_MISSING = object()


def same_small(a: Any, b: Any, tolerance: Tolerance | None) -> bool:
    """True if two small values that are no runs are the same to the last bit, or numbers of one type within the
    tolerance.
    """
    if type(a) is not type(b):
        return False
    return same_value(a, b) or (tolerance is not None and _is_close(a, b, tolerance))


def _is_close(a: Any, b: Any, tolerance: Tolerance) -> bool:
    if isinstance(a, np.generic):
        if a.dtype != b.dtype or a.dtype.kind not in "iufc":
            return False
        if a.dtype.kind in "iu" or a.dtype.itemsize <= np.dtype(np.float64).itemsize * (1 + (a.dtype.kind == "c")):
            a, b = a.item(), b.item()
    if isinstance(a, bool) or not isinstance(a, (int, float, complex, np.inexact)):
        return False
    if isinstance(a, int):  # exactly, however large
        return bool(abs(a - b) <= Fraction(tolerance.atol) + Fraction(tolerance.rtol) * max(abs(a), abs(b)))
    if a == b or (np.isnan(a) and np.isnan(b)):
        return True
    if not (np.isfinite(a) and np.isfinite(b)):
        return False
    return bool(abs(a - b) <= tolerance.atol + tolerance.rtol * max(abs(a), abs(b)))


def compare_runs(a: Any, b: Any, tolerance: Tolerance | None) -> Items | None:
    """How two runs of one kind differ; None if they do not, but for the order of a dict."""
    if same_leaf_value(a, b):
        return None
    count, first = 0, None
    for unlike in _unlike_items(a, b, (), tolerance):
        count += 1
        first = first or unlike
    if first is None:
        return None
    path, one, other = first
    return Items(count, readable(path), *("nothing" if x is _MISSING else describe_leaf_value(x) for x in (one, other)))


def _unlike_items(
    a: Any, b: Any, path: tuple[Any, ...], tolerance: Tolerance | None
) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """(path, item of a, item of b) of all that differ."""
    if run_kind(a) is None or type(a) is not type(b):
        if not same_small(a, b, tolerance):
            yield path, a, b
        return
    ours, theirs = ({id_key(key): (key, item) for key, item in zip(*run_items(x), strict=True)} for x in (a, b))
    for name, (key, item) in ours.items():
        other = theirs[name][1] if name in theirs else _MISSING
        yield from _unlike_items(item, other, (*path, key), tolerance)
    for name, (key, item) in theirs.items():
        if name not in ours:
            yield (*path, key), _MISSING, item
