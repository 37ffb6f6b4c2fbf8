"""How a global step is divided among ranks, and the position of a training in its data. Pure.

A step has the next samples of the epoch's order, independent of the number of ranks. Each rank gets a contiguous run of
them, whose lengths differ by at most one, and divides it into micro-batches in the same way. Each micro-batch has a
weight with which the mean of gradients over ranks, as DistributedDataParallel computes it, is the mean over the samples
of the step.

If the last step of an epoch has fewer samples than there are ranks, each rank without one gets the step's first sample
as a filler, with weight 0, so that it takes part in collective operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deeppart.errors import ConfigError, RestoreError

from .permutation import MAX_LENGTH, VERSION


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch size of a step.

    Attributes:
        size: samples over all ranks.
        accumulation: micro-batches per rank whose gradients are accumulated before the last one.

    Raises:
        ConfigError: a number is out of range.

    Example:
        >>> from deeppart.elastic import Batch
        >>> Batch(256, accumulation=1)  # each rank has its part of the 256 in two micro-batches
        Batch(size=256, accumulation=1)
    """

    size: int
    accumulation: int = 0

    def __post_init__(self) -> None:
        for name, least in (("size", 1), ("accumulation", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_LENGTH:
                raise ConfigError("invalid batch", expected=f"an integer >= {least}", found=repr(value), where=name)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch of one rank.

    Attributes:
        start, count: its range of positions in the epoch's order.
        weight: of its mean gradient in the mean over ranks; 0 for a filler.
        ends_step: whether gradients are reduced after it and the optimizer steps.
        seen: samples of the epoch that have been seen after its step.
        size: samples of its step, over all ranks.
        full_size: samples of a step that is not the last of an epoch.

    Example:
        >>> from deeppart.elastic import Batch, micro_batches
        >>> [(each.start, each.count) for rank in range(3) for each in micro_batches(0, 100, Batch(10), rank, ranks=3)]
        [(0, 4), (4, 3), (7, 3)]
    """

    start: int
    count: int
    weight: float
    ends_step: bool
    seen: int
    size: int
    full_size: int

    @property
    def counted(self) -> int:
        """Samples to count in statistics; 0 for a filler."""
        return self.count if self.weight else 0


def micro_batches(seen: int, length: int, batch: Batch, rank: int, ranks: int) -> list[MicroBatch]:
    """The micro-batches of a rank in the next step.

    Args:
        seen: samples of the epoch that have been seen.
        length: samples of the epoch; more than ``seen``.
        batch: of the step.
        rank: of this process.
        ranks: world size.

    Example:
        >>> from deeppart.elastic.steps import Batch, micro_batches
        >>> [(each.start, each.count, each.weight) for each in micro_batches(0, 100, Batch(10, accumulation=1), 0, 3)]
        [(0, 2, 0.6), (2, 2, 0.6)]
        >>> [(each.start, each.count, each.weight) for each in micro_batches(98, 100, Batch(10), 2, 3)]
        [(98, 1, 0.0)]
    """
    size = min(batch.size, length - seen)
    start, count = _run(seen, size, rank, ranks)
    if not count:
        return [MicroBatch(seen, 1, 0.0, True, seen + size, size, batch.size)]
    pieces = min(batch.accumulation + 1, count)
    runs = [_run(start, count, piece, pieces) for piece in range(pieces)]
    return [
        MicroBatch(first, each, each * ranks / size, piece == pieces - 1, seen + size, size, batch.size)
        for piece, (first, each) in enumerate(runs)
    ]


def _run(start: int, count: int, index: int, runs: int) -> tuple[int, int]:
    """Start and length of one of several nearly equal runs, longer ones first."""
    each, more = divmod(count, runs)
    return start + index * each + min(index, more), each + (index < more)


def check_ranks(batch: Batch, ranks: int) -> None:
    """Raise if a step has fewer samples than there are ranks."""
    if batch.size < ranks:
        raise ConfigError(
            "a step has fewer samples than there are ranks",
            expected=f"a batch size of {ranks} or more, over all ranks",
            found=str(batch.size),
            todo="use a larger batch or fewer ranks",
        )


@dataclass(frozen=True, slots=True)
class DataPosition:
    """A position in the passes over a data set.

    Attributes:
        epoch: from 0.
        passes: finished passes over the data in this epoch.
        seen: samples seen in the current pass.
        batch: of the next step.

    Example:
        >>> from deeppart.elastic import Batch, DataPosition
        >>> DataPosition(epoch=1, passes=0, seen=8, batch=Batch(4)).next_pass(epoch=2, passes=0).seen
        0
    """

    epoch: int
    passes: int
    seen: int
    batch: Batch

    def next_pass(self, epoch: int, passes: int) -> DataPosition:
        """The beginning of a pass."""
        return DataPosition(epoch, passes, 0, self.batch)


def to_state(
    position: DataPosition, configured: Batch, seed: int, length: int | None, *, shuffle: bool
) -> dict[str, Any]:
    """A position as plain values for a checkpoint."""
    return {
        "epoch": position.epoch,
        "passes": position.passes,
        "seen": position.seen,
        "seed": seed,
        "length": length,
        "order": VERSION if shuffle else 0,
        "batch": [position.batch.size, position.batch.accumulation],
        "asked": [configured.size, configured.accumulation],
    }


def from_state(
    state: Mapping[str, Any], configured: Batch, length: int | None, *, shuffle: bool, name: str
) -> tuple[DataPosition, int]:
    """The position and seed in a checkpoint; a changed ``configured`` batch replaces the saved one."""
    name = f"{name}, epoch {state['epoch']}, {state['seen']:,} samples seen"
    if None not in (state["length"], length) and state["length"] != length:
        saved, now = f"{state['length']:,} samples", f"{length:,}"
        raise mismatch("the data set has another length than in the checkpoint", saved, now, name)
    if length is not None and not 0 <= state["seen"] <= length:
        saved, now = f"0 to {length:,} samples seen", f"{state['seen']:,}"
        raise mismatch("the saved position is beyond the end of the data set", saved, now, name)
    order = VERSION if shuffle else 0
    if state["order"] != order:
        saved, now = _describe_order(state["order"]), _describe_order(order)
        todo = "use the same `shuffle`, and a version of deeppart that knows this order"
        raise mismatch("the order of samples is another one than in the checkpoint", saved, now, name, todo)
    batch = Batch(*state["batch"]) if Batch(*state["asked"]) == configured else configured
    return DataPosition(state["epoch"], state["passes"], state["seen"], batch), state["seed"]


def mismatch(summary: str, saved: str, now: str, name: str, todo: str = "use the same data set") -> RestoreError:
    """The error for a data set that is not the one of the checkpoint."""
    todo += "; or restore the rest and call `loader.start_over(epoch)`"
    return RestoreError(summary, expected=saved, found=now, where=f"loader {name}", todo=todo)


def _describe_order(version: int) -> str:
    return f"shuffled by version {version} of the permutation" if version else "in the order of the data set"
