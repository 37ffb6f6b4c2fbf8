"""Statistics of the elements of one leaf.

Smallest and largest values and counts are exact. Mean and deviation are those of a type that holds all values of the
elements: float64, for elements of 8 bytes long double, in which no square of them overflows either. The deviation is
computed about the mean, so no large mean hides a small one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from deeppart.offline.elements import Numbers, numbers, octets_of, pieces
from deeppart.state.tensors import Array, LeafType

Number = int | float | complex


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of numbers. Those from ``min`` on are of the finite ones, and None where there are none.

    Attributes:
        elements: how many numbers.
        nans: how many of them are NaN; of complex ones: in either part.
        infinities: how many are infinite, and not NaN.
        zeros: how many are 0, of either sign.
        min, max: smallest and largest; None for complex numbers, which have no order.
        mean: arithmetic mean.
        std: standard deviation, of the elements themselves: divided by their number.
        rms: root of the mean square.
    """

    elements: int
    nans: int
    infinities: int
    zeros: int
    min: int | float | None
    max: int | float | None
    mean: Number | None
    std: float | None
    rms: float | None


def statistics(array: Array, kind: LeafType) -> Stats | None:
    """Those of a leaf; None if it does not consist of numbers."""
    if kind.kind != "torch" and np.dtype(kind.dtype).kind not in "biufc":
        return None
    wide: Any = np.longdouble if kind.itemsize >= np.dtype(np.float64).itemsize else np.float64
    nans = infinities = zeros = count = elements = 0
    least: Any = None
    most: Any = None
    total, rest, squares = np.zeros((3, 2), np.longdouble)  # of real and imaginary parts
    with np.errstate(all="ignore"):  # an overflow is shown as the infinity that it gives
        for found in _numbers(array, kind):
            elements += found.size
            zeros += found.size - int(np.count_nonzero(found))
            nans += int(np.count_nonzero(np.isnan(found)))
            infinities += int(np.count_nonzero(np.isinf(found) & ~np.isnan(found)))
            finite = found[np.isfinite(found)]
            count += finite.size
            total += [part.astype(wide, copy=False).sum() for part in (finite.real, finite.imag)]
            if finite.size and finite.dtype.kind != "c":
                least = finite.min() if least is None else min(least, finite.min())
                most = finite.max() if most is None else max(most, finite.max())
        if not count:
            return Stats(elements, nans, infinities, zeros, None, None, None, None, None)
        mean = total / count
        for found in _numbers(array, kind):
            finite = found[np.isfinite(found)]
            for place, part in enumerate((finite.real, finite.imag)):
                deviations = part.astype(wide, copy=False) - mean[place].astype(wide)
                squares[place] += np.square(deviations).sum()
                rest[place] += deviations.sum()  # what rounding the mean leaves of them
        variance = np.maximum(squares / count - np.square(rest / count), 0).sum()
        spread = float(np.sqrt(variance)), float(np.sqrt(variance + np.square(mean).sum()))
    if least is None:
        return Stats(elements, nans, infinities, zeros, None, None, complex(*mean), *spread)
    of_type = float if np.asarray(least).dtype.kind == "f" else int
    return Stats(elements, nans, infinities, zeros, of_type(least), of_type(most), float(mean[0]), *spread)


def _numbers(array: Array, kind: LeafType) -> Iterator[Numbers]:
    """The elements, piece by piece."""
    octets = octets_of(array)
    for piece in pieces(kind):
        found = numbers(octets[piece], kind)
        assert found is not None, kind
        yield found
