"""How long runs take, against formulas that are known; failures, restarts, elastic jobs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import pytest
from deeppart_simulator.campaign import run as run_module
from deeppart_simulator.campaign.costs import level_costs
from deeppart_simulator.campaign.failures import Failure, Scheduling, Waits
from deeppart_simulator.campaign.outcomes import estimate
from deeppart_simulator.campaign.plan import Cadences, Planned
from deeppart_simulator.campaign.run import run
from deeppart_simulator.machine.record import Failures
from deeppart_simulator.timing.stages import Job, Protection
from deeppart_simulator.workload.states import read_state

from deeppart.plan.interval import best, waste
from tests.simulator.campaign.jobs import DAY, QUIET, busy, planned

# --- one level, against Daly ------------------------------------------------------------------------------------------


def _daly_efficiency(period_s: float, cost_s: float, mtbf_s: float, restart_s: float) -> float:
    """Exact for exponential failures that may strike at any time: Daly 2006, equation 20, as useful / wall time."""
    return period_s / (mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((period_s + cost_s) / mtbf_s))


@pytest.mark.sweep(3)
@pytest.mark.parametrize(("cost_s", "mtbf_s"), [(60.0, DAY), (60.0, 0.1 * DAY), (600.0, 0.5 * DAY)])
def test_one_level_agrees_with_daly(cost_s: float, mtbf_s: float) -> None:
    this = planned(Failures(system=mtbf_s), cost_s, protection=Protection(local=False, partner=False))
    period = math.sqrt(2 * cost_s * mtbf_s)
    results = [run(this, Cadences(period, {"persistent": 1}, 200 * mtbf_s), seed) for seed in range(5)]
    found = estimate([result.efficiency for result in results])
    restart = this.on(4).restore_s({"persistent": 4}, 4)
    expected = _daly_efficiency(period, cost_s, mtbf_s, restart)
    assert found.low - 0.004 <= expected <= found.high + 0.004, (found, expected)
    # The checkpoint is complete when the call ends: what is predicted does not lose the call's time twice.
    assert 1 - waste(level_costs(this), period + cost_s, [1]).total == pytest.approx(expected, rel=1e-6)


# --- several levels ---------------------------------------------------------------------------------------------------


def _two_levels() -> Planned:
    """Costs like Coastal's (Moody et al. 2010): 15 s on the nodes; failures that need the file system are rarer."""
    failures = Failures(process=4 / 8.54e-7, system=1 / 2.01e-7)
    machine = replace(
        QUIET, failures=failures, persistent=replace(QUIET.persistent, write=60e9 / 1800, node_write=15e9 / 1800)
    )
    job = Job(read_state("tensors-4x15GB"), machine, 4, 1, protection=Protection(partner=False))
    return Planned(job)


@pytest.mark.now_and_then(2)
def test_two_levels_do_as_the_model_says() -> None:
    this = _two_levels()
    costs = level_costs(this)
    cadence = best(costs)
    period = cadence.period_s - 15.0
    results = [run(this, Cadences(period, dict(cadence.every), 900 * DAY), seed) for seed in range(3)]
    found = estimate([result.efficiency for result in results])
    assert found.mean == pytest.approx(1 - cadence.waste.total, abs=0.004)


def test_elastic_jobs_go_on_with_fewer_nodes() -> None:
    this, cadences = busy(spares=0)
    waits = run(this, replace(cadences, elastic=False), 3)
    goes_on = run(this, cadences, 3)
    assert goes_on.least_nodes < this.nodes == waits.least_nodes
    assert goes_on.buckets["short of nodes"] < waits.buckets["short of nodes"]
    assert goes_on.useful_s > waits.useful_s


def test_a_trace_is_followed() -> None:
    this, cadences = busy()
    trace = (
        Failure(3600.0, "node", (2,)),
        Failure(7200.0, "system", tuple(range(8))),
        Failure(9000.0, "process", (0,)),
    )
    result = run(this, replace(cadences, wall_s=4 * 3600.0), 1, trace)
    assert result.failures == {"node": 1, "system": 1, "process": 1}
    assert sum(result.recoveries.values()) == 3
    assert result.recoveries["persistent"] >= 1


def _figures(document: Mapping[str, Any], of: str = "") -> Iterator[tuple[str, float]]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from _figures(value, f"{of}{name}.")
        else:
            yield of + name, float(value)


@pytest.mark.sweep(8)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize("days", [10, 3.3333])
@pytest.mark.parametrize(
    "every",
    [
        {"local": 1, "partner": 2, "persistent": 4},
        {"local": 1, "partner": 1, "persistent": 40},
        {"local": 2, "partner": 8, "persistent": 100},
        {"local": 3},
    ],
)
def test_a_run_is_the_same_call_by_call(
    monkeypatch: pytest.MonkeyPatch, every: dict[str, int], days: float, elastic: bool, seed: int
) -> None:
    usual, cadences = busy(elastic=elastic)
    turns = Scheduling(DAY, preemption_s=2 * DAY, waits=Waits(3600.0, exponential=True)) if seed == 2 else Scheduling()
    cadences = replace(cadences, every=every, wall_s=days * DAY, period_s=150.0, scheduling=turns)
    capture = "lazy" if seed == 1 else "eager"
    job = Planned(replace(usual.job, machine=usual.job.machine.with_failures(0.1), capture=capture))
    in_rows = dict(_figures(asdict(run(job, cadences, seed))))
    monkeypatch.setattr(run_module, "calm_row", lambda *_: None)
    one_by_one = dict(_figures(asdict(run(job, cadences, seed))))
    assert in_rows == pytest.approx(one_by_one, rel=1e-9, abs=1e-5)
    assert one_by_one["failures.node"] > 5 or days < 5
