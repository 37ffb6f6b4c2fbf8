"""Statistics of a leaf's elements, gathered piece by piece.

Smallest and largest values and counts are exact. Moments are those of a type that holds all values of the elements:
float64, for elements of 8 bytes long double, in which no square of them overflows either. Within a piece they are about
its mean, corrected for what that was rounded by, and pieces are joined as Chan, Golub and LeVeque do (Updating formulae
and a pairwise algorithm for computing sample variances, 1979). So no large mean hides a small deviation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class _Moments:
    """Of real numbers: how many, their mean, and the sum of the squares of deviations from it, as long doubles."""

    count: int = 0
    mean: Any = 0.0
    squares: Any = 0.0

    @classmethod
    def of(cls, values: Numbers) -> _Moments:
        """Those of an array of floats."""
        near = values.mean()  # rounded: what that leaves of the deviations is taken off
        deviations = values - near
        rest = deviations.mean()
        squares = np.longdouble(np.square(deviations).sum()) - values.size * np.square(np.longdouble(rest))
        return cls(values.size, np.longdouble(near) + rest, max(squares, np.longdouble(0)))

    def add(self, other: _Moments) -> None:
        """Take in those of other numbers."""
        if not other.count:
            return
        count, apart = self.count + other.count, other.mean - self.mean
        self.squares += other.squares + apart**2 * (np.longdouble(self.count) * other.count / count)
        self.mean += apart * other.count / count
        self.count = count

    @property
    def variance(self) -> Any:
        """Mean square of the deviations."""
        return self.squares / self.count

    @property
    def mean_square(self) -> Any:
        """Mean square of the numbers."""
        return self.variance + self.mean**2


@dataclass(slots=True)
class Gathering:
    """Statistics under way, of one leaf or of the leaves of several ranks.

    Attributes:
        elements, nans, infinities, zeros, min, max: as of :class:`Stats`.
    """

    elements: int = 0
    nans: int = 0
    infinities: int = 0
    zeros: int = 0
    min: int | float | None = None
    max: int | float | None = None
    #: One for real numbers, two for complex ones.
    _parts: list[_Moments] = field(default_factory=list)

    def take(self, array: Array, kind: LeafType) -> None:
        """Take in a leaf; one that does not consist of numbers is passed over."""
        octets = octets_of(array)
        for piece in pieces(kind):
            found = numbers(octets[piece], kind)
            if found is None:
                return
            with np.errstate(all="ignore"):  # what overflows is told as what it becomes
                self._take(found, np.longdouble if kind.itemsize >= np.dtype(np.float64).itemsize else np.float64)

    def add(self, other: Gathering) -> None:
        """Take in what was gathered elsewhere, of numbers of the same type."""
        self.elements += other.elements
        self.nans += other.nans
        self.infinities += other.infinities
        self.zeros += other.zeros
        self._extend(other.min, other.max)
        self._add_parts(other._parts)

    def result(self) -> Stats:
        """The statistics of all that was taken in."""
        counts = (self.elements, self.nans, self.infinities, self.zeros)
        if not any(part.count for part in self._parts):
            return Stats(*counts, None, None, None, None, None)
        with np.errstate(all="ignore"):
            means = [float(part.mean) for part in self._parts]
            std = float(np.sqrt(sum(part.variance for part in self._parts)))
            rms = float(np.sqrt(sum(part.mean_square for part in self._parts)))
        mean = means[0] if len(means) == 1 else complex(*means)
        return Stats(*counts, self.min, self.max, mean, std, rms)

    def _take(self, found: Numbers, wide: type[np.floating[Any]]) -> None:
        self.elements += found.size
        self.zeros += found.size - int(np.count_nonzero(found))
        if found.dtype.kind in "fc":
            is_nan, is_finite = np.isnan(found), np.isfinite(found)
            self.nans += int(np.count_nonzero(is_nan))
            self.infinities += int(np.count_nonzero(~is_finite & ~is_nan))
            found = found[is_finite]
        if not found.size:
            return
        if found.dtype.kind != "c":
            of_type = float if found.dtype.kind == "f" else int
            self._extend(of_type(found.min()), of_type(found.max()))
        parts = (found.real, found.imag) if found.dtype.kind == "c" else (found,)
        self._add_parts([_Moments.of(part.astype(wide, copy=False)) for part in parts])

    def _extend(self, least: int | float | None, most: int | float | None) -> None:
        if least is not None:
            self.min = least if self.min is None else min(self.min, least)
        if most is not None:
            self.max = most if self.max is None else max(self.max, most)

    def _add_parts(self, parts: Iterable[_Moments]) -> None:
        for place, part in enumerate(parts):
            if place == len(self._parts):
                self._parts.append(_Moments())
            self._parts[place].add(part)


def has_statistics(kind: LeafType) -> bool:
    """True if the elements of a leaf are numbers."""
    return kind.kind == "torch" or np.dtype(kind.dtype).kind in "biufc"
