"""Where a loader is in the data: nothing in it knows the number of ranks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from deeppart.errors import RestoreError

from .permutation import VERSION
from .steps import Batch


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the passes over a data set.

    Attributes:
        epoch: from 0 on.
        passes: over the data that are over in this epoch.
        seen: samples that steps have had in the pass under way.
        batch: of its steps.
        later: what has been decided already, in order: the batch from the step on that begins when so many samples are
            seen.

    Example:
        >>> from deeppart.elastic import Batch, Place
        >>> place = Place(epoch=0, passes=0, seen=8, batch=Batch(4), later=((12, Batch(6)),))
        >>> place.at(12).batch
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

    def at(self, seen: int) -> Place:
        """Further on in the same pass."""
        later = tuple(each for each in self.later if each[0] > seen)
        return replace(self, seen=seen, batch=self.batch_at(seen), later=later)

    def decided(self, at: int, batch: Batch) -> Place:
        """The same place, where a batch holds from so many samples on. What was decided for before stays."""
        before = tuple(each for each in self.later if each[0] < at)
        return replace(self, later=(*before, (at, batch))).at(self.seen)

    def next_pass(self, epoch: int, passes: int) -> Place:
        """The beginning of a pass; what was decided for later holds from now on."""
        batch = self.later[-1][1] if self.later else self.batch
        return Place(epoch, passes, 0, batch)


def to_state(place: Place, asked: Batch, seed: int, length: int | None, *, shuffle: bool) -> dict[str, Any]:
    """Small values for a checkpoint."""
    return {
        "epoch": place.epoch,
        "passes": place.passes,
        "seen": place.seen,
        "seed": seed,
        "length": length,
        "order": VERSION if shuffle else 0,
        "batch": [place.batch.size, place.batch.accumulation],
        "asked": [asked.size, asked.accumulation],
        "later": [number for at, batch in place.later for number in (at, batch.size, batch.accumulation)] or None,
    }


def from_state(
    state: Mapping[str, Any], asked: Batch, length: int | None, *, shuffle: bool, name: str
) -> tuple[Place, int]:
    """The place and the seed of a checkpoint."""
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
    return Place(state["epoch"], state["passes"], state["seen"], batch, tuple(later)), state["seed"]


def _order(version: int) -> str:
    return f"shuffled by version {version} of the permutation" if version else "in the order of the data set"
