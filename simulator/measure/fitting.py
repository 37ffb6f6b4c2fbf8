"""What a stage takes as such, for each byte and for each tensor, from measured checkpoints: least squares of the
relative error, with no part below zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from ..timing.stages import SMALL_LEAF_BYTES


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured checkpoint, by medians over its rounds.

    Attributes:
        ranks: how many.
        share_bytes: of each.
        share_tensors: of each.
        seconds: name -> median of the slowest rank.
    """

    ranks: int
    share_bytes: int
    share_tensors: int
    seconds: Mapping[str, float]


def after(measured: Mapping[str, Sequence[float]], end: str, begin: str) -> float:
    """Median of the seconds from one to the other."""
    return median(one - other for one, other in zip(measured[end], measured[begin], strict=True))


def fit(samples: Sequence[Sample], what: str, *, tensors: bool = True) -> tuple[float, float, float]:
    """(constant in s, s per byte of a share, s per tensor of a share) of a stage.

    On a machine that is busy otherwise the fit may leave nothing for bytes, as if they moved in no time. Then all of
    the time of the largest share is put down to its bytes: a rate that was reached for sure.
    """
    rows = [(1.0, each.share_bytes, each.share_tensors * tensors) for each in samples]
    fitted = _least_squares([each.seconds[what] for each in samples], rows)
    if fitted[1] > 0:
        return fitted
    largest = max(samples, key=lambda each: each.share_bytes)
    per_byte = largest.seconds[what] / largest.share_bytes
    rest = [max(0.0, each.seconds[what] - per_byte * each.share_bytes) for each in samples]
    constant, _, per_tensor = _least_squares(rest, [(1.0, 0.0, count) for _, _, count in rows])
    return constant, per_byte, per_tensor


def fit_planning(samples: Sequence[Sample]) -> tuple[float, float, float]:
    """(constant in s, s per tensor of a share, s besides per tensor above SMALL_LEAF_BYTES) of planning.

    Nothing for bytes, nor of one rank alone for large tensors, which it compares with nobody's: the model has no such
    parts, and what was left to them would be lost.
    """
    rows = [
        (
            1.0,
            each.share_tensors,
            each.share_tensors * (each.ranks > 1 and each.share_bytes > SMALL_LEAF_BYTES * each.share_tensors),
        )
        for each in samples
    ]
    return _least_squares([each.seconds["plan"] for each in samples], rows)


def bytes_and_tensors(samples: Sequence[Sample], what: str, least: float = 0.0) -> tuple[float, float]:
    """(s per byte of a share, s per tensor of a share) of what takes no time as such."""
    rows = [(0.0, each.share_bytes, each.share_tensors) for each in samples]
    known_s = [least * each.share_bytes for each in samples]
    _, per_byte, per_tensor = _least_squares([each.seconds[what] for each in samples], rows, known_s)
    return least + per_byte, per_tensor


def constant_and_tensors(samples: Sequence[Sample], what: str) -> tuple[float, float]:
    """(constant in s, s per tensor of a share) of what takes no time for bytes."""
    rows = [(1.0, 0.0, each.share_tensors) for each in samples]
    constant, _, per_tensor = _least_squares([each.seconds[what] for each in samples], rows)
    return constant, per_tensor


def bytes_beside(samples: Sequence[Sample], what: str, known_s: Sequence[float]) -> float:
    """s per byte of a share of a stage whose other parts are known; at least a quarter of all that was measured."""
    weighed = [
        (each.share_bytes / each.seconds[what], known / each.seconds[what])
        for each, known in zip(samples, known_s, strict=True)
    ]
    fitted = sum(nbytes * (1 - known) for nbytes, known in weighed) / sum(nbytes**2 for nbytes, _ in weighed)
    largest = max(samples, key=lambda each: each.share_bytes)
    return max(fitted, largest.seconds[what] / largest.share_bytes / 4)


def rate(seconds_per_byte: float, ranks: int = 1) -> float:
    """Bytes per second of all ranks together."""
    return ranks / seconds_per_byte if seconds_per_byte > 0 else math.inf


def _least_squares(
    seconds: Sequence[float], rows: Sequence[tuple[float, float, float]], known_s: Sequence[float] = ()
) -> tuple[float, float, float]:
    """The parts of each column."""
    from scipy.optimize import nnls

    target = np.maximum(np.array(seconds), 1e-9)
    left = 1.0 - np.array(known_s) / target if known_s else np.ones(len(target))
    columns = np.array(rows)
    scale = np.maximum(columns.max(axis=0), 1e-300)
    found, _ = nnls(columns / scale / target[:, None], left)
    constant, per_byte, per_tensor = (found / scale).tolist()
    return constant, per_byte, per_tensor
