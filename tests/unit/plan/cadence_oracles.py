"""What cadences are compared with: a chain of states that is solved, and a job that is played through."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np

from deeppart.plan.interval import LevelCost


def markov_efficiency(levels: Sequence[LevelCost], period_s: float, every: Sequence[int]) -> float:
    """Expected efficiency of a pattern of checkpoints, exactly: an absorbing Markov chain, solved.

    After Moody et al. 2010 (section 4, there as a recursion): segments of work, each followed by a checkpoint of the
    highest level due; a failure that needs level l goes back to the newest checkpoint of a level that survives it; and
    failures strike checkpoints and restarts as well.
    """
    pattern = math.lcm(*every)
    due = [max(place for place, n in enumerate(every) if number % n == 0) for number in range(1, pattern + 1)]
    rates = [each.failures_per_s for each in levels]
    rate = sum(rates)
    # State 2k: working on segment k; 2k + 1 for each level: restarting after a failure of that level, then segment k.
    count = pattern * (1 + len(levels))
    matrix, constant = np.eye(count), np.zeros(count)

    def index(segment: int, restarting: int | None = None) -> int:
        return segment * (1 + len(levels)) + (0 if restarting is None else 1 + restarting)

    def back_to(segment: int, failure: int) -> int:
        """First segment to be done again: the one after the newest checkpoint that survives."""
        for number in range(segment, 0, -1):
            if due[number - 1] >= failure:
                return number
        return 0

    for segment in range(pattern):
        for restarting in (None, *range(len(levels))):
            cost = sum(each.cost_s for each in levels[: due[segment] + 1])
            span = period_s + cost if restarting is None else levels[restarting].restart_s
            stays = math.exp(-rate * span)
            lasts = 1 / rate - span * stays / -math.expm1(-rate * span) if span else 0.0
            row = index(segment, restarting)
            constant[row] = stays * span + (1 - stays) * lasts
            onward = index(segment + 1) if restarting is None else index(segment)
            if restarting is None and segment + 1 == pattern:
                onward = -1
            if onward >= 0:
                matrix[row, onward] -= stays
            for failure in range(len(levels)):
                worst = failure if restarting is None else max(failure, restarting)
                matrix[row, index(back_to(segment, worst), worst)] -= (1 - stays) * rates[failure] / rate
    expected = np.linalg.solve(matrix, constant)
    return pattern * period_s / float(expected[0])


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
