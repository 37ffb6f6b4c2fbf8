"""Which sizes of a job pay: the expected goodput of each, as far as it can be extrapolated from measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from deeppart.elastic.goodput.model import Goodput
from deeppart.elastic.goodput.optimum import Bounds, best_steps, fixed_step
from deeppart.errors import ConfigError

#: Extrapolation ends at so many times the measured ranks and batch.
FARTHEST_RANKS, FARTHEST_BATCH = 2, 4
#: A rank with less than this share of the largest goodput per rank is better given to another job.
WORTH = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """How far measurements can be extrapolated.

    Attributes:
        profiled_ranks: largest measured number of ranks.
        profiled_batch: largest measured batch, of all ranks together.
        node_ranks: ranks on each node.

    Example:
        >>> from deeppart.elastic.goodput import Limits
        >>> Limits(profiled_ranks=8, profiled_batch=256, node_ranks=4).most_ranks
        16
    """

    profiled_ranks: int
    profiled_batch: int
    node_ranks: int

    @property
    def most_ranks(self) -> int:
        """The largest number of ranks to which measurements are extrapolated."""
        return FARTHEST_RANKS * self.profiled_ranks

    @property
    def most_batch(self) -> int:
        """The largest batch to which measurements are extrapolated."""
        return FARTHEST_BATCH * self.profiled_batch

    def nodes(self, ranks: int) -> int:
        """The number of nodes for so many ranks."""
        return math.ceil(ranks / self.node_ranks)

    def sizes(self) -> list[int]:
        """Numbers of ranks to consider: all that one node can have, then whole nodes."""
        first = range(1, min(self.node_ranks, self.most_ranks) + 1)
        return [*first, *range(2 * self.node_ranks, self.most_ranks + 1, self.node_ranks)]

    def check_ranks(self, ranks: int) -> None:
        """Refuse a number of ranks beyond the extrapolation.

        Raises:
            ConfigError: there are too many ranks.
        """
        if ranks > self.most_ranks:
            raise ConfigError(
                f"{ranks} ranks are too far from what was measured",
                expected=f"at most {self.most_ranks}, twice the ranks of the largest profiled job",
                found=f"profiled on up to {self.profiled_ranks} ranks",
                todo=f"train for some steps on {math.ceil(ranks / FARTHEST_RANKS)} ranks or more first",
            )

    def check_batch(self, batch: int) -> None:
        """Refuse a batch beyond the extrapolation.

        Raises:
            ConfigError: it is too large.
        """
        if batch > self.most_batch:
            raise ConfigError(
                f"a batch of {batch} is too far from what was measured",
                expected=f"at most {self.most_batch}, four times the largest profiled batch",
                found=f"profiled with batches of up to {self.profiled_batch}",
                todo=f"train for some steps with a batch of {math.ceil(batch / FARTHEST_BATCH)} or more first",
            )


@dataclass(frozen=True, slots=True)
class Size:
    """The expected performance of a job of some size, with its best batch, or a given one.

    Attributes:
        nodes, ranks: its size.
        batch: samples of all ranks together.
        local_batch, accumulation: samples of a micro-batch, and micro-batches before the last one.
        step_s: duration of a step.
        samples_per_s: computed samples per second.
        efficiency: worth of a sample relative to one in the original batch.
        goodput: the product of the two.
        per_rank: goodput per rank, as a share of the largest of any size.
        profiled: true if as many ranks were measured.
    """

    nodes: int
    ranks: int
    batch: int
    local_batch: int
    accumulation: int
    step_s: float
    samples_per_s: float
    efficiency: float
    goodput: float
    per_rank: float
    profiled: bool


@dataclass(frozen=True, slots=True)
class Advice:
    """The expected performance of each size, and the best one.

    Attributes:
        sizes: by ranks, ascending.
        best: the size with most goodput among those whose ``per_rank`` is at least ``worth``.
        worth: the least share of the largest goodput per rank.
        capped: true if larger batches are allowed, but beyond the extrapolation.
    """

    sizes: tuple[Size, ...]
    best: Size
    worth: float
    capped: bool


def advise(
    goodput: Goodput,
    bounds: Bounds,
    limits: Limits,
    profiled: Sequence[int] = (),
    *,
    batch: int | None = None,
    ranks: Sequence[int] | None = None,
    worth: float = WORTH,
) -> Advice:
    """The expected performance of a job for each size.

    Args:
        goodput: the job's model.
        bounds: the allowed batches.
        limits: how far measurements are extrapolated.
        profiled: measured numbers of ranks.
        batch: batch for all sizes; by default each has its best.
        ranks: sizes; by default :meth:`Limits.sizes`.
        worth: share of the largest goodput per rank below which more ranks do not pay.

    Raises:
        ConfigError: a size or a batch is beyond the extrapolation, or none is possible.

    Example:
        >>> from deeppart.elastic.goodput import Bounds, Goodput, GradientNoise, Limits, Throughput, advise
        >>> job = Goodput(Throughput(0.01, 0.001, 0.05, 0.001, 0.02, 0.0, 1.0), GradientNoise(1.0, 30.0, 32))
        >>> found = advise(job, Bounds(32, 1024, most_local=64), Limits(4, 256, node_ranks=4), profiled=[1, 2, 4])
        >>> [(size.ranks, size.batch, round(size.goodput)) for size in found.sizes]
        [(1, 124, 788), (2, 252, 1243), (3, 189, 1755), (4, 252, 2218), (8, 512, 2654)]
        >>> found.best.ranks
        4
    """
    numbers = sorted(set(limits.sizes() if ranks is None else ranks))
    for number in numbers:
        limits.check_ranks(number)
    if batch is not None:
        limits.check_batch(batch)
    capped = bounds.most_batch > limits.most_batch
    within = replace(bounds, most_batch=max(bounds.batch, min(bounds.most_batch, limits.most_batch)))
    sizes = [size for number in numbers if (size := _size(goodput, within, limits, number, batch)) is not None]
    if not sizes:
        raise ConfigError(
            "no batch suits any of these sizes", expected=repr(within), found=f"ranks {numbers}",
            todo="allow more samples in a batch, or in that of a rank",
        )  # fmt: skip
    most = max(size.goodput / size.ranks for size in sizes)
    rated = tuple(
        replace(size, per_rank=size.goodput / size.ranks / most, profiled=size.ranks in profiled) for size in sizes
    )
    return Advice(rated, max((s for s in rated if s.per_rank >= worth), key=lambda s: s.goodput), worth, capped)


def _size(goodput: Goodput, bounds: Bounds, limits: Limits, ranks: int, batch: int | None) -> Size | None:
    nodes = limits.nodes(ranks)
    if batch is None:
        found = best_steps(goodput, np.array([nodes]), np.array([ranks]), bounds)
        if not found.goodput[0] > 0:
            return None
        total, local, accumulation = (int(values[0]) for values in found[:3])
    else:
        step = fixed_step(goodput, nodes, ranks, batch, bounds)
        total, local, accumulation = batch, step.local_batch, step.accumulation
        if ranks > batch or local > bounds.most_local:
            return None
    step_s = float(goodput.throughput.step_s(nodes, ranks, local, accumulation))
    efficiency = float(goodput.noise.efficiency(total))
    fast = total / step_s
    return Size(
        nodes, ranks, total, local, accumulation, step_s, fast, efficiency, fast * efficiency, per_rank=0.0,
        profiled=False,
    )  # fmt: skip
