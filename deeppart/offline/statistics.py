"""Statistics of the elements of one leaf.

Counts, smallest and largest values are exact. Mean and deviation are computed in float64, and in long double for
elements of 8 bytes, whose squares do not overflow in it. The deviation is computed about the mean, so a large mean does
not hide a small deviation.
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
    """Statistics of numbers. ``min`` and the following are those of the finite numbers, or None if there are none.

    Attributes:
        elements: count of all numbers.
        nans: count of NaNs; for complex numbers, in either part.
        infinities: count of infinite numbers without NaNs.
        zeros: count of zeros of either sign.
        min, max: smallest and largest; None for complex numbers, which have no order.
        mean: arithmetic mean.
        std: population standard deviation.
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
    """The statistics of a leaf; None if it does not consist of numbers."""
    if kind.kind != "torch" and np.dtype(kind.dtype).kind not in "biufc":
        return None
    wide: Any = np.longdouble if kind.itemsize >= np.dtype(np.float64).itemsize else np.float64
    nans = infinities = zeros = count = elements = 0
    least: Any = None
    most: Any = None
    total, rest, squares = np.zeros((3, 2), np.longdouble)  # for real and imaginary parts
    with np.errstate(all="ignore"):  # an overflow becomes infinity
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
                rest[place] += deviations.sum()  # 0 but for the rounding of the mean
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
