"""What cadences are compared with: a job that is played through."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np

from deeppart.plan.interval import LevelCost


def played_efficiency(
    levels: Sequence[LevelCost], training_s: float, every: Sequence[int], failures: int, seed: int
) -> float:
    """The share of the time that was new training when a job had so many failures, drawn at random.

    Nothing is taken from the model: calls, completions, failures and restarts are played one after the other.
    """
    draw = random.Random(seed)
    rates = [each.failures_per_s for each in levels]
    rate, places = sum(rates), range(len(levels))
    calls_s = [
        sum(each.cost_s for each, n in zip(levels, every, strict=True) if number % n == 0)
        for number in range(1, math.lcm(*every) + 1)
    ]
    pattern = [training_s + each for each in calls_s]
    ends = np.concatenate(([0.0], np.cumsum(pattern)))  # of calls, in time without failures

    def end_of(call: int) -> float:
        rounds, rest = divmod(call, len(pattern))
        return float(rounds * ends[-1] + ends[rest])

    def call_at(seconds: float) -> int:
        rounds, rest = divmod(seconds, float(ends[-1]))
        return int(rounds) * len(pattern) + int(np.searchsorted(ends, rest, side="right")) - 1

    def complete_at(call: int, latency_s: float) -> float:
        """A latency begins with the call, and nothing is complete before the call is over."""
        end = end_of(call)
        return max(end, end - calls_s[(call - 1) % len(pattern)] + latency_s)

    complete = [0 for _ in levels]  # newest call that is complete on a level
    clock, here, highest_call = 0.0, 0, 0
    for _ in range(failures):
        after = draw.expovariate(rate)
        clock += after
        begun = end_of(here)
        for place, (each, n) in enumerate(zip(levels, every, strict=True)):
            newest = call_at(begun + after) // n * n
            while newest > here and complete_at(newest, each.latency_s) > begun + after:
                newest -= n
            if newest > here:  # older ones had been complete, or were lost, when training went on from here
                complete[place] = newest
        worst = draw.choices(places, rates)[0]
        while True:
            pause = draw.expovariate(rate)
            if pause >= levels[worst].restart_s:
                clock += levels[worst].restart_s
                break
            clock += pause
            worst = max(worst, draw.choices(places, rates)[0])
        here = max(complete[worst:])
        complete = [min(each, here) if place < worst else each for place, each in enumerate(complete)]
        highest_call = here
    return highest_call * training_s / clock
