"""Cadences: what the model says, against published formulas, brute force, and a published Markov model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deeppart.errors import ConfigError
from deeppart.plan.interval import LEAST_PERIOD_S, MOST_EVERY, LevelCost, best, daly, waste, young
from tests.sampling import examples


def level(name: str, cost: float, rate: float, **more: float) -> LevelCost:
    return LevelCost(name, cost, restart_s=more.pop("restart", 0.0), failures_per_s=rate, **more)


#: Checkpoint costs and failure rates at LLNL: A. Moody, G. Bronevetsky, K. Mohror, B. R. de Supinski, Design,
#: Modeling, and Evaluation of a Scalable Multi-level Checkpointing System, SC 2010.
COASTAL = (level("local", 15, 8.54e-7, restart=15), level("pfs", 1835, 2.01e-7, restart=1835))
ATLAS = (level("local", 9, 7.78e-6, restart=9), level("pfs", 438, 5.19e-7, restart=438))


# --- one level --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cost", "mtbf"), [(1.0, 1e4), (60.0, 86400.0), (1800.0, 1e6)])
def test_one_level_is_young(cost: float, mtbf: float) -> None:
    found = best([level("only", cost, 1 / mtbf)])
    assert found.period_s == pytest.approx(young(cost, mtbf), rel=1e-9)
    assert found.every == {"only": 1}


@pytest.mark.parametrize(("cost", "mtbf"), [(60.0, 86400.0), (600.0, 86400.0), (3600.0, 86400.0)])
def test_daly_is_the_best_of_his_own_model(cost: float, mtbf: float) -> None:
    """Wall time per useful time, equation 20 of Daly 2006, is least within a percent of where equation 37 says."""

    def wall(period: float) -> float:
        return mtbf * math.expm1((period + cost) / mtbf) / period

    periods = np.geomspace(cost / 10, 10 * mtbf, 20001)
    least = min(wall(period) for period in periods)
    assert wall(daly(cost, mtbf)) <= least * 1.0005
    assert wall(best([level("only", cost, 1 / mtbf)]).period_s - cost) <= least * 1.01


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


def _markov_efficiency(levels: Sequence[LevelCost], period_s: float, every: Sequence[int]) -> float:
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


@pytest.mark.parametrize(("levels", "name"), [(COASTAL, "Coastal"), (ATLAS, "Atlas")])
def test_the_cadence_is_the_best_of_the_markov_model_of_moody(levels: tuple[LevelCost, ...], name: str) -> None:
    """A search over periods and multiples in the exact model finds nothing better by more than half a percent."""
    found = best(levels)
    every = [found.every[each.name] for each in levels]
    cost = sum(each.cost_s / n for each, n in zip(levels, every, strict=True))
    ours = _markov_efficiency(levels, found.period_s - cost, every)
    others = [
        _markov_efficiency(levels, period, (1, n))
        for n in sorted({1, 2, 3, 5, 8, 12, 16, 24, 32, every[1], 2 * every[1]})
        for period in np.geomspace(found.period_s / 5, found.period_s * 5, 15)
    ]
    assert max(others) - ours <= 0.005, name
    assert ours == pytest.approx(1 - found.waste.total, abs=0.01)


def test_a_level_that_is_not_needed_is_hardly_ever_written() -> None:
    found = best([level("local", 1.0, 1e-4), level("persistent", 50.0, 0.0)])
    assert found.every == {"local": 1, "persistent": MOST_EVERY}
    assert found.period_s == pytest.approx(young(1.0, 1e4), rel=0.05)


def test_a_cheaper_level_that_no_failure_needs_goes_with_the_next() -> None:
    found = best([level("local", 0.0, 0.0), level("partner", 1.0, 1e-4)])
    assert found.every == {"local": 1, "partner": 1}


def test_calls_are_no_closer_than_a_step_and_than_the_background_allows() -> None:
    assert best([level("only", 0.01, 1e-3)], least_period_s=30.0).period_s == 30.0
    assert best([level("only", 0.01, 1e-3, busy_s=20.0)]).period_s == 20.0
    assert best([level("free", 0.0, 1e-3)]).period_s == LEAST_PERIOD_S


_RATES = st.floats(1e-9, 1e-4)
_COSTS = st.floats(1e-3, 2000.0)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(_COSTS, _RATES), min_size=1, max_size=3), st.sampled_from([0.0, 1.0, 600.0]))
# A level in between that costs more than the highest one: best left out, its failures met by the highest.
@example([(7.2, 1.9e-6), (214.5, 5.7e-8), (110.4, 3.1e-9)], 0.0)
@example([(1.5, 9e-6), (1486.0, 1.2e-8), (233.0, 3.1e-6)], 600.0)
def test_no_other_cadence_on_a_grid_wastes_less(raw: list[tuple[float, float]], least: float) -> None:
    levels = [level(str(place), cost, rate) for place, (cost, rate) in enumerate(raw)]
    found = best(levels, least)
    multiples = (1, 2, 3, 4, 6, 9, 14, 20, 40, 100)
    periods = np.geomspace(max(least, LEAST_PERIOD_S, found.period_s / 30), found.period_s * 30, 25)
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
    assert waste([level("only", 0.1, 1.0, restart=50.0)], 5.0, [1]).total == 1.0


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
