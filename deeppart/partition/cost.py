"""The cost of a share, and the cost line that leaves form.

``cost = bytes + kappa * spans``, in whole bytes. Serialization time depends on both: a span costs Python calls, a copy
launched and an entry in the part's index, however few bytes it has. kappa says how many bytes could have been copied
in that time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deeppart.errors import ConfigError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

#: Bytes that cost as much as one more span, by default: seconds per tiny tensor for which training waits, times the
#: bytes/s of one large copy on one core. An EPYC with fast memory takes 0.8 to 1.3 us at 17 to 20 GB/s, 15 to 26 kB
#: (``benchmarks/kappa.py``); slower ones take 7 to 8 KiB (docs/benchmarks.md).
DEFAULT_KAPPA_BYTES = 16384
#: See :func:`usual_kappa`.
_MOST_OF_A_MEAN_LEAF = 0.08

#: Sums of costs stay below this, so that no int64 sum of them, nor a sum plus a tolerance, can wrap. 4.6 exabytes.
LARGEST_TOTAL = 2**62


def whole_kappa(kappa: float) -> int:
    """kappa as whole bytes, rounded to the nearest, so that all arithmetic on the line is exact.

    Raises:
        ConfigError: it is no finite number of bytes from 0 on.
    """
    try:
        good = math.isfinite(kappa) and 0 <= kappa < LARGEST_TOTAL
    except TypeError:
        good = False
    if not good:
        raise ConfigError(
            "kappa is not a possible cost of one span",
            expected="bytes per span, finite and >= 0",
            found=repr(kappa),
            where="partition(kappa=...)",
            todo="leave kappa out, or measure it: seconds per tiny tensor x bytes per second of a large copy",
        )
    return round(kappa)


def usual_kappa(nbytes: IntArray) -> int:
    """The default cost of a span: at most 8 % of the leaves' mean size.

    So bytes are balanced, too: no rank has more than ``1.01 * (mean + kappa * leaves / ranks)`` of them, which is at
    most 1.0908 times the mean (of one set, without a preload; plus an element if the mean is below 100 of them).

    Args:
        nbytes: int64[n], of the leaves to be divided.
    """
    return usual_kappa_of(float(nbytes.sum(dtype=np.float64)), len(nbytes))


def usual_kappa_of(nbytes: float, leaves: int) -> int:
    """As :func:`usual_kappa`, in bytes, of ``leaves`` leaves with ``nbytes`` bytes in all."""
    if not leaves:
        return DEFAULT_KAPPA_BYTES
    return min(DEFAULT_KAPPA_BYTES, int(_MOST_OF_A_MEAN_LEAF * float(nbytes) / leaves))


@dataclass(frozen=True, slots=True, eq=False)
class CostLine:
    """Leaves in canonical order, where leaf i takes ``kappa + nbytes[i]``.

    Attributes:
        nbytes: int64[n], > 0 (a leaf without bytes needs no owner and is not on the line).
        itemsize: int64[n], >= 1.
        depth: int64[n + 1]; path components that the leaves on both sides of boundary i share. The line's ends are 0.
            The lower it is, the more significant is the sub-collection that ends there.
        kappa: cost of a span in bytes.
        start: int64[n + 1]; where leaf i begins on the line, and last the line's length.
    """

    nbytes: IntArray
    itemsize: IntArray
    depth: IntArray
    kappa: int
    start: IntArray

    @classmethod
    def of(cls, nbytes: IntArray, itemsize: IntArray, depth: IntArray, kappa: int) -> CostLine:
        """Lay out leaves; ``depth`` is int64[n], shared components of leaf i and leaf i - 1."""
        start = np.zeros(len(nbytes) + 1, dtype=np.int64)
        np.cumsum(nbytes + kappa, out=start[1:])
        ends = np.zeros(len(nbytes) + 1, dtype=np.int64)
        ends[1:-1] = depth[1:]
        return cls(nbytes, itemsize, ends, kappa, start)

    @property
    def total(self) -> int:
        """Cost of all leaves when none is split."""
        return int(self.start[-1])


@dataclass(frozen=True, slots=True, eq=False)
class Cuts:
    """The cuts between shares: the k-th rank has everything from cut k to cut k + 1.

    Attributes:
        leaf: int64[ranks + 1], ascending from 0 to n: index of the leaf in or before which the cut is.
        offset: int64[ranks + 1]; bytes of that leaf before the cut, 0 <= offset < nbytes, a multiple of the itemsize.
        order: int64[n]; the line's leaves in the order the cuts refer to, or None when that is the line's own.
    """

    leaf: IntArray
    offset: IntArray
    order: IntArray | None = None
