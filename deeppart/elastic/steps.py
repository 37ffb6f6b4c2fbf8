"""What each rank takes of a global step, and the place of a training in its data. Pure.

A step takes the next samples of an epoch's order, the same ones whatever the number of ranks. Ranks take neighbouring
runs of them, whose lengths differ by one at most, and cut theirs into micro-batches in the same way. Gradients are
means over micro-batches, of different lengths: each has a weight with which the mean over ranks, that of
DistributedDataParallel, is the mean over the samples of the step.

A last step may have fewer samples than there are ranks. A rank without one gets the step's first sample as a filler,
with weight 0: it takes part in the step, and adds nothing to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from deeppart.errors import ConfigError, RestoreError

from .permutation import MOST_PLACES, VERSION


@dataclass(frozen=True, slots=True)
class Batch:
    """How many samples a step has, of all ranks together.

    Attributes:
        size: samples.
        accumulation: micro-batches of a rank beside the last one, whose gradients are accumulated.

    Raises:
        ConfigError: a number is impossible.

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
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_PLACES:
                raise ConfigError(
                    "a batch is impossible", expected=f"an integer >= {least}", found=repr(value), where=f"its {name}"
                )


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch of one rank.

    Attributes:
        start, count: the places in the epoch's order that it has.
        weight: of its mean gradient, so that the mean over ranks is right; 0 for a filler.
        ends_step: true if the gradients are exchanged after it, and the step is done.
        seen: samples of the epoch that have been seen when its step is done.
        size: samples of the step, all ranks together.
        whole: samples of a step that is not the last one of an epoch.

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
    whole: int

    @property
    def counted(self) -> int:
        """Samples that are to be counted; those of a filler are another rank's."""
        return self.count if self.weight else 0


def micro_batches(seen: int, length: int, batch: Batch, rank: int, ranks: int) -> list[MicroBatch]:
    """The micro-batches of a rank in the next step.

    Args:
        seen: samples of the epoch that have been seen.
        length: samples of the epoch; more than ``seen``.
        batch: of all ranks together.
        rank: of so many ``ranks``.

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


def _run(start: int, count: int, place: int, places: int) -> tuple[int, int]:
    """The beginning and the length of one of several runs, the longer ones first."""
    each, more = divmod(count, places)
    return start + place * each + min(place, more), each + (place < more)


def check_ranks(batch: Batch, ranks: int) -> None:
    """Refuse a step that has fewer samples than there are ranks."""
    if batch.size < ranks:
        raise ConfigError(
            "a step has fewer samples than there are ranks",
            expected=f"a batch of {ranks} or more, of all ranks together",
            found=str(batch.size),
            todo="use a larger batch or fewer ranks",
        )


@dataclass(frozen=True, slots=True)
class DataPosition:
    """A position in the passes over a data set.

    Attributes:
        epoch: from 0 on.
        passes: over the data that are over in this epoch.
        seen: samples that steps have had in the pass under way.
        batch: of its steps.
        later: what has been decided already, in order: the batch from the step on that begins when so many samples are
            seen.

    Example:
        >>> from deeppart.elastic import Batch, DataPosition
        >>> position = DataPosition(epoch=0, passes=0, seen=8, batch=Batch(4), later=((12, Batch(6)),))
        >>> position.at(12).batch
        Batch(size=6, accumulation=0)
    """

    epoch: int
    passes: int
    seen: int
    batch: Batch
    later: tuple[tuple[int, Batch], ...] = ()

    def batch_at(self, seen: int) -> Batch:
        """That of the step that begins when so many samples are seen."""
        return next((batch for at, batch in reversed(self.later) if seen >= at), self.batch)

    def at(self, seen: int) -> DataPosition:
        """Further on in the same pass."""
        later = tuple(each for each in self.later if each[0] > seen)
        return replace(self, seen=seen, batch=self.batch_at(seen), later=later)

    def decided(self, at: int, batch: Batch) -> DataPosition:
        """The same position, where a batch holds from so many samples on. What was decided for before stays."""
        before = tuple(each for each in self.later if each[0] < at)
        return replace(self, later=(*before, (at, batch))).at(self.seen)

    def next_pass(self, epoch: int, passes: int) -> DataPosition:
        """The beginning of a pass; what was decided for later holds from now on."""
        batch = self.later[-1][1] if self.later else self.batch
        return DataPosition(epoch, passes, 0, batch)


def to_state(position: DataPosition, asked: Batch, seed: int, length: int | None, *, shuffle: bool) -> dict[str, Any]:
    """Small values for a checkpoint."""
    return {
        "epoch": position.epoch,
        "passes": position.passes,
        "seen": position.seen,
        "seed": seed,
        "length": length,
        "order": VERSION if shuffle else 0,
        "batch": [position.batch.size, position.batch.accumulation],
        "asked": [asked.size, asked.accumulation],
        "later": [number for at, batch in position.later for number in (at, batch.size, batch.accumulation)] or None,
    }


def from_state(
    state: Mapping[str, Any], asked: Batch, length: int | None, *, shuffle: bool, name: str
) -> tuple[DataPosition, int]:
    """The position and the seed of a checkpoint."""
    if None not in (state["length"], length) and state["length"] != length:
        raise RestoreError(
            "the data set has another length than when the checkpoint was made",
            expected=f"{state['length']:,} samples",
            found=f"{length:,}",
            where=f"loader {name}, epoch {state['epoch']}, {state['seen']:,} samples seen",
            todo="give the same data set; or restore the rest, and begin anew with `loader.start_over(epoch)`",
        )
    if length is not None and not 0 <= state["seen"] <= length:
        raise RestoreError(
            "the place of a loader is beyond its data set: the state is not one of its own",
            expected=f"from 0 to {length:,} samples seen",
            found=f"{state['seen']:,}",
            where=f"loader {name}, epoch {state['epoch']}",
            todo="restore from another step; or restore the rest, and begin anew with `loader.start_over(epoch)`",
        )
    order = VERSION if shuffle else 0
    if state["order"] != order:
        raise RestoreError(
            "the samples were in another order when the checkpoint was made",
            expected=_order(state["order"]),
            found=_order(order),
            where=f"loader {name}, epoch {state['epoch']}, {state['seen']:,} samples seen",
            todo="give the loader the same `shuffle`, and use a version of deeppart that knows this order",
        )
    batch, later = Batch(*state["batch"]), list[tuple[int, Batch]]()
    if Batch(*state["asked"]) != asked:
        batch = asked
    elif state["later"] is not None:
        for at, size, accumulation in zip(*[iter(state["later"])] * 3, strict=True):
            later.append((at, Batch(size, accumulation)))
    return DataPosition(state["epoch"], state["passes"], state["seen"], batch, tuple(later)), state["seed"]


def _order(version: int) -> str:
    return f"shuffled by version {version} of the permutation" if version else "in the order of the data set"
