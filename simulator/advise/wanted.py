"""The parts of the advice that are given: only candidates that have them are compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from deeppart.model import Level
from deeppart.plan.interval import Cadence, LevelCost
from deeppart.plan.multiples import MOST_EVERY

from ..campaign.costs import cadence_of
from ..timing.stages import Job, Protection


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is given of the levels and the compression; None where it is free.

    Attributes:
        local: true for the nodes' own storage, and what is kept there.
        partner: true for copies on another node.
        parity: (nodes of a group, how many of them may be lost).
        compression: "none", "tensor" or "auto".
    """

    local: bool | None = None
    partner: bool | None = None
    parity: tuple[int, int] | None = None
    compression: str | None = None

    def protection(self) -> Protection:
        """The levels, where what is free is as usual: local storage, copies, no parity."""
        local = self.local is not False
        group, tolerate = self.parity or (0, 1)
        return Protection(local, local and self.partner is not False, group, tolerate)

    def among(self, candidates: Iterable[Job]) -> Iterator[Job]:
        """Those of some candidates that are as wanted, each once.

        A parity group or a compression that none of them has is put in; copies and parity together are only tried if
        both are given.
        """
        seen = set()
        for candidate in candidates:
            job = self._given(candidate)
            key = (job.protection, job.compression)
            if key not in seen and self._fits(job.protection):
                seen.add(key)
                yield job

    def kept(self, costs: Sequence[LevelCost], cadence: Cadence) -> Cadence:
        """A cadence with the levels that are given, where it leaves them out: as often as the next one above them."""
        given = {Level.PARTNER} if self.partner else set()
        given |= {Level.PARITY} if self.parity else set()
        every, above = dict(cadence.every), 1
        for cost in reversed(costs):
            if every[cost.name] >= MOST_EVERY and cost.name in given:
                every[cost.name] = above
            above = every[cost.name] if every[cost.name] < MOST_EVERY else above
        if every == cadence.every:
            return cadence
        counts = list(every.values())
        busy_s = sum(cost.busy_s / count for cost, count in zip(costs, counts, strict=True))
        period_s = max(cadence.period_s, busy_s)
        return cadence_of(costs, period_s, every)

    def _given(self, job: Job) -> Job:
        """A candidate with the group and the compression that are given."""
        protection = job.protection
        if self.parity and protection.local:
            group, tolerate = self.parity
            protection = replace(protection, partner=bool(self.partner), parity_group=group, parity_tolerate=tolerate)
        return replace(job, protection=protection, compression=self.compression or job.compression)

    def _fits(self, protection: Protection) -> bool:
        return (
            self.local in (None, protection.local)
            and self.partner in (None, protection.partner)
            and (self.parity is None or protection.parity_group == self.parity[0])
        )


#: Everything is free.
ANYTHING = Wanted()
