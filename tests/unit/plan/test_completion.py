"""Expected times: against a job that is played through, and against a chain of states that is solved."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from deeppart.plan.completion import comebacks, expected_s
from deeppart.plan.interval import LevelCost
from tests.unit.plan.cadence_oracles import markov_efficiency, played_efficiency


def machine(seed: int, *, latencies: bool) -> tuple[list[LevelCost], float]:
    """Levels, and a period that is not far from a good one."""
    draw = random.Random(seed)
    count, mtbf = draw.randint(1, 3), 10 ** draw.uniform(3, 6)
    shares = sorted((10 ** draw.uniform(-2, 0) for _ in range(count)), reverse=True)
    costs = sorted(mtbf * 10 ** draw.uniform(-5, -1) for _ in shares)
    levels = [
        LevelCost(
            str(place),
            cost,
            latency_s=mtbf * 10 ** draw.uniform(-4, -1) if latencies else 0.0,
            restart_s=mtbf * 10 ** draw.uniform(-4, -0.5),
            failures_per_s=share / sum(shares) / mtbf,
        )
        for place, (cost, share) in enumerate(zip(costs, shares, strict=True))
    ]
    return levels, math.sqrt(2 * costs[0] * mtbf) * 10 ** draw.uniform(-0.5, 0.5)


@pytest.mark.parametrize("every", [(1, 1, 1), (1, 2, 6), (1, 5, 5), (1, 1, 8), (1, 4, 20)])
@pytest.mark.parametrize("seed", range(8))
def test_the_same_as_the_chain_of_states(seed: int, every: tuple[int, ...]) -> None:
    levels, training = machine(seed, latencies=False)
    multiples = every[: len(levels)]
    found = training / expected_s(levels, comebacks(levels), training, multiples)
    assert found == pytest.approx(markov_efficiency(levels, training, multiples), rel=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_within_three_percent_of_a_job_that_is_played(seed: int) -> None:
    """Of the waste; with levels that are complete later, some after the next call, and multiples of any kind."""
    levels, training = machine(seed, latencies=True)
    multiples = [(1,), (1, 3), (1, 2, 5)][len(levels) - 1]
    played = played_efficiency(levels, training, multiples, 30_000, seed)
    found = training / expected_s(levels, comebacks(levels), training, multiples)
    assert 1 - found == pytest.approx(1 - played, rel=0.03)


@pytest.mark.parametrize("every", [(1, 1, 1), (1, 3, 12)])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_what_is_complete_with_its_call_is_not_late(share: float, every: tuple[int, ...]) -> None:
    """torch.save: the call takes as long as the writing. To say so changes nothing, and no work is lost twice."""
    levels, training = machine(5, latencies=False)
    assert len(levels) == 3
    said = [replace(each, latency_s=share * each.cost_s) for each in levels]
    expected = expected_s(levels, comebacks(levels), training, every)
    assert expected_s(said, comebacks(said), training, every) == pytest.approx(expected, rel=1e-12)
    assert training / expected == pytest.approx(markov_efficiency(levels, training, every), rel=1e-9)


@pytest.mark.parametrize("every", [(1,), (4,)])
def test_a_latency_counts_from_the_beginning_of_the_call(every: tuple[int, ...]) -> None:
    """By hand: a failure after a call is over finds it incomplete for latency - cost, and no longer."""
    slow = LevelCost("only", 300.0, latency_s=500.0, restart_s=60.0, failures_per_s=1e-7)
    quick = replace(slow, latency_s=0.0)
    training = 5000.0
    late = expected_s([slow], comebacks([slow]), training, every) - expected_s(
        [quick], comebacks([quick]), training, every
    )
    per_call = training + 300.0 / every[0]
    assert late == pytest.approx(1e-7 * per_call * 200.0, rel=0.02)


def test_multiples_of_any_kind_are_close_to_the_chain_of_states() -> None:
    """Which calls coincide begins anew with each at the highest level: that is not so, and makes little difference."""
    levels, training = machine(5, latencies=False)
    assert len(levels) == 3
    for every in ((1, 2, 5), (1, 3, 7), (1, 4, 9)):
        found = training / expected_s(levels, comebacks(levels), training, every)
        played = played_efficiency(levels, training, every, 30_000, 1)
        assert 1 - found == pytest.approx(1 - played, rel=0.03)


def test_nothing_that_ends_is_infinite_and_no_failures_are_no_time() -> None:
    often = [LevelCost("only", 1.0, restart_s=1e4, failures_per_s=1.0)]
    assert math.isinf(expected_s(often, comebacks(often), 1.0, [1]))
    assert math.isinf(expected_s(often, comebacks(often), 1e4, [1]))
    never = [LevelCost("only", 1.0), LevelCost("more", 4.0)]
    assert expected_s(never, comebacks(never), 10.0, [1, 2]) == 13.0


def test_the_time_to_come_back_has_the_failures_that_strike_meanwhile() -> None:
    levels = [
        LevelCost("a", 1.0, restart_s=100.0, failures_per_s=3e-3),
        LevelCost("b", 1.0, restart_s=900.0, failures_per_s=1e-3),
    ]
    back, draw, spent, ends, count = comebacks(levels), random.Random(1), 0.0, 0, 40_000
    for _ in range(count):
        worst = draw.choices((0, 1), (3, 1))[0]
        while (pause := draw.expovariate(4e-3)) < levels[worst].restart_s:
            spent += pause
            worst = max(worst, draw.choices((0, 1), (3, 1))[0])
        spent += levels[worst].restart_s
        ends += worst
    assert back.mean_s == pytest.approx(spent / count, rel=0.03)
    assert back.highest[1] == pytest.approx(ends / count, rel=0.03)
    assert back.share == pytest.approx(4e-3 * back.mean_s / (1 + 4e-3 * back.mean_s))


def test_a_job_that_hardly_ever_comes_back_takes_very_long_and_nothing_breaks() -> None:
    """Up to 500 failures in the time of a restart: the chance to come back is less than what a float has beside 1."""
    for failures in (30.0, 40.0, 100.0, 499.0, 600.0):
        levels = [LevelCost("a", 1.0, restart_s=1.0), LevelCost("b", 1.0, restart_s=1.0, failures_per_s=failures)]
        back = comebacks(levels)
        if failures < 500:
            assert back.mean_s == pytest.approx(math.expm1(failures) / failures)
        else:
            assert math.isinf(back.mean_s)
        assert back.share == pytest.approx(1.0) and sum(back.highest) == pytest.approx(1.0)
