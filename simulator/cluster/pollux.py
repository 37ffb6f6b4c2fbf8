"""Pollux (A. Qiao et al., OSDI 2021): jobs choose their batches, and GPUs are allocated for the most goodput.

The objective is that of the artifact: the power mean of speed-ups with exponent -1, in which a restart reduces a job's
speed-up. The artifact maximizes it with a genetic algorithm. Here, numbers of GPUs are optimized exactly, then packed
onto nodes, and then improved job by job until nothing improves. This is done from several starting points, and the best
result is used. Nothing is random.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deeppart.elastic.goodput import Bounds, Goodput, best_steps

from .applications import Request
from .engine import Allocation, Job

Floats = npt.NDArray[np.float64]
#: Default of the assumed cost of a restart, in seconds.
RESTART_S = 30.0
#: Most GPUs of a job: larger placements were not measured.
_MOST_GPUS = 64
_ROUNDS = 4
#: Smaller improvements are ignored.
_CLOSE = 1e-9


@dataclass(frozen=True)
class _Wish:
    """A job during the allocation of GPUs."""

    worth: Worth  # of GPUs to it
    held: Allocation  # its current GPUs
    factor: float  # by which a restart multiplies its speed-up
    fair: int  # GPUs of a fair share

    def cost(self, allocation: Allocation) -> float:
        factor = 1.0 if allocation == self.held else self.factor
        return self.worth.cost(len(set(allocation)), len(allocation), self.fair, factor)


class Pollux:
    """Chooses numbers of GPUs, placements and batches for the most goodput."""

    def __init__(self, nodes: int, per_node: int, restart_s: float = RESTART_S) -> None:
        self._nodes, self._per_node, self._restart_s = nodes, per_node, restart_s
        self._worths: dict[str, tuple[object, Worth]] = {}

    def batch(self, request: Request) -> int | None:
        """The batch of its settings; otherwise the job chooses."""
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
        """Starting points: (numbers of GPUs, whether jobs with an unchanged number keep their GPUs)."""
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
        """Mask of numbers of GPUs that fill nodes completely: divisors and multiples of a node's GPUs."""
        numbers = np.arange(sizes)
        small = (numbers > 0) & (self._per_node % np.maximum(numbers, 1) == 0)
        found: npt.NDArray[np.bool_] = small | (numbers % self._per_node == 0)
        return found

    def _packed(self, wishes: Sequence[_Wish], sizes: Sequence[int], *, keep: bool) -> list[Allocation]:
        """Place the numbers of GPUs on nodes, or fewer if there is no room; the largest jobs come first."""
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
        """Repeatedly give each job the best placement among the GPUs that the others leave free."""
        packing = Packing(self._nodes, self._per_node)
        for allocation in allocations:
            packing.put(allocation)
        costs = [wish.cost(allocation) for wish, allocation in zip(wishes, allocations, strict=True)]
        for _ in range(_ROUNDS):
            before = sum(costs)
            for place in sorted(range(len(wishes)), key=lambda place: -costs[place]):
                packing.put(allocations[place], -1)
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


#: Added to the denominator, so that a job without GPUs has a finite cost.
_LEAST = 1e-3


# --- the worth of GPUs ------------------------------------------------------------------------------------------------


