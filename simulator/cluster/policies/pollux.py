"""Pollux (A. Qiao et al., OSDI 2021): jobs choose their batches, and GPUs go where they make the cluster learn fastest.

What is to be largest is the artefact's: the power mean of speed-ups with exponent -1, where a restart makes a speed-up
count for less (``worth``). The artefact looks for it with a genetic algorithm. Here numbers of GPUs are found exactly
(``dividing``), then put on nodes (``packing``), and then improved job by job until nothing improves: from several
beginnings, of which the best result is taken. Nothing is random.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..jobs import Job, Request
from .dividing import divide
from .packing import Packing
from .policy import Allocation
from .worth import Worth

#: Seconds that a restart is taken to cost, by default.
RESTART_S = 30.0
#: No job has more: placements of more were not measured.
_MOST_GPUS = 64
_ROUNDS = 4
#: An improvement by less is none.
_CLOSE = 1e-9


@dataclass(frozen=True)
class _Wish:
    """A job when GPUs are shared out.

    Attributes:
        worth: of GPUs to it.
        held: what it has.
        factor: by which a restart makes a speed-up less.
        fair: GPUs of a fair share.
    """

    worth: Worth
    held: Allocation
    factor: float
    fair: int

    def cost(self, allocation: Allocation) -> float:
        factor = 1.0 if allocation == self.held else self.factor
        return self.worth.cost(len(set(allocation)), len(allocation), self.fair, factor)


class Pollux:
    """Sizes, places and batches for the most goodput."""

    def __init__(self, nodes: int, per_node: int, restart_s: float = RESTART_S) -> None:
        self._nodes, self._per_node, self._restart_s = nodes, per_node, restart_s
        self._worths: dict[str, tuple[object, Worth]] = {}

    def batch(self, request: Request) -> int | None:
        """The job chooses it, unless its settings do."""
        return request.application.settings.batch

    def share(self, now_s: float, jobs: Sequence[Job], held: Mapping[str, Allocation]) -> dict[str, Allocation]:
        """The best of several allocations."""
        fair = -(-self._nodes * self._per_node // len(jobs))
        wishes = [self._wish(now_s, job, held.get(job.request.name, ()), fair) for job in jobs]
        found = [self._improved(wishes, self._packed(wishes, sizes, keep=keep)) for sizes, keep in self._plans(wishes)]
        best = min(found, key=lambda each: _total(wishes, each))
        return {job.request.name: allocation for job, allocation in zip(jobs, best, strict=True)}

    def _wish(self, now_s: float, job: Job, held: Allocation, fair: int) -> _Wish:
        age_s = now_s - job.request.submitted_s
        left_s = max(age_s - job.restarts * self._restart_s, 0.0)
        factor = left_s / (age_s + self._restart_s) if self._restart_s else 1.0
        return _Wish(self._worth(job), held, factor, fair)

    def _worth(self, job: Job) -> Worth:
        name, app = job.request.name, job.request.application
        most = min(max(2 * job.most_gpus_seen, 1), _MOST_GPUS, app.most_batch // app.least_local)
        most = min(most, app.settings.most_gpus or most, self._nodes * self._per_node)
        key = job.throughput, job.noise, most
        if name not in self._worths or self._worths[name][0] != key:
            self._worths[name] = key, Worth(job.goodput, job.bounds, most, self._per_node)
        return self._worths[name][1]

    def _plans(self, wishes: Sequence[_Wish]) -> list[tuple[list[int], bool]]:
        """(numbers of GPUs, whether who keeps its number keeps its place) to begin with."""
        total = self._nodes * self._per_node
        changed = [wish.worth.costs(wish.fair, wish.factor) for wish in wishes]
        whole = [np.where(self._packable(costs.size), costs, np.inf) for costs in changed]
        plans = []
        for costs in (changed, whole):
            kept = [each.copy() for each in costs]
            for wish, each in zip(wishes, kept, strict=True):
                if len(wish.held) < each.size:
                    each[len(wish.held)] = min(each[len(wish.held)], wish.cost(wish.held))
            plans.append((divide(kept, total), True))
        plans.append((divide(whole, total), False))
        plans.append(([len(wish.held) for wish in wishes], True))
        return plans

    def _packable(self, sizes: int) -> npt.NDArray[np.bool_]:
        """Sizes that fill nodes without a rest: divisors and multiples of a node's GPUs."""
        numbers = np.arange(sizes)
        small = (numbers > 0) & (self._per_node % np.maximum(numbers, 1) == 0)
        found: npt.NDArray[np.bool_] = small | (numbers % self._per_node == 0)
        return found

    def _packed(self, wishes: Sequence[_Wish], sizes: Sequence[int], *, keep: bool) -> list[Allocation]:
        """So many GPUs, or as many as there is room for, on nodes: the largest jobs first."""
        packing = Packing(self._nodes, self._per_node)
        found: list[Allocation] = [()] * len(wishes)
        for place, (wish, size) in enumerate(zip(wishes, sizes, strict=True)):
            if keep and wish.held and len(wish.held) == size and packing.fits(wish.held):
                found[place] = wish.held
                packing.put(wish.held)
        for place in sorted(range(len(wishes)), key=lambda place: -sizes[place]):
            if found[place]:
                continue
            for size in range(sizes[place], 0, -1):
                allocation = packing.place(size)
                if allocation is not None:
                    found[place] = allocation
                    packing.put(allocation)
                    break
        return found

    def _improved(self, wishes: Sequence[_Wish], allocations: list[Allocation]) -> list[Allocation]:
        """Each job in turn gets what is best for it of what the others leave."""
        packing = Packing(self._nodes, self._per_node)
        for allocation in allocations:
            packing.put(allocation)
        costs = [wish.cost(allocation) for wish, allocation in zip(wishes, allocations, strict=True)]
        for _ in range(_ROUNDS):
            before = sum(costs)
            for place in sorted(range(len(wishes)), key=lambda place: -costs[place]):
                packing.remove(allocations[place])
                allocations[place], costs[place] = self._best(wishes[place], packing, allocations[place], costs[place])
                packing.put(allocations[place])
            if sum(costs) > before - _CLOSE:
                break
        return allocations

    def _best(self, wish: _Wish, packing: Packing, now: Allocation, cost: float) -> tuple[Allocation, float]:
        best, least = now, cost
        if wish.held and packing.fits(wish.held) and wish.cost(wish.held) < least - _CLOSE:
            best, least = wish.held, wish.cost(wish.held)
        for size in self._tried(wish, len(now)):
            allocation = packing.place(size)
            if allocation is not None and (found := wish.cost(allocation)) < least - _CLOSE:
                best, least = allocation, found
        return best, least

    def _tried(self, wish: _Wish, now: int) -> list[int]:
        sizes = {*range(1, self._per_node + 1), *range(self._per_node, wish.worth.most + 1, self._per_node)}
        sizes |= {now - 1, now + 1, now, len(wish.held), wish.worth.most}
        return sorted(size for size in sizes if 0 < size <= wish.worth.most)


def _total(wishes: Sequence[_Wish], allocations: Sequence[Allocation]) -> float:
    return sum(wish.cost(allocation) for wish, allocation in zip(wishes, allocations, strict=True))
