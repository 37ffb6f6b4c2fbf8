"""A batch that follows the noise of the gradients and the times of the steps."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from deeppart.errors import ConfigError, StorageError
from deeppart.plan.goodput import Bounds, GradientNoise, Throughput, better_step

from .profile import Profile, TimedSteps, goodput_of, write_profile
from .ranks import Ranks
from .steps import Batch, MicroBatch

#: A profile of fewer steps of a kind says little: the first ones are slower.
_LEAST_STEPS = 3


class StepTimes:
    """How long this rank's micro-batches took, by kind: sums of what has not been taken into a profile yet."""

    def __init__(self, nodes: int, ranks: int) -> None:
        self._nodes, self._ranks = nodes, ranks
        self._sums: dict[tuple[int, int, bool], tuple[int, float]] = {}
        self._before: tuple[int, int, bool] | None = None

    def note(self, micro_batch: MicroBatch, seconds: float) -> None:
        """One micro-batch. The first after another kind is left out: memory is reserved in it."""
        kind = (micro_batch.count, micro_batch.size, not micro_batch.ends_step)
        before, self._before = self._before, kind
        if (
            micro_batch.size != micro_batch.whole
            or not micro_batch.weight
            or before is None
            or before[1] != micro_batch.size
        ):
            return
        count, total_s = self._sums.get(kind, (0, 0.0))
        self._sums[kind] = count + 1, total_s + seconds

    def added_to(self, profile: Profile) -> Profile:
        """A profile with the kinds of which there are enough; these begin anew."""
        for (local, batch, accumulating), (count, total_s) in list(self._sums.items()):
            if count < _LEAST_STEPS:
                continue
            del self._sums[local, batch, accumulating]
            timed = TimedSteps(self._nodes, self._ranks, local, accumulating, count, total_s / count)
            profile = profile.merged(Profile((timed,), batch))
        return profile


class Autoscale:
    """The new batch of a loader, decided by rank 0 and sent to all."""

    def __init__(self, bounds: Bounds, ranks: Ranks, every: int, directory: Path | None) -> None:
        self.bounds, self._ranks, self._every, self._directory = bounds, ranks, every, directory
        self._nodes = len(set(ranks.gather(socket.gethostname(), "counting nodes")))
        self.times = StepTimes(self._nodes, ranks.size)
        self.profile = Profile(bounds=bounds)
        self._near: Throughput | None = None
        self._steps = 0

    def after_step(self, now: Batch, trained: Any) -> Batch | None:
        """Count a step; at every so-many-th one, decide (collective)."""
        self._steps += 1
        if self._steps % self._every:
            return None
        told: dict[str, Any] = {}
        if self._ranks.rank == 0:
            decided = self._decide(now, trained)
            told = {"profile": self.profile.document(), "batch": [decided.size, decided.accumulation]}
        told = self._ranks.gather(told, "deciding about the batch")[0]
        self.profile = Profile.from_document(told["profile"])
        batch = Batch(*told["batch"])
        return None if batch == now else batch

    def _decide(self, now: Batch, trained: Any) -> Batch:
        self.profile = self.times.added_to(self.profile)
        if not self.profile.times:
            return now
        if trained is not None and trained.noise.known:
            noise = GradientNoise(trained.noise.squared_gradient(), trained.noise.variance(), self.bounds.batch)
            self.profile = replace(self.profile, noise=noise)
        self._write()
        if self.profile.noise is None:
            return now
        goodput, bounds = goodput_of(self.profile, self._near)
        self._near = goodput.throughput
        best = better_step(goodput, self._nodes, self._ranks.size, bounds, now.size)
        return Batch(best.batch, best.accumulation)

    def _write(self) -> None:
        if self._directory is None:
            return
        try:
            write_profile(self._directory, self.profile)
        except StorageError:  # it bears on advice alone
            self._directory = None

    def state_dict(self) -> dict[str, Any]:
        """The measurements, as all ranks last received them."""
        return {"profile": self.profile.document()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what was measured before, on other sizes, too."""
        self.profile = replace(Profile.from_document(state["profile"]), bounds=self.bounds)


def bounds_of(
    base: Batch, ranks: int, most: int, local: tuple[int | None, int | None] | None, *, accumulate: bool
) -> Bounds:
    """What a batch may be, of what a user asks for."""
    least_local, most_local = local or (None, None)
    least_local = 1 if least_local is None else least_local
    most_local = max(1, -(-most // ranks)) if most_local is None else most_local
    room = ranks * most_local * (most if accumulate else 1)
    if not (
        all(type(number) is int for number in (most, least_local, most_local))
        and base.size <= most
        and 1 <= least_local <= most_local
        and max(base.size, ranks * least_local) <= min(most, room)
    ):
        raise ConfigError(
            "no batch fits these bounds",
            expected=f"{base.size} samples of all ranks, or more, and on each of {ranks} ranks within the bounds"
            + ("" if accumulate else ", at once"),
            found=f"at most {most} of all ranks; {least_local} to {most_local} of a rank",
            todo="allow more samples, or use fewer ranks" + ("" if accumulate else ", or gradient_accumulation=True"),
        )
    return Bounds(base.size, most, most_local, least_local, accumulate)
