"""Adapting the batch size to the gradient noise and step times."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from deeppart.elastic.goodput import Bounds, GradientNoise, Throughput, better_step
from deeppart.errors import ConfigError, StorageError

from .profile import Profile, TimedSteps, goodput_of, write_profile
from .ranks import Ranks
from .steps import Batch, MicroBatch

#: Steps of a kind before they count: the first ones are slower.
_MIN_STEPS = 3


class Autoscale:
    """Decides on the batch of a loader, on rank 0 for all ranks."""

    def __init__(self, bounds: Bounds, ranks: Ranks, every: int, directory: Path | None) -> None:
        self.bounds, self._ranks, self._every, self._directory = bounds, ranks, every, directory
        self._nodes = len(set(ranks.gather(socket.gethostname(), "counting nodes")))
        #: Number and time of this rank's micro-batches that are not in the profile yet, by (samples, samples of the
        #: step, whether gradients are accumulated).
        self._sums: dict[tuple[int, int, bool], tuple[int, float]] = {}
        self._last_step_size: int | None = None
        self.profile = Profile(bounds=bounds)
        self._last_fit: Throughput | None = None
        self._steps = 0

    def record(self, micro_batch: MicroBatch, seconds: float) -> None:
        """Add the time of a micro-batch, but not of the first after a change of size, which includes allocation."""
        last, self._last_step_size = self._last_step_size, micro_batch.size
        if micro_batch.size != micro_batch.full_size or not micro_batch.weight or last != micro_batch.size:
            return
        kind = (micro_batch.count, micro_batch.size, not micro_batch.ends_step)
        count, total_s = self._sums.get(kind, (0, 0.0))
        self._sums[kind] = count + 1, total_s + seconds

    def after_step(self, now: Batch, trained: Any) -> Batch | None:
        """The new batch every ``every`` steps if it differs from ``now`` (collective)."""
        self._steps += 1
        if self._steps % self._every:
            return None
        decision: dict[str, Any] = {}
        if self._ranks.rank == 0:
            batch = self._decide(now, trained)
            decision = {"profile": self.profile.document(), "batch": [batch.size, batch.accumulation]}
        decision = self._ranks.gather(decision, "deciding about the batch")[0]
        self.profile = Profile.from_document(decision["profile"])
        batch = Batch(*decision["batch"])
        return None if batch == now else batch

    def _decide(self, now: Batch, trained: Any) -> Batch:
        for kind in [kind for kind, (count, _) in self._sums.items() if count >= _MIN_STEPS]:
            (local, batch, accumulating), (count, total_s) = kind, self._sums.pop(kind)
            timed = TimedSteps(self._nodes, self._ranks.size, local, accumulating, count, total_s / count)
            self.profile = self.profile.merged(Profile((timed,), batch))
        if not self.profile.times:
            return now
        if trained is not None and trained.noise.known:
            noise = GradientNoise(trained.noise.squared_gradient(), trained.noise.variance(), self.bounds.batch)
            self.profile = replace(self.profile, noise=noise)
        if self._directory is not None:
            try:
                write_profile(self._directory, self.profile)
            except StorageError:  # the file is only for advice
                self._directory = None
        if self.profile.noise is None:
            return now
        goodput, bounds = goodput_of(self.profile, self._last_fit)
        self._last_fit = goodput.throughput
        best = better_step(goodput, self._nodes, self._ranks.size, bounds, now.size)
        return Batch(best.batch, best.accumulation)

    def state_dict(self) -> dict[str, Any]:
        """The measurements as of the last decision."""
        return {"profile": self.profile.document()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with measurements that were made on any number of ranks."""
        self.profile = replace(Profile.from_document(state["profile"]), bounds=self.bounds)


def make_bounds(
    base: Batch, ranks: int, most: int, local: tuple[int | None, int | None] | None, *, accumulate: bool
) -> Bounds:
    """Bounds of the batch from the arguments of ``autoscale_batch_size``."""
    least_local, most_local = local or (None, None)
    least_local = 1 if least_local is None else least_local
    most_local = max(1, -(-most // ranks)) if most_local is None else most_local
    capacity = ranks * most_local * (most if accumulate else 1)
    if not (
        all(type(number) is int for number in (most, least_local, most_local))
        and base.size <= most
        and 1 <= least_local <= most_local
        and max(base.size, ranks * least_local) <= min(most, capacity)
    ):
        raise ConfigError(
            "no batch fits these bounds",
            expected=f"at least {base.size} samples in total, and within the bounds on each of {ranks} ranks"
            + ("" if accumulate else ", without accumulation"),
            found=f"at most {most} in total; {least_local} to {most_local} on a rank",
            todo="allow more samples, or use fewer ranks" + ("" if accumulate else ", or gradient_accumulation=True"),
        )
    return Bounds(base.size, most, most_local, least_local, accumulate)
