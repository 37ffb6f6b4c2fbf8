"""How two arrays, or two small values, of one type differ: bit for bit, or with a tolerance.

Arrays are compared by their bits first, and only what differs in a bit is looked at as numbers. Differences of integers
are exact, however large; floats of less than 64 bits are compared as float64, which holds all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from deeppart.offline.diff.records import ElementDifference, Items, Tolerance
from deeppart.offline.elements import Numbers, bits, count_of, numbers, octets_of, pieces
from deeppart.state.paths import id_key, readable
from deeppart.state.tensors import Array, Bytes, LeafType
from deeppart.state.tree import container_items, container_kind, describe_leaf_value
from deeppart.state.values import same_value

_Mask = npt.NDArray[np.bool_]


def compare_arrays(a: Array, b: Array, kind: LeafType, tolerance: Tolerance | None) -> ElementDifference | None:
    """How two arrays differ; None if they do not, in any bit.

    With a tolerance the result may count no differing element.
    """
    comparing = _Comparing(kind, tolerance)
    octets_a, octets_b = octets_of(a), octets_of(b)
    done = 0
    for piece in pieces(kind):
        bits_a, bits_b = bits(octets_a[piece], kind), bits(octets_b[piece], kind)
        unlike = bits_a != bits_b
        places = np.flatnonzero(unlike if unlike.ndim == 1 else unlike.any(axis=1))
        if len(places):
            comparing.take(octets_a[piece], octets_b[piece], places, done)
        done += len(bits_a)
    return comparing.result()


class _Comparing:
    """The comparison of one pair under way."""

    def __init__(self, kind: LeafType, tolerance: Tolerance | None) -> None:
        self._kind, self._tolerance = kind, tolerance
        self._differing = self._unlike = self._equal = self._nans_a = self._nans_b = 0
        self._absolute: int | float | None = None
        self._relative: float | None = None
        #: Number of an element in C order, and what it is in both.
        self._worst: tuple[int, Any, Any] | None = None

    def take(self, octets_a: Bytes, octets_b: Bytes, places: npt.NDArray[np.int64], before: int) -> None:
        """Take in those elements of a piece that differ in a bit."""
        self._unlike += len(places)
        x, y = numbers(octets_a, self._kind), numbers(octets_b, self._kind)
        if x is None or y is None:
            self._differing += len(places)
            if self._worst is None:
                place, dtype = int(places[0]), np.dtype(self._kind.dtype)
                self._worst = before + place, octets_a.view(dtype)[place], octets_b.view(dtype)[place]
            return
        x, y = x[places], y[places]
        with np.errstate(all="ignore"):
            same, nan_a, nan_b, absolute, relative, scale = _apart(x, y)
            self._equal += int(np.count_nonzero(same))
            counts = np.ones(len(places), dtype=np.bool_)
            if self._tolerance is not None:
                counts = ~same & ~self._is_close(absolute, scale)
        self._differing += int(np.count_nonzero(counts))
        self._nans_a += int(np.count_nonzero(nan_a))
        self._nans_b += int(np.count_nonzero(nan_b))
        measured = counts & ~same & ~nan_a & ~nan_b
        if measured.any():
            furthest = int(np.flatnonzero(measured)[absolute[measured].argmax()])
            most = int(absolute[furthest]) if absolute.dtype.kind == "u" else float(absolute[furthest])
            if self._absolute is None or most > self._absolute:
                self._absolute, self._worst = most, (before + int(places[furthest]), x[furthest], y[furthest])
            self._relative = max(self._relative or 0.0, float(relative[measured].max()))
        if self._worst is None and counts.any():
            first = int(counts.argmax())
            self._worst = before + int(places[first]), x[first], y[first]

    def _is_close(self, absolute: Numbers, scale: Numbers) -> _Mask:
        assert self._tolerance is not None
        most = self._tolerance.atol + self._tolerance.rtol * scale
        close: _Mask = (absolute <= most) & np.isfinite(scale)
        return close

    def result(self) -> ElementDifference | None:
        """How the two differ; None if they do not."""
        if not self._unlike:
            return None
        elements = count_of(self._kind)
        place, a, b = self._worst or (0, None, None)
        per_item = elements // max(1, self._kind.nbytes // self._kind.itemsize)
        index = tuple(map(int, np.unravel_index(place // per_item, self._kind.shape)))
        counts = (elements, self._differing, self._unlike, self._equal, self._nans_a, self._nans_b)
        return ElementDifference(*counts, self._absolute, self._relative, index, _item(a), _item(b))


def _apart(x: Numbers, y: Numbers) -> tuple[_Mask, _Mask, _Mask, Numbers, Numbers, Numbers]:
    """Of elements that differ in a bit: which are the same number all the same, and which are NaN in x or in y only;
    how far they are apart, also relative to the larger of the two, and this.
    """
    if x.dtype.kind in "biu":
        none = np.zeros(len(x), dtype=np.bool_)
        absolute = _exactly_apart(x, y)
        scale = np.maximum(np.abs(x.astype(np.float64)), np.abs(y.astype(np.float64)))
        return x == y, none, none, absolute, absolute / np.maximum(scale, 1.0), scale
    nan_x, nan_y = np.isnan(x), np.isnan(y)
    absolute, scale = np.abs(x - y), np.maximum(np.abs(x), np.abs(y))
    absolute[np.isnan(absolute)] = np.inf  # infinities less each other, of complex numbers; of NaNs nobody asks
    relative = np.where(np.isfinite(absolute), absolute / scale, np.inf)
    too_far = np.isinf(absolute) & np.isfinite(scale)  # for this type, but not for their quotient
    relative[too_far] = np.abs(x[too_far] / scale[too_far] - y[too_far] / scale[too_far])
    return (x == y) | (nan_x & nan_y), nan_x & ~nan_y, nan_y & ~nan_x, absolute, relative, scale


def _exactly_apart(x: Numbers, y: Numbers) -> npt.NDArray[np.uint64]:
    """Distances of integers, all of which 64 bits hold."""
    wide = np.uint64 if x.dtype.kind in "bu" else np.int64
    larger, smaller = np.maximum(x, y).astype(wide), np.minimum(x, y).astype(wide)
    return larger.view(np.uint64) - smaller.view(np.uint64)  # modulo 2^64, as C computes


def _item(element: Any) -> Any:
    """An element as a Python number; a text, a time or a long double stays numpy's."""
    if isinstance(element, (np.bool_, np.integer, np.float64, np.complex128)):
        return element.item()
    return element


_MISSING = object()


def same_small(a: Any, b: Any, tolerance: Tolerance | None) -> bool:
    """True if two small values that are no containers are the same to the last bit, or numbers of one type within the
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
    """How two value containers of one kind differ; None if they do not, but for the order of a dict."""
    if same_value(a, b):
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
    if container_kind(a) is None or type(a) is not type(b):
        if not same_small(a, b, tolerance):
            yield path, a, b
        return
    ours, theirs = ({id_key(key): (key, item) for key, item in zip(*container_items(x), strict=True)} for x in (a, b))
    for name, (key, item) in ours.items():
        other = theirs[name][1] if name in theirs else _MISSING
        yield from _unlike_items(item, other, (*path, key), tolerance)
    for name, (key, item) in theirs.items():
        if name not in ours:
            yield (*path, key), _MISSING, item
