"""The order of the samples of an epoch: any part of it, without making the whole. Pure.

A permutation of n places that is a function of (seed, epoch, pass) alone, so that every rank of a job, and of the job
that goes on after it on any number of ranks, has the same one; with any version of torch and numpy, too, neither of
which promises that for its own.

Up to 65,536 samples are sorted by a keyed bijection of 64-bit numbers. Of more, the cost and the memory are those of
the part that is asked for: an epoch of 10^12 samples begins at once. That is a Feistel network over Z_a x Z_b with
a b >= n, which is walked through once more where it leaves the n places (J. Black, P. Rogaway, "Ciphers with arbitrary
finite domains", CT-RSA 2002, section 4). Both mix with SplitMix64's finalizer (G. Steele, D. Lea, C. Flood, OOPSLA
2014).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

#: Of the way in which places are permuted. Checkpoints name it: another one would give samples twice.
VERSION = 1
#: Number of possible positions.
MOST_PLACES = 1 << 62
#: Up to so many are sorted: a network of so few places would prefer some orders.
_SORTED = 1 << 16
_ROUNDS = 10
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def permuted(places: Int64s, length: int, seed: int, epoch: int, number: int = 0) -> Int64s:
    """The samples at some places of an epoch's order.

    Args:
        places: int64[k], of 0 to length - 1.
        length: how many samples there are, up to 2^62.
        seed: any integer; of it, the last 64 bits count.
        epoch: from 0 on.
        number: of the pass in the epoch, from 0 on.

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
    if length <= _SORTED:
        return _order(length, _state(seed, epoch, number))[places]
    found = places.astype(np.uint64)
    rows = math.isqrt(length - 1) + 1
    columns = -(-length // rows)
    keys = _round_keys(_state(seed, epoch, number))
    outside = np.arange(found.size)
    while outside.size:
        found[outside] = _through_network(found[outside], rows, columns, keys)
        outside = outside[found[outside] >= length]
    return found.astype(np.int64)


def _through_network(values: UInt64s, rows: int, columns: int, keys: list[int]) -> UInt64s:
    """Every value below rows * columns, to another such value."""
    a, b = np.uint64(rows), np.uint64(columns)
    row, column = values // b, values % b
    for number, key in enumerate(keys):
        if number % 2:
            row = (row + _mixed(column, key) % a) % a
        else:
            column = (column + _mixed(row, key) % b) % b
    return row * b + column


def _mixed(values: UInt64s, key: int) -> UInt64s:
    """SplitMix64's finalizer; overflow is meant."""
    mixed = (values + np.uint64(key)) * np.uint64(_GOLDEN)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@lru_cache(maxsize=4)
def _order(length: int, state: int) -> Int64s:
    """All of a short order. Different numbers stay different when they are mixed, so there are no ties."""
    mixed = _mixed(_mixed(np.arange(length, dtype=np.uint64), state), state >> 1)
    order = np.argsort(mixed, kind="stable")
    order.flags.writeable = False
    return order


def _state(seed: int, epoch: int, number: int) -> int:
    state = 0
    for part in (seed, epoch, number):
        state = int(_mixed(np.array([(state ^ part) & _MASK], np.uint64), _GOLDEN)[0])
    return state


def _round_keys(state: int) -> list[int]:
    counters = np.arange(1, _ROUNDS + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    return [int(key) for key in _mixed(counters, state)]
