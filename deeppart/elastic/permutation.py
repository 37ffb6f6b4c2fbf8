"""The order of samples in an epoch, of which any part is computed without the rest. Pure.

The permutation is a function of (seed, epoch, pass) alone, so it is the same on every rank, on any number of ranks, and
with any version of torch and numpy, which do not promise this for their own permutations.

Up to 65,536 samples are sorted by a keyed bijection of 64-bit numbers. For more, time and memory are proportional to
the requested part: a Feistel network over Z_a x Z_b with a b >= n, with cycle walking for results outside of the n
values (J. Black, P. Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, section 4). Both mix with
SplitMix64's finalizer (G. Steele, D. Lea, C. Flood, OOPSLA 2014).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

#: Version of the permutation, stored in checkpoints: with another one samples would be repeated or skipped.
VERSION = 1
MAX_LENGTH = 1 << 62
#: Longest order that is sorted; a network over so few values would be visibly biased.
_MAX_SORTED = 1 << 16
_ROUNDS = 10
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def permuted(places: Int64s, length: int, seed: int, epoch: int, number: int = 0) -> Int64s:
    """The samples at some positions of an epoch's order.

    Args:
        places: int64[k], positions from 0 to length - 1.
        length: number of samples, at most 2^62.
        seed: any integer, of which the last 64 bits are used.
        epoch: from 0.
        number: pass within the epoch, from 0.

    Returns:
        int64[k].

    Example:
        >>> import numpy as np
        >>> from deeppart.elastic.permutation import permuted
        >>> permuted(np.arange(6), 6, seed=1, epoch=0).tolist()
        [0, 1, 4, 5, 3, 2]
        >>> permuted(np.array([2]), 6, seed=1, epoch=0).tolist()
        [4]
    """
    key = 0
    for part in (seed, epoch, number):
        key = int(_mix(np.array([(key ^ part) & _MASK], np.uint64), _GOLDEN)[0])
    if length <= _MAX_SORTED:
        return _sorted_order(length, key)[places]
    values = places.astype(np.uint64)
    rows = math.isqrt(length - 1) + 1
    columns = -(-length // rows)
    counters = np.arange(1, _ROUNDS + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    round_keys = [int(each) for each in _mix(counters, key)]
    outside = np.arange(values.size)
    while outside.size:
        values[outside] = _feistel(values[outside], rows, columns, round_keys)
        outside = outside[values[outside] >= length]
    return values.astype(np.int64)


def _feistel(values: UInt64s, rows: int, columns: int, round_keys: list[int]) -> UInt64s:
    """A bijection of the values below rows * columns."""
    a, b = np.uint64(rows), np.uint64(columns)
    row, column = values // b, values % b
    for number, key in enumerate(round_keys):
        if number % 2:
            row = (row + _mix(column, key) % a) % a
        else:
            column = (column + _mix(row, key) % b) % b
    return row * b + column


def _mix(values: UInt64s, key: int) -> UInt64s:
    """SplitMix64's finalizer, in arithmetic modulo 2^64."""
    mixed = (values + np.uint64(key)) * np.uint64(_GOLDEN)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@lru_cache(maxsize=4)
def _sorted_order(length: int, key: int) -> Int64s:
    """The whole order of a short epoch; mixing is a bijection, so there are no ties."""
    mixed = _mix(_mix(np.arange(length, dtype=np.uint64), key), key >> 1)
    order = np.argsort(mixed, kind="stable")
    order.flags.writeable = False
    return order
