"""Cadences: what the model says, against published formulas, brute force, and a published Markov model."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deeppart.errors import ConfigError
from deeppart.plan.interval import LEAST_PERIOD_S, LevelCost, best, daly, least_of, waste, young
from deeppart.plan.multiples import MOST_EVERY
from tests.sampling import examples
from tests.unit.plan.cadence_oracles import markov_efficiency, played_efficiency


def level(name: str, cost: float, rate: float, **more: float) -> LevelCost:
    return LevelCost(name, cost, restart_s=more.pop("restart", 0.0), failures_per_s=rate, **more)


#: Checkpoint costs and failure rates at LLNL: A. Moody, G. Bronevetsky, K. Mohror, B. R. de Supinski, Design,
#: Modeling, and Evaluation of a Scalable Multi-level Checkpointing System, SC 2010.
COASTAL = (level("local", 15, 8.54e-7, restart=15), level("pfs", 1835, 2.01e-7, restart=1835))
ATLAS = (level("local", 9, 7.78e-6, restart=9), level("pfs", 438, 5.19e-7, restart=438))


# --- one level --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cost", "mtbf"), [(1e-3, 1e6), (1.0, 1e6), (60.0, 1e8)])
def test_one_level_is_young_where_failures_are_rare(cost: float, mtbf: float) -> None:
    found = best([level("only", cost, 1 / mtbf)])
    assert found.period_s == pytest.approx(young(cost, mtbf), rel=0.01)
    assert found.every == {"only": 1}


def _wall(cost: float, mtbf: float, training: float, restart: float = 0.0) -> float:
    """Wall time per useful time, equation 20 of Daly 2006."""
    return mtbf * math.exp(restart / mtbf) * math.expm1((training + cost) / mtbf) / training


@pytest.mark.parametrize("restart", [0.0, 600.0])
@pytest.mark.parametrize(("cost", "mtbf"), [(60.0, 86400.0), (3600.0, 86400.0), (1800.0, 3600.0), (3600.0, 600.0)])
def test_one_level_is_the_best_of_dalys_complete_model(cost: float, mtbf: float, restart: float) -> None:
    found = best([level("only", cost, 1 / mtbf, restart=restart)])
    walls = [_wall(cost, mtbf, training, restart) for training in np.geomspace(cost / 100, 100 * mtbf, 20001)]
    assert _wall(cost, mtbf, found.period_s - cost, restart) <= min(walls) * 1.0001
    assert 1 - found.waste.total == pytest.approx(1 / min(walls), rel=1e-4)
    if cost < mtbf:
        assert _wall(cost, mtbf, daly(cost, mtbf), restart) <= min(walls) * 1.01  # his equation 37 is close


def test_daly_where_a_checkpoint_takes_longer_than_failures_leave() -> None:
    assert daly(100.0, 50.0) == 50.0 == daly(101.0, 50.0)


# --- several levels ---------------------------------------------------------------------------------------------------


def _optimum_of_benoit(levels: Sequence[LevelCost]) -> float:
    """The least waste to first order with rational periods: sum of sqrt(2 C r) (Benoit et al. 2017, theorem 2)."""
    return sum(math.sqrt(2 * each.cost_s * each.failures_per_s) for each in levels)


@pytest.mark.parametrize("levels", [COASTAL, ATLAS])
def test_several_levels_come_near_the_optimum_of_benoit(levels: tuple[LevelCost, ...]) -> None:
    """Whole multiples cost a little; what the model adds (failures while checkpointing) takes a little away."""
    plain = [replace(each, restart_s=0.0) for each in levels]
    found = best(plain)
    assert found.waste.total == pytest.approx(_optimum_of_benoit(plain), rel=0.03)


@pytest.mark.parametrize(("levels", "name"), [(COASTAL, "Coastal"), (ATLAS, "Atlas")])
def test_the_cadence_is_the_best_of_the_markov_model_of_moody(levels: tuple[LevelCost, ...], name: str) -> None:
    """A search over periods and multiples in the exact model finds nothing better by more than half a percent."""
    found = best(levels)
    every = [found.every[each.name] for each in levels]
    cost = sum(each.cost_s / n for each, n in zip(levels, every, strict=True))
    ours = markov_efficiency(levels, found.period_s - cost, every)
    others = [
        markov_efficiency(levels, period, (1, n))
        for n in sorted({1, 2, 3, 5, 8, 12, 16, 24, 32, every[1], 2 * every[1]})
        for period in np.geomspace(found.period_s / 5, found.period_s * 5, 15)
    ]
    assert max(others) - ours <= 1e-5, name
    assert ours == pytest.approx(1 - found.waste.total, rel=1e-9)


def test_failures_that_come_nearly_as_often_as_checkpoints() -> None:
    """A checkpoint costs 1800 s, a restart takes 600 s, failures come every hour: as much gets done as can be."""
    for latency_s in (0.0, 900.0, 1800.0):  # complete with the end of the call, in each case
        found = best([level("only", 1800.0, 1 / 3600, restart=600.0, latency_s=latency_s)])
        assert 1 - found.waste.total == pytest.approx(0.2554, rel=1e-3)


@pytest.mark.parametrize("seed", range(24))
def test_nothing_wastes_one_percent_less_whatever_the_machine(seed: int) -> None:
    """Costs, restarts and failure rates over six orders of magnitude; the others are solved by another model."""
    draw = random.Random(seed)
    mtbf = 10 ** draw.uniform(3, 6)
    shares = sorted((10 ** draw.uniform(-3, 0) for _ in range(draw.randint(1, 3))), reverse=True)
    costs = sorted(mtbf * 10 ** draw.uniform(-6, -0.3) for _ in shares)
    levels = [
        level(str(place), cost, share / sum(shares) / mtbf, restart=mtbf * 10 ** draw.uniform(-5, -0.5))
        for place, (cost, share) in enumerate(zip(costs, shares, strict=True))
    ]
    found = best(levels)
    every = tuple(found.every.values())
    cost = sum(each.cost_s / n for each, n in zip(levels, every, strict=True))
    if math.lcm(*every) <= 60:
        ours = markov_efficiency(levels, found.period_s - cost, every)
        assert 1 - found.waste.total == pytest.approx(ours, rel=1e-6)
    ours = 1 - found.waste.total
    ratios = (1, 2, 3, 4, 6, 9, 15, 30)
    for others in itertools.product(ratios, repeat=len(levels) - 1):
        multiples = tuple(itertools.accumulate(others, int.__mul__, initial=1))
        if multiples[-1] > 60:
            continue
        for training in np.geomspace(found.period_s / 30, found.period_s * 30, 13 if len(levels) < 3 else 7):
            other = markov_efficiency(levels, float(training), multiples)
            assert 1 - ours <= (1 - other) * 1.01, (multiples, training)


def test_multiples_that_do_not_divide_each_other_where_they_save_two_percent() -> None:
    """Of 1, 2, 6 and 1, 2, 4 neither is near 1, 2, 5."""
    costs, restarts = (162.0, 697.0, 2150.0), (846.0, 27.4, 220.0)
    mtbfs = (2.44e5, 1.75e5, 5.68e5)
    levels = [
        level(str(place), cost, 1 / mtbf, restart=restart)
        for place, (cost, restart, mtbf) in enumerate(zip(costs, restarts, mtbfs, strict=True))
    ]
    found = best(levels)
    every = (1, 2, 5)
    cost = sum(each.cost_s / n for each, n in zip(levels, every, strict=True))
    # The walk is the chain of states, but for which calls coincide: close enough for a percent.
    assert found.waste.total <= waste(levels, 9224.0, every).total * 1.001
    assert found.waste.total < 0.2
    played = played_efficiency(levels, 9224.0 - cost, every, 40_000, 1)
    assert waste(levels, 9224.0, every).total == pytest.approx(1 - played, rel=0.02)


def test_long_patterns_that_do_not_divide_each_other_are_not_taken_for_their_beginning() -> None:
    levels = [
        level("a", 0.0, 1 / 1910, restart=7.56),
        level("b", 0.497, 1 / 945, restart=0.497),
        level("c", 1.26, 1 / 1140, restart=5.04),
        level("d", 155.0, 1 / 2320, restart=348.0),
    ]
    for every in ((1, 84, 57, 1020), (1, 60, 230, 900)):
        cost = sum(each.cost_s / n for each, n in zip(levels, every, strict=True))
        played = played_efficiency(levels, 0.7525 - cost, every, 20_000, 1)
        assert waste(levels, 0.7525, every).total == pytest.approx(1 - played, rel=0.03)


def test_a_call_that_costs_next_to_nothing_does_not_put_the_others_out_of_reach() -> None:
    """Calls every few milliseconds would let the file system have one at every 10,000th at most: every half minute."""
    levels = [
        level("local", 1e-6, 1 / 3600, restart=30.0),
        level("persistent", 600.0, 1 / (30 * 86400), restart=600.0),
    ]
    found = best(levels)
    assert found.interval_s("persistent") == pytest.approx(young(600.0, 30 * 86400), rel=0.2)
    assert found.every["persistent"] < MOST_EVERY


def test_a_level_that_is_not_needed_is_hardly_ever_written() -> None:
    found = best([level("local", 1.0, 1e-4), level("persistent", 50.0, 0.0)])
    assert found.every == {"local": 1, "persistent": MOST_EVERY}
    assert found.period_s == pytest.approx(young(1.0, 1e4), rel=0.05)


def test_a_cheaper_level_that_no_failure_needs_goes_with_the_next() -> None:
    found = best([level("local", 0.0, 0.0), level("partner", 1.0, 1e-4)])
    assert found.every == {"local": 1, "partner": 1}


def test_calls_are_no_closer_than_a_step_and_than_the_background_allows() -> None:
    assert best([level("only", 0.01, 1e-3)], least_period_s=30.0).period_s == pytest.approx(30.0)
    assert best([level("only", 0.01, 1e-3, busy_s=20.0)]).period_s == pytest.approx(20.0)
    assert best([level("free", 0.0, 1e-3)]).period_s == pytest.approx(LEAST_PERIOD_S)


_RATES = st.floats(1e-9, 1e-4)
_COSTS = st.floats(1e-3, 2000.0)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(_COSTS, _RATES), min_size=1, max_size=3), st.sampled_from([0.0, 1.0, 600.0]))
# A level in between that costs more than the highest one: best left out, its failures met by the highest.
@example([(7.2, 1.9e-6), (214.5, 5.7e-8), (110.4, 3.1e-9)], 0.0)
@example([(1.5, 9e-6), (1486.0, 1.2e-8), (233.0, 3.1e-6)], 600.0)
def test_no_other_cadence_on_a_grid_wastes_less(raw: list[tuple[float, float]], least: float) -> None:
    levels = [level(str(place), cost, rate) for place, (cost, rate) in enumerate(raw)]
    found = best(levels, least)
    multiples = (1, 2, 3, 4, 6, 9, 14, 40)
    periods = np.geomspace(max(least, LEAST_PERIOD_S, found.period_s / 30), found.period_s * 30, 15)
    for every in itertools.product((1,), *(multiples for _ in levels[1:])):
        for period in periods:
            other = waste(levels, float(period), every).total
            assert found.waste.total <= other * 1.01 + 1e-9, (every, period)


@given(st.lists(st.tuples(_COSTS, _RATES), min_size=1, max_size=4))
def test_shares_of_waste_add_up(raw: list[tuple[float, float]]) -> None:
    levels = [level(str(place), cost, rate, restart=cost, latency_s=cost) for place, (cost, rate) in enumerate(raw)]
    found = best(levels)
    assert found.waste.cost >= 0 and found.waste.rework >= 0 and found.waste.restart >= 0
    assert found.waste.total == pytest.approx(
        min(1.0, found.waste.cost + found.waste.rework + found.waste.restart), abs=1e-12
    )
    assert found.interval_s("0") == found.period_s


def test_a_cadence_that_gets_nothing_done_wastes_everything() -> None:
    assert waste([level("only", 10.0, 1e-3)], 5.0, [1]).total == 1.0
    assert waste([level("only", 0.1, 1.0, restart=600.0)], 5.0, [1]).total == 1.0
    assert waste([level("only", 0.1, 1.0)], 900.0, [1]).total == 1.0
    assert waste([level("only", 0.1, 0.1, latency_s=1e4)], 5.0, [1]).total == 1.0  # never complete in time


@pytest.mark.parametrize("levels", [[], [level("local", 1.0, 0.0)]])
def test_without_failures_there_is_no_best_cadence(levels: list[LevelCost]) -> None:
    with pytest.raises(ConfigError, match="without failures"):
        best(levels)


@pytest.mark.parametrize("field", ["cost_s", "latency_s", "busy_s", "restart_s", "failures_per_s"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_impossible_costs_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError) as caught:
        LevelCost("local", **{"cost_s": 1.0, field: value})
    assert field in str(caught.value) and "local" in str(caught.value)


@pytest.mark.parametrize("guess", [-4.0, 0.0, 2.9, 3.0, 40.0])
@pytest.mark.parametrize("power", [2, 4, 1.1])
def test_it_is_found_from_anywhere(guess: float, power: float) -> None:
    found = least_of(lambda x: abs(x - 3) ** power, -5.0, guess, 1e-4)
    assert found == pytest.approx(3.0, abs=0.02)


def test_at_the_end_where_the_function_only_rises() -> None:
    assert least_of(math.exp, -2.0, 5.0, 1e-3) == pytest.approx(-2.0, abs=0.01)
    assert least_of(math.exp, -2.0, -9.0, 1e-3) == pytest.approx(-2.0, abs=0.01)


def test_where_the_guess_is_infinitely_bad() -> None:
    def valley(x: float) -> float:
        return (x - 1) ** 2 if x < 4 else math.inf

    assert least_of(valley, -10.0, 30.0, 1e-4) == pytest.approx(1.0, abs=0.01)


def test_few_values_are_asked_for() -> None:
    asked: list[float] = []

    def valley(x: float) -> float:
        asked.append(x)
        return math.cosh(x - 7)

    least_of(valley, 0.0, 6.0, 0.003)
    assert len(asked) < 25