class Worth:
    """The worth of numbers of GPUs to one job."""

    def __init__(self, goodput: Goodput | None, bounds: Bounds, most: int, per_node: int) -> None:
        self._goodput, self._bounds = goodput, bounds
        self.most, self._per_node = most, per_node
        self._known: dict[tuple[int, int], float] = {(0, 0): 0.0}
        gpus = np.arange(1, most + 1)
        self._learn(-(-gpus // per_node), gpus)

    def cost(self, nodes: int, gpus: int, fair: int, factor: float = 1.0) -> float:
        """The job's term in the sum to be minimized."""
        return 1 / (self._goodput_of(nodes, gpus) / self._fair(fair) / self._per_node * factor + _LEAST)

    def costs(self, fair: int, factor: float) -> Floats:
        """The same for 0, 1, ... GPUs on as few nodes as possible."""
        sizes = range(self.most + 1)
        found = np.array([self._known[-(-gpus // self._per_node), gpus] for gpus in sizes])
        costs: Floats = 1 / (found / self._fair(fair) / self._per_node * factor + _LEAST)
        return costs

    def _fair(self, gpus: int) -> float:
        """Goodput of a fair share on one node, or of the most GPUs that the bounds allow."""
        most = max(1, self._bounds.most_batch // self._bounds.least_local)
        return max(self._goodput_of(1, min(gpus, most)), 1e-9)

    def _goodput_of(self, nodes: int, gpus: int) -> float:
        if (nodes, gpus) not in self._known:
            self._learn(np.array([nodes]), np.array([gpus]))
        return self._known[nodes, gpus]

    def _learn(self, nodes: npt.NDArray[np.int64], gpus: npt.NDArray[np.int64]) -> None:
        values = gpus if self._goodput is None else best_steps(self._goodput, nodes, gpus, self._bounds).goodput
        for each_nodes, each_gpus, value in zip(nodes.tolist(), gpus.tolist(), values.tolist(), strict=True):
            self._known[each_nodes, each_gpus] = float(value)


# --- numbers of GPUs --------------------------------------------------------------------------------------------------


def divide(costs: Sequence[Floats], gpus: int) -> list[int]:
    """The number of GPUs for each job that minimizes the total cost, by dynamic programming."""
    least = np.zeros(gpus + 1)
    taken = []
    for cost in costs:
        sizes = np.arange(min(cost.size, gpus + 1))
        left = np.arange(gpus + 1)[:, None] - sizes
        totals = np.where(left >= 0, least[np.maximum(left, 0)] + cost[sizes], np.inf)
        best = np.argmin(totals, axis=1)
        least = totals[np.arange(gpus + 1), best]
        taken.append(best)
    found, left_over = [], gpus
    for best in reversed(taken):
        found.append(int(best[left_over]))
        left_over -= found[-1]
    return found[::-1]


# --- GPUs on nodes ----------------------------------------------------------------------------------------------------


class Packing:
    """The free GPUs of each node during the allocation, and whether a job on several nodes uses it."""

    def __init__(self, nodes: int, per_node: int) -> None:
        self._per_node = per_node
        self._free = [per_node] * nodes
        self._spread = [0] * nodes

    def place(self, gpus: int, scattered: int = 2) -> Allocation | None:
        """Find a placement for ``gpus`` GPUs; None if there is none."""
        if gpus <= self._per_node:
            enough = [(free, node) for node, free in enumerate(self._free) if free >= gpus]
            if enough:
                return (min(enough)[1],) * gpus
        allowed = [node for node, free in enumerate(self._free) if free and not self._spread[node]]
        allowed.sort(key=lambda node: (-self._free[node], node))
        found: dict[int, int] = {}
        left = gpus
        while left and allowed:
            fits = [node for node in allowed if self._free[node] >= left]
            node = min(fits, key=lambda node: (self._free[node], node)) if fits else allowed[0]
            allowed.remove(node)
            found[node] = min(left, self._free[node])
            left -= found[node]
        if left or len(found) > -(-gpus // self._per_node) + scattered:
            return None
        return tuple(node for node in sorted(found) for _ in range(found[node]))

    def fits(self, allocation: Allocation) -> bool:
        """Whether exactly these GPUs are free."""
        nodes = set(allocation)
        alone = len(nodes) == 1 or not any(self._spread[node] for node in nodes)
        return alone and all(self._free[node] >= allocation.count(node) for node in nodes)

    def put(self, allocation: Allocation, sign: int = 1) -> None:
        """Take these GPUs; with -1, give them back."""
        nodes = set(allocation)
        for node in nodes:
            self._free[node] -= sign * allocation.count(node)
            self._spread[node] += sign * (len(nodes) > 1)
