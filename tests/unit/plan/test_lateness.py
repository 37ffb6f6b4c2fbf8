"""What lateness costs: by hand for one level, and against jobs that are played, with flushes that are lost."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from deeppart.plan.completion import comebacks, cost_per_call_s, expected_s
from deeppart.plan.interval import LevelCost, best
from deeppart.plan.lateness import factor, late_s, lost_in_a_row
from tests.unit.plan.cadence_oracles import played_efficiency


def waste_of(levels: list[LevelCost], training_s: float, every: tuple[int, ...]) -> float:
    return 1 - training_s / expected_s(levels, comebacks(levels), training_s, every)


@pytest.mark.parametrize("late", [0.2, 1.0, 7.0])
def test_one_level_takes_exp_of_the_failures_while_it_is_late(late: float) -> None:
    """Also where calls begin before the last one is complete, and where failures come as often as calls."""
    rate, training, cost = 1 / 30, 10.0, 1.0
    level = LevelCost("only", cost, latency_s=cost + late * 11.0, failures_per_s=rate)
    assert factor([level], [1], 11.0, rate, [1.0], math.expm1(rate * 11.0)) == pytest.approx(math.exp(rate * late * 11))
    played = played_efficiency([level], training, [1], 30_000, 1)
    assert waste_of([level], training, (1,)) == pytest.approx(1 - played, rel=0.02)


def test_nothing_is_late_that_is_complete_with_its_call() -> None:
    level = LevelCost("only", 5.0, latency_s=5.0, failures_per_s=1e-3)
    assert factor([level], [1], 50.0, 1e-3, [1.0], 0.05) == 1.0


def test_a_level_that_is_left_out_does_not_make_the_others_complete() -> None:
    """Of the calls to the highest level hardly any goes to the one below, which would be complete sooner."""
    quick, slow = LevelCost("quick", 1.0, latency_s=11.0), LevelCost("slow", 10.0, latency_s=1010.0)
    assert late_s([quick, slow], [1, 4], 1e4) == [10.0 * 3 / 4, 999.0]  # a call to both lasts 11 s
    assert late_s([quick, slow], [10_000, 4], 1e4)[0] == pytest.approx(1000.0, rel=1e-3)
    levels = [
        LevelCost("a", 0.348, 10.4, restart_s=20.8, failures_per_s=1 / 5.15e5),
        LevelCost("b", 1.14, 0.57, restart_s=7.66, failures_per_s=1 / 5.51e4),
        LevelCost("c", 21.3, 63.8, restart_s=21.5, failures_per_s=1 / 3.36e4),
        LevelCost("d", 36.1, 1080.0, restart_s=286.0, failures_per_s=1 / 3.84e5),
    ]
    played = played_efficiency(levels, 393.2, (1, 1, 10_000, 4), 20_000, 1)
    assert waste_of(levels, 393.2, (1, 1, 10_000, 4)) == pytest.approx(1 - played, rel=0.03)


def predicted_and_played(
    levels: list[tuple[float, ...]], training_s: float, every: tuple[int, ...]
) -> tuple[float, float]:
    """The waste of levels that are (cost, latency, restart, mean time between failures)."""
    known = [
        LevelCost(str(place), cost, latency, restart_s=restart, failures_per_s=1 / mtbf)
        for place, (cost, latency, restart, mtbf) in enumerate(levels)
    ]
    return waste_of(known, training_s, every), 1 - played_efficiency(known, training_s, every, 30_000, 1)


@pytest.mark.parametrize(
    ("levels", "training_s", "every"),
    [
        # a flush that lower failures interrupt
        ([(0.771, 23.1, 29.6, 1.37e4), (219.0, 6.56e3, 1.74, 9.68e4)], 295.2, (1, 25)),
        ([(22400.0, 0.0, 3.24e3, 2.35e6), (72800.0, 728000.0, 5.94e3, 4.7e7)], 278000.0, (1, 8)),
        ([(0.000132, 0.0, 0.0, 50.0), (2.0, 27.0, 1.0, 70.0)], 23.0, (1, 1)),
        ([(0.505, 5.05, 5.54, 1430.0), (15.0, 449.0, 49.2, 1640.0)], 22.76, (1, 15)),
    ],
)
def test_what_is_in_the_background_is_lost_with_the_processes(
    levels: list[tuple[float, ...]], training_s: float, every: tuple[int, ...]
) -> None:
    predicted, played = predicted_and_played(levels, training_s, every)
    assert predicted == pytest.approx(played, rel=0.035)


@pytest.mark.parametrize(
    ("levels", "training_s", "every"),
    [
        ([(0.882, 0.0, 19.67, 144.4), (6.5, 195.0, 53.12, 1522.0)], 12.73, (1, 4)),
        ([(3.09, 3.09, 0.015, 55.28), (4.1, 122.9, 7.03, 158.6)], 8.94, (1, 1)),
        ([(2.17, 65.0, 3.18, 2697.0), (214.0, 6430.0, 8.61, 4736.0)], 55.4, (1, 7)),
        ([(0.23, 0.0, 0.4, 6.6e3), (285.0, 8550.0, 554.0, 2.98e5)], 282.0, (1, 8)),
        # two levels of which one has the calls of the other, and is never written itself
        ([(0.007, 0.02, 0.45, 31.6), (1.1, 11.0, 0.1, 489.0), (1.01, 30.3, 0.25, 56.1)], 6.0, (1, 10_000, 5)),
        (
            [(4.73, 2.37, 261.0, 4.67e4), (1181.0, 1.18e4, 3195.0, 1.03e5), (353.0, 1.06e4, 37.3, 4.15e4)],
            844.0,
            (1, 10_000, 12),
        ),
        # two levels that are complete at different times after the same calls
        (
            [(133.0, 3980.0, 337.0, 11131.0), (84.8, 2543.0, 1.2, 21686.0), (205.0, 6140.0, 1.7, 12956.0)],
            1322.0,
            (1, 2, 1),
        ),
    ],
)
def test_flushes_take_longer_than_failures_leave(
    levels: list[tuple[float, ...]], training_s: float, every: tuple[int, ...]
) -> None:
    """Several are under way, and a failure strikes all of them."""
    predicted, played = predicted_and_played(levels, training_s, every)
    assert predicted == pytest.approx(played, rel=0.02)


@pytest.mark.parametrize(
    ("failures_per_s", "between_s", "late_s"), [(0.01, 50.0, 180.0), (0.02, 30.0, 20.0), (0.5, 1.0, 6.0)]
)
def test_calls_are_lost_in_runs(failures_per_s: float, between_s: float, late_s: float) -> None:
    """Against failures that are drawn: how many calls back the newest one is after which nothing struck for so long."""
    draw = random.Random(3)
    strikes, at = list[float](), 0.0
    while len(strikes) < 200_000:
        at += draw.expovariate(failures_per_s)
        strikes.append(at)
    calls = np.arange(0.0, at - 2 * late_s, between_s)
    after = np.array(strikes)[np.searchsorted(strikes, calls)] - calls
    complete = np.flatnonzero(after >= late_s)
    last = complete[np.searchsorted(complete, np.arange(complete[0], len(calls)), side="right") - 1]
    lost = (np.arange(complete[0], len(calls)) - last).mean()
    assert lost_in_a_row([(failures_per_s, late_s)], between_s) == pytest.approx(lost, rel=0.05)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_the_machine_the_best_cadence_wastes_what_is_predicted(seed: int) -> None:
    """Up to four levels, latencies as long as the background takes or longer, levels without failures, odd orders."""
    draw = random.Random(seed)
    count, mtbf = draw.randint(1, 4), 10 ** draw.uniform(1, 7)
    shares = [draw.random() ** 2 * draw.choice((0, 1, 1, 1)) for _ in range(count)]
    shares[draw.randrange(count)] += 0.5
    levels = []
    for place, share in enumerate(shares):
        cost = mtbf * 10 ** draw.uniform(-4, -1)
        latency = cost * draw.choice((0.0, 0.5, 3.0, 10.0, 30.0))
        restart = mtbf * 10 ** draw.uniform(-4, -0.5)
        rate = share / sum(shares) / mtbf
        levels.append(LevelCost(str(place), cost, latency, latency * draw.choice((0, 1)), restart, rate))
    found = best(levels)
    every = tuple(found.every.values())
    training_s = found.period_s - cost_per_call_s(levels, every)
    played = played_efficiency(levels, training_s, every, 60_000, seed)
    assert found.waste.total == pytest.approx(1 - played, rel=0.025)


@pytest.mark.parametrize("later", [1.0, 1.02, 1.1, 1.3, 2.0])
@pytest.mark.parametrize("late_s", [100.0, 300.0])
def test_levels_that_are_complete_at_nearly_the_same_time_are_nearly_one(late_s: float, later: float) -> None:
    levels: list[tuple[float, ...]] = [(1.0, late_s, 0.0, 2000.0), (2.0, late_s * later, 0.0, 2000.0)]
    predicted, played = predicted_and_played(levels, 50.0, (1, 1))
    assert predicted == pytest.approx(played, rel=0.025)


@pytest.mark.parametrize("late_s", [100.0, 1000.0])
@pytest.mark.parametrize("every", [(1, 2), (1, 4)])
def test_a_quick_higher_level_overtakes_a_slow_lower_one(late_s: float, every: tuple[int, int]) -> None:
    """What is not complete on the lower level after 100 s and more is on the higher one after 30."""
    levels: list[tuple[float, ...]] = [(1.0, late_s, 0.0, 2000.0), (2.0, 30.0, 0.0, 2000.0)]
    predicted, played = predicted_and_played(levels, 50.0, every)
    assert predicted == pytest.approx(played, rel=0.03)
    rare: list[tuple[float, ...]] = [(1.0, late_s, 0.0, 2000.0), (5.0, 900.0, 0.0, math.inf), (2.0, 30.0, 0.0, 2000.0)]
    again, _ = predicted_and_played(rare, 50.0, (every[0], 10_000, every[1]))
    assert again == pytest.approx(predicted, rel=0.01), "a level that is hardly ever written changes nothing"


@pytest.mark.parametrize("latencies_s", [(300.0, 1200.0), (1000.0, 2000.0)])
def test_latencies_beyond_the_time_between_failures_are_nearly_predicted(latencies_s: tuple[float, float]) -> None:
    """Outside of what the approximation is made for: docs/simulator.md has by how much it is off."""
    levels: list[tuple[float, ...]] = [(1.0, latencies_s[0], 0.0, 1111.0), (2.0, latencies_s[1], 0.0, 10_000.0)]
    predicted, played = predicted_and_played(levels, 50.0, (1, 1))
    assert predicted == pytest.approx(played, rel=0.06)


def test_what_never_gets_done_is_infinite() -> None:
    level = LevelCost("only", 0.1, latency_s=1e4, failures_per_s=0.1)
    assert math.isinf(expected_s([level], comebacks([level]), 5.0, [1])) or waste_of([level], 5.0, (1,)) > 1 - 1e-12


def test_a_call_is_as_good_as_complete_when_a_later_one_is() -> None:
    """Calls to a slow level between those to a quick one, of which they would be complete only after the next."""
    quick, slow = LevelCost("quick", 0.0, latency_s=0.0), LevelCost("slow", 0.0, latency_s=80.0)
    # 5 is complete with 10, which is 50 s later, and 10 at once, since it goes to both.
    assert late_s([quick, slow], (10, 5), 10.0) == [25.0, 80.0]
    assert late_s([quick, slow], (10, 5), 20.0) == [40.0, 80.0]  # before 10


@pytest.mark.parametrize(
    ("every", "latency_s", "training_s"),
    [((1, 10, 5), 80.0, 10.0), ((1, 12, 4), 60.0, 10.0), ((1, 20, 2), 150.0, 10.0), ((1, 10, 5), 5.0, 10.0)],
)
@pytest.mark.parametrize("middle", [0.0, 12.0])
def test_a_lower_level_that_is_written_more_rarely_than_a_slow_one(
    every: tuple[int, ...], latency_s: float, training_s: float, middle: float
) -> None:
    levels = [
        LevelCost("a", 0.1, restart_s=5.0, failures_per_s=1 / 3000),
        LevelCost("b", 0.2, latency_s=middle, restart_s=10.0, failures_per_s=1 / 2000),
        LevelCost("c", 0.5, latency_s=latency_s, restart_s=20.0, failures_per_s=1 / 20000),
    ]
    played = played_efficiency(levels, training_s, every, 40_000, 1)
    assert waste_of(levels, training_s, every) == pytest.approx(1 - played, rel=0.035)
