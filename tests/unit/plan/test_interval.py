"""Cadences: what the model says, against jobs that are played, and a published formula."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deeppart.errors import ConfigError
from deeppart.plan.interval import LEAST_PERIOD_S, LevelCost, best, cost_per_call_s, waste
from tests.sampling import examples
from tests.unit.plan.played import played_efficiency

# --- one level --------------------------------------------------------------------------------------------------------


def _wall(cost: float, mtbf: float, training: float, restart: float = 0.0) -> float:
    """Wall time per useful time, equation 20 of Daly 2006."""
    return mtbf * math.exp(restart / mtbf) * math.expm1((training + cost) / mtbf) / training


@pytest.mark.parametrize("restart", [0.0, 600.0])
@pytest.mark.parametrize(("cost", "mtbf"), [(60.0, 86400.0), (3600.0, 86400.0), (1800.0, 3600.0), (3600.0, 600.0)])
def test_one_level_is_the_best_of_dalys_complete_model(cost: float, mtbf: float, restart: float) -> None:
    found = best([LevelCost("only", cost, restart_s=restart, failures_per_s=1 / mtbf)])
    assert found.every == {"only": 1}
    walls = [_wall(cost, mtbf, training, restart) for training in np.geomspace(cost / 100, 100 * mtbf, 20001)]
    assert _wall(cost, mtbf, found.period_s - cost, restart) <= min(walls) * 1.0001
    assert 1 - found.waste.total == pytest.approx(1 / min(walls), rel=1e-4)


# --- several levels ---------------------------------------------------------------------------------------------------


#: (cost, latency, busy, restart, failures per second) of each level; the useful share with the best cadence of all, by
#: an exact expectation and a search over multiples of any kind; how much of that must be reached. By that expectation
#: the cadences of ``best`` lose 0.9 % of the useful time at most on 2,000 random machines with 33 minutes or more
#: between failures, and levels that cost up to 3 % of that and take up to all of it until they are complete (99 % of
#: them: less than 0.1 %). With costs of up to 10 % and three times the latency, 1.2 % lose more than 1 %, one 10 %.
#: Coastal is a machine of LLNL: A. Moody, G. Bronevetsky, K. Mohror, B. R. de Supinski, Design, Modeling, and
#: Evaluation of a Scalable Multi-level Checkpointing System, SC 2010.
MACHINES: dict[str, tuple[list[tuple[float, ...]], float, float]] = {
    "coastal": ([(15, 0, 0, 15, 8.54e-7), (1835, 0, 0, 1835, 2.01e-7)], 0.9677, 0.995),
    "2,048 nodes": (
        [(0.5, 5, 3, 200, 2.993e-5), (0.1, 10, 5, 240, 5.986e-5), (3, 150, 900, 600, 5.787e-6)], 0.9589, 0.995,
    ),
    "a failure an hour": (
        [(2, 20, 10, 120, 1.389e-4), (1, 60, 30, 180, 9.26e-5), (30, 900, 600, 400, 2.315e-5)], 0.8562, 0.99,
    ),
    "a flush as long as failures leave": (
        [(19.84, 198.4, 0, 3.534, 9.518e-5), (0.05575, 1.672, 1.672, 4.653, 1.666e-4),
         (46.84, 1405, 0, 36.71, 2.082e-4)], 0.5312, 0.99,
    ),
    "a level in between that is not worth it": (
        [(0.1758, 0, 0, 21.16, 8.877e-7), (5.553, 166.6, 166.6, 10.54, 2.104e-7), (38.41, 1152, 0, 471.6, 6.165e-6),
         (1816, 907.8, 0, 595.1, 8.482e-6)], 0.8030, 0.99,
    ),
    "multiples that do not divide each other would save most": (
        [(162, 0, 0, 846, 1 / 2.44e5), (697, 0, 0, 27.4, 1 / 1.75e5), (2150, 0, 0, 220, 1 / 5.68e5)], 0.8010, 0.99,
    ),
    # Where it is worse: failures every minute or two, and what is in the background is mostly lost with them.
    "a flush longer than failures leave": (
        [(3.044, 91.31, 0, 33.96, 2.788e-4), (178.8, 1788, 1788, 90.12, 8.322e-5)], 0.6185, 0.96,
    ),
}  # fmt: skip


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", MACHINES)
def test_the_cadence_is_nearly_as_useful_as_the_best_there_is(name: str) -> None:
    raw, most, reached = MACHINES[name]
    levels = [LevelCost(str(place), *each) for place, each in enumerate(raw)]
    found = best(levels)
    every = tuple(found.every.values())
    played = played_efficiency(levels, found.period_s - cost_per_call_s(levels, every), every, 40_000, 1)
    assert played >= most * reached
    assert 1 - found.waste.total == pytest.approx(played, rel=0.02 if reached == 0.995 else 0.15)


_RATES = st.floats(1e-9, 1e-4)
_COSTS = st.floats(1e-3, 2000.0)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(_COSTS, _RATES), min_size=1, max_size=3), st.sampled_from([0.0, 1.0, 600.0]))
# A level in between that costs more than the highest one: best left out, its failures met by the highest.
@example([(7.2, 1.9e-6), (214.5, 5.7e-8), (110.4, 3.1e-9)], 0.0)
@example([(1.5, 9e-6), (1486.0, 1.2e-8), (233.0, 3.1e-6)], 600.0)
def test_no_other_cadence_on_a_grid_wastes_less(raw: list[tuple[float, float]], least: float) -> None:
    levels = [LevelCost(str(place), cost, failures_per_s=rate) for place, (cost, rate) in enumerate(raw)]
    found = best(levels, least)
    multiples = (1, 2, 3, 4, 6, 9, 14, 40)
    periods = np.geomspace(max(least, LEAST_PERIOD_S, found.period_s / 30), found.period_s * 30, 15)
    for every in itertools.product((1,), *(multiples for _ in levels[1:])):
        for period in periods:
            other = waste(levels, float(period), every).total
            assert found.waste.total <= other * 1.01 + 1e-9, (every, period)


@pytest.mark.parametrize("levels", [[], [LevelCost("local", 1.0)]])
def test_without_failures_there_is_no_best_cadence(levels: list[LevelCost]) -> None:
    with pytest.raises(ConfigError, match="without failures"):
        best(levels)


@pytest.mark.parametrize("field", ["cost_s", "latency_s", "busy_s", "restart_s", "failures_per_s"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_impossible_costs_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError) as caught:
        LevelCost("local", **{"cost_s": 1.0, field: value})
    assert field in str(caught.value) and "local" in str(caught.value)
