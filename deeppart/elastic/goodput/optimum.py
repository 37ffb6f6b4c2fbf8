"""The batch size and accumulation with which a job of a given size learns fastest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from deeppart.elastic.goodput.model import Goodput
from deeppart.errors import ConfigError

#: A batch is only changed for more additional goodput than this: frequent changes are hard to reason about.
WORTHWHILE = 0.05
#: Batch sizes compared, from the smallest to the largest, in equal ratios.
_COMPARED = 50
#: Tolerance for quotients of floats that are rounded up.
_CLOSE = 1e-8

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The allowed batches.

    Attributes:
        batch: the batch that the training was tuned for, which is the smallest, if that many ranks can share it.
        most_batch: largest batch of all ranks together.
        most_local: samples that a rank can compute at a time, limited by its memory.
        least_local: least samples per rank.
        accumulate: true if a step may have several micro-batches.

    Raises:
        ConfigError: they allow no batch.

    Example:
        >>> from deeppart.elastic.goodput import Bounds
        >>> Bounds(batch=128, most_batch=4096, most_local=512)
        Bounds(batch=128, most_batch=4096, most_local=512, least_local=1, accumulate=True)
    """

    batch: int
    most_batch: int
    most_local: int
    least_local: int = 1
    accumulate: bool = True

    def __post_init__(self) -> None:
        if not (1 <= self.batch <= self.most_batch and 1 <= self.least_local <= self.most_local):
            raise ConfigError(
                "these bounds leave no batch",
                expected="1 <= batch <= most_batch and 1 <= least_local <= most_local",
                found=repr(self),
            )


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a job of some size.

    Attributes:
        batch: samples of all ranks together.
        local_batch: samples of a rank's largest micro-batch.
        accumulation: micro-batches before the last one.
        goodput: expected useful samples per second.
    """

    batch: int
    local_batch: int
    accumulation: int
    goodput: float


class Steps(NamedTuple):
    """Steps of several sizes, as arrays; goodput is 0 if no batch is allowed."""

    batch: Ints
    local_batch: Ints
    accumulation: Ints
    goodput: Floats


def best_steps(goodput: Goodput, nodes: Ints, ranks: Ints, bounds: Bounds) -> Steps:
    """The best step of each of several sizes.

    A single rank with more than the original batch accumulates: the gradient noise is estimated from the differences of
    at least two micro-batches (Pollux, section 3.1).
    """
    ranks = np.asarray(ranks, dtype=np.int64)
    least = np.minimum(np.maximum(bounds.batch, bounds.least_local * ranks), bounds.most_batch)
    sizes = np.geomspace(least, bounds.most_batch, _COMPARED)
    local, accumulation = _divided(sizes / ranks, ranks, bounds)
    count = ranks * (accumulation + 1)
    batch = np.minimum(local * count, bounds.most_batch)
    local = np.ceil(batch / count - _CLOSE).astype(np.int64)
    found = goodput.of_batch(nodes, ranks, batch, local, accumulation)
    fits = (bounds.least_local <= local) & (local <= bounds.most_local) & (batch >= ranks * (accumulation + 1))
    found = np.where(fits, found, 0.0)
    best = np.argmax(found, axis=0), np.arange(ranks.size)
    return Steps(batch[best], local[best], accumulation[best], found[best])


def best_step(goodput: Goodput, nodes: int, ranks: int, bounds: Bounds) -> Step:
    """The best step of a job of one size.

    Raises:
        ConfigError: no batch is allowed.

    Example:
        >>> from deeppart.elastic.goodput import Bounds, Goodput, GradientNoise, Throughput, best_step
        >>> job = Goodput(Throughput(0.01, 0.001, 0.05, 0.001, 0.02, 0.0, 1.0), GradientNoise(1.0, 30.0, 32))
        >>> best_step(job, nodes=1, ranks=4, bounds=Bounds(32, 1024, most_local=64)).batch
        252
    """
    found = best_steps(goodput, np.array([nodes]), np.array([ranks]), bounds)
    if not found.goodput[0] > 0:
        raise ConfigError(
            "no batch suits this job", expected=repr(bounds), found=f"{ranks} ranks",
            todo="allow more samples in a batch, or in that of a rank, or use fewer ranks",
        )  # fmt: skip
    batch, local, accumulation = (int(values[0]) for values in found[:3])
    return Step(batch, local, accumulation, float(found.goodput[0]))


def fixed_step(goodput: Goodput, nodes: int, ranks: int, batch: int, bounds: Bounds) -> Step:
    """The step for a given batch: as few micro-batches as the bounds allow."""
    local, accumulation = _divided(np.array([batch / ranks]), np.array([ranks]), bounds)
    found = float(goodput.of_batch(nodes, ranks, batch, int(local[0]), int(accumulation[0])))
    return Step(batch, int(local[0]), int(accumulation[0]), found)


def better_step(goodput: Goodput, nodes: int, ranks: int, bounds: Bounds, now: int) -> Step:
    """The best step if it has more than 5 % more goodput than the current batch, otherwise that of the current batch.

    Args:
        now: samples of all ranks together.
    """
    kept, best = fixed_step(goodput, nodes, ranks, now, bounds), best_step(goodput, nodes, ranks, bounds)
    possible = bounds.least_local <= kept.local_batch <= bounds.most_local and now <= bounds.most_batch
    return best if not possible or best.goodput > kept.goodput * (1 + WORTHWHILE) else kept


def _divided(per_rank: Floats, ranks: Ints, bounds: Bounds) -> tuple[Ints, Ints]:
    """(samples of a micro-batch, micro-batches before the last one) for a number of samples per rank."""
    accumulation = np.ceil(per_rank / bounds.most_local - _CLOSE) - 1
    alone = (ranks == 1) & (per_rank > bounds.batch + _CLOSE)
    accumulation = np.where(alone, np.maximum(accumulation, 1), np.maximum(accumulation, 0))
    accumulation = accumulation.astype(np.int64) if bounds.accumulate else np.zeros(accumulation.shape, dtype=np.int64)
    return np.ceil(per_rank / (accumulation + 1) - _CLOSE).astype(np.int64), accumulation
