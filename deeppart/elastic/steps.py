"""What each rank takes of a global step. Pure.

A step takes the next samples of an epoch's order, the same ones whatever the number of ranks. Ranks take neighbouring
runs of them, whose lengths differ by one at most, and cut theirs into micro-batches in the same way. Gradients are
means over micro-batches, of different lengths: each has a weight with which the mean over ranks, that of
DistributedDataParallel, is the mean over the samples of the step.

A last step may have fewer samples than there are ranks. A rank without one gets the step's first sample as a filler,
with weight 0: it takes part in the step, and adds nothing to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from deeppart.errors import ConfigError

from .permutation import MOST_PLACES


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
        >>> Batch(256, accumulation=1)  # each rank has its share of the 256 in two micro-batches
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
class Share:
    """A micro-batch of one rank.

    Attributes:
        start, count: the places in the epoch's order that it has.
        weight: of its mean gradient, so that the mean over ranks is right; 0 for a filler.
        ends_step: true if the gradients are exchanged after it, and the step is done.
        seen: samples of the epoch that have been seen when its step is done.
        size: samples of the step, all ranks together.
        whole: samples of a step that is not the last one of an epoch.

    Example:
        >>> from deeppart.elastic import Batch, shares
        >>> [(each.start, each.count) for rank in range(3) for each in shares(0, 100, Batch(10), rank, ranks=3)]
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


def check_ranks(batch: Batch, ranks: int) -> None:
    """Refuse a step that has fewer samples than there are ranks."""
    if batch.size < ranks:
        raise ConfigError(
            "a step has fewer samples than there are ranks",
            expected=f"a batch of {ranks} or more, of all ranks together",
            found=str(batch.size),
            todo="use a larger batch or fewer ranks",
        )


def shares(seen: int, length: int, batch: Batch, rank: int, ranks: int) -> list[Share]:
    """The micro-batches of a rank in the next step.

    Args:
        seen: samples of the epoch that have been seen.
        length: samples of the epoch; more than ``seen``.
        batch: of all ranks together.
        rank: of so many ``ranks``.

    Example:
        >>> from deeppart.elastic.steps import Batch, shares
        >>> [(share.start, share.count, share.weight) for share in shares(0, 100, Batch(10, accumulation=1), 0, 3)]
        [(0, 2, 0.6), (2, 2, 0.6)]
        >>> [(share.start, share.count, share.weight) for share in shares(98, 100, Batch(10), 2, 3)]
        [(98, 1, 0.0)]
    """
    size = min(batch.size, length - seen)
    start, count = _run(seen, size, rank, ranks)
    if not count:
        return [Share(seen, 1, 0.0, True, seen + size, size, batch.size)]
    pieces = min(batch.accumulation + 1, count)
    runs = [_run(start, count, piece, pieces) for piece in range(pieces)]
    return [
        Share(first, each, each * ranks / size, piece == pieces - 1, seen + size, size, batch.size)
        for piece, (first, each) in enumerate(runs)
    ]


def _run(start: int, count: int, place: int, places: int) -> tuple[int, int]:
    """The beginning and the length of one of several runs, the longer ones first."""
    each, more = divmod(count, places)
    return start + place * each + min(place, more), each + (place < more)
