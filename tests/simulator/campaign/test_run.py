"""Campaigns: what survives, against the planner's rules; how long runs take, against formulas that are known."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from deeppart_simulator.campaign.costs import level_costs, survival
from deeppart_simulator.campaign.failures import Failure, Size, drawn, rates_per_s, read_trace
from deeppart_simulator.campaign.outcomes import estimate, student, summarize
from deeppart_simulator.campaign.plan import Cadences, Planned
from deeppart_simulator.campaign.result import BUCKETS, RunResult
from deeppart_simulator.campaign.run import run
from deeppart_simulator.campaign.survival import Stored, placement, recover
from deeppart_simulator.machine.record import Failures, Local, Machine, Memory, Network, Persistent, Restart
from deeppart_simulator.timing.stages import Job, Protection
from deeppart_simulator.workload.states import read_state

from deeppart.errors import ConfigError
from deeppart.plan.interval import best, young

DAY = 86400.0
#: A job whose checkpoints block for a known time and do nothing in the background that takes any.
QUIET = Machine(
    name="quiet",
    nodes=64,
    ranks_per_node=1,
    interference=0.0,
    memory=Memory(copy=1e9, node_copy=1e9, tensor=0.0, call=0.0, leaf=0.0, compare=0.0),
    local=Local(write=1e15, read=1e15, file=0.0, tensor=0.0),
    network=Network(bandwidth=1e15, latency=0.0, parity=1e15),
    persistent=Persistent(
        write=1e15, read=1e15, node_write=1e15, node_read=1e15, file=0.0, tensor=0.0, leaf=0.0, files=1e15
    ),
    restart=Restart(detect=0.0, relaunch=0.0, replace=0.0, repair=0.0),
)


def planned(
    failures: Failures, blocked_s: float = 60.0, ranks: int = 4, protection: Protection | None = None
) -> Planned:
    state = read_state(f"tensors-{ranks}x{round(blocked_s)}GB")
    machine = replace(QUIET, failures=failures)
    return Planned(Job(state, machine, ranks, 1, protection=protection or Protection()))


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [1.0, 0.7, 2.0])
def test_failures_come_at_their_rate(shape: float) -> None:
    failures = Failures(process=40 * DAY, node=10 * DAY, group=30 * DAY, group_nodes=4, system=20 * DAY, shape=shape)
    size = Size(ranks=16, nodes=8)
    wall = 20_000 * DAY
    found = list(itertools.takewhile(lambda f: f.at_s < wall, drawn(failures, size, np.random.default_rng(3))))
    for kind, rate in rates_per_s(failures, size).items():
        mine = [f for f in found if f.kind == kind]
        assert len(mine) == pytest.approx(rate * wall, rel=0.12), kind
    assert [f.at_s for f in found] == sorted(f.at_s for f in found)
    assert {f.nodes for f in found if f.kind == "group"} == {(0, 1, 2, 3), (4, 5, 6, 7)}
    assert {f.nodes for f in found if f.kind == "node"} == {(n,) for n in range(8)}
    assert {f.nodes for f in found if f.kind == "system"} == {tuple(range(8))}


def test_no_failures_at_all() -> None:
    assert list(drawn(Failures(), Size(4, 4), np.random.default_rng(1))) == []


def test_traces(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("at_s,kind,nodes\n10,node,3\n20.5,group,2 0 1\n20.5,process,1\n99,system,\n")
    assert read_trace(file, Size(8, 4)) == (
        Failure(10.0, "node", (3,)),
        Failure(20.5, "group", (0, 1, 2)),
        Failure(20.5, "process", (1,)),
        Failure(99.0, "system", (0, 1, 2, 3)),
    )


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("time,kind\n", "line 1", "columns"),
        ("at_s,kind,nodes\n-1,node,0\n", "line 2", "at_s"),
        ("at_s,kind,nodes\nsoon,node,0\n", "line 2", "at_s"),
        ("at_s,kind,nodes\n1,meteor,0\n", "line 2", "process, node, group, system"),
        ("at_s,kind,nodes\n1,node,4\n", "line 2", "0 to 3"),
        ("at_s,kind,nodes\n1,node,\n", "line 2", "0 to 3"),
        ("at_s,kind,nodes\n1,node,1 2\n", "line 2", "just one"),
        ("at_s,kind,nodes\n5,node,1\n4,node,1\n", "line 3", "ascending"),
    ],
)
def test_impossible_traces_are_refused(tmp_path: Path, text: str, line: str, what: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_trace(file, Size(8, 4))
    assert line in str(caught.value) and what in str(caught.value)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the trace"):
        read_trace(tmp_path / "none.csv", Size(1, 1))


# --- what survives ----------------------------------------------------------------------------------------------------

EIGHT = tuple(range(8))


@pytest.mark.parametrize(
    ("levels", "protection", "lost", "level"),
    [
        ({"local"}, Protection(partner=False), set(), "local"),
        ({"local"}, Protection(partner=False), {3}, None),
        ({"local", "partner"}, Protection(), {3}, "partner"),
        ({"local", "partner"}, Protection(), {3, 5}, "partner"),
        ({"local", "partner"}, Protection(), {3, 4}, None),
        ({"local", "partner", "persistent"}, Protection(), {3, 4}, "persistent"),
        ({"local", "parity"}, Protection(partner=False, parity_group=4), {3}, "parity"),
        ({"local", "parity"}, Protection(partner=False, parity_group=4), {0, 2}, None),
        ({"local", "parity"}, Protection(partner=False, parity_group=4), {0, 1}, "parity"),
        ({"local", "parity"}, Protection(partner=False, parity_group=4, parity_tolerate=2), {0, 2}, "parity"),
        ({"persistent"}, Protection(local=False, partner=False), set(EIGHT), "persistent"),
        ({"local", "persistent"}, Protection(partner=False), set(EIGHT), "persistent"),
    ],
)  # fmt: skip
def test_what_survives(levels: set[str], protection: Protection, lost: set[int], level: str | None) -> None:
    found = recover([Stored(5, 1.0, EIGHT, levels, lost)], EIGHT, protection)
    assert (found.level if found else None) == level
    if found:
        assert sum(found.parts.values()) == 8


def test_the_newest_that_survives_is_taken() -> None:
    old = Stored(1, 10.0, EIGHT, {"local", "partner"})
    newer = Stored(2, 20.0, EIGHT, {"local"})
    assert recover([old, newer], EIGHT, Protection()).stored is newer  # type: ignore[union-attr]
    for each in (old, newer):
        each.lost.add(6)
    assert recover([old, newer], EIGHT, Protection()).stored is old  # type: ignore[union-attr]
    assert recover([], EIGHT, Protection()) is None


def test_nodes_that_are_no_longer_in_the_job_cannot_be_read() -> None:
    stored = Stored(1, 10.0, EIGHT, {"local", "partner"})
    assert recover([stored], (0, 1, 2, 4, 5, 6, 7, 9), Protection()).parts == {"local": 7, "partner": 1}  # type: ignore[union-attr]
    assert recover([stored], EIGHT[:6], Protection()) is None  # node 6's copy was on node 7


def test_copies_are_kept_on_other_switches() -> None:
    assert placement(EIGHT, Protection(), 0).partner == (1, 2, 3, 4, 5, 6, 7, 0)
    assert placement(EIGHT, Protection(), 4).partner == (4, 5, 6, 7, 0, 1, 2, 3)
    stored = Stored(1, 10.0, EIGHT, {"local", "partner"}, {0, 1, 2, 3})
    assert recover([stored], EIGHT, Protection(), 4).parts == {"local": 4, "partner": 4}  # type: ignore[union-attr]
    assert recover([stored], EIGHT, Protection(), 0) is None


def test_which_level_a_class_of_failures_needs() -> None:
    failures = Failures(process=DAY, node=DAY, group=DAY, group_nodes=2, system=DAY)
    assert survival(planned(failures, ranks=8)).needs == {
        "process": "local", "node": "partner", "group": "partner", "system": "persistent",
    }  # fmt: skip
    alone = planned(failures, ranks=8, protection=Protection(partner=False))
    assert survival(alone).needs["node"] == "persistent"
    nothing = planned(failures, ranks=8, protection=Protection(persistent=False))
    assert survival(nothing).unprotected == ["system"]


# --- one level, against Daly ------------------------------------------------------------------------------------------


def _daly_efficiency(period_s: float, cost_s: float, mtbf_s: float, restart_s: float) -> float:
    """Exact for exponential failures that may strike at any time: Daly 2006, equation 20, as useful / wall time."""
    return period_s / (mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((period_s + cost_s) / mtbf_s))


@pytest.mark.parametrize(("cost_s", "mtbf_s"), [(60.0, DAY), (60.0, 0.1 * DAY), (600.0, 0.5 * DAY)])
def test_one_level_agrees_with_daly(cost_s: float, mtbf_s: float) -> None:
    this = planned(Failures(system=mtbf_s), cost_s, protection=Protection(local=False, partner=False))
    period = young(cost_s, mtbf_s)
    results = [run(this, Cadences(period, {"persistent": 1}, 200 * mtbf_s), seed) for seed in range(8)]
    found = estimate([result.efficiency for result in results])
    restart = this.on(4).restore_s({"persistent": 4}, 4)
    expected = _daly_efficiency(period, cost_s, mtbf_s, restart)
    assert found.low - 0.004 <= expected <= found.high + 0.004, (found, expected)


def test_the_best_period_is_where_the_model_says() -> None:
    """Half and twice the period that the model finds best waste more, seed by seed on average."""
    this = planned(Failures(system=0.2 * DAY), 60.0, protection=Protection(local=False, partner=False))
    cadence = best(level_costs(this))

    def efficiency(period: float) -> float:
        return sum(run(this, Cadences(period, {"persistent": 1}, 60 * DAY), seed).efficiency for seed in range(2)) / 2

    middle = efficiency(cadence.period_s - 60)
    assert middle > efficiency(2.5 * cadence.period_s) and middle > efficiency(0.4 * cadence.period_s - 24)
    assert 1 - cadence.waste.total == pytest.approx(middle, abs=0.01)


# --- several levels ---------------------------------------------------------------------------------------------------


def _two_levels() -> Planned:
    """Costs like Coastal's (Moody et al. 2010): 15 s on the nodes; failures that need the file system are rarer."""
    failures = Failures(process=4 / 8.54e-7, system=1 / 2.01e-7)
    machine = replace(
        QUIET, failures=failures, persistent=replace(QUIET.persistent, write=60e9 / 1800, node_write=15e9 / 1800)
    )
    job = Job(read_state("tensors-4x15GB"), machine, 4, 1, protection=Protection(partner=False))
    return Planned(job)


def test_two_levels_do_as_the_model_says() -> None:
    this = _two_levels()
    costs = level_costs(this)
    cadence = best(costs)
    period = cadence.period_s - 15.0
    results = [run(this, Cadences(period, dict(cadence.every), 1800 * DAY), seed) for seed in range(3)]
    found = estimate([result.efficiency for result in results])
    assert found.mean == pytest.approx(1 - cadence.waste.total, abs=0.004)


def test_more_protection_never_does_worse_with_the_same_failures() -> None:
    failures = Failures(node=4 * 2 * DAY)
    efficiency = {}
    for protection, levels in (
        (Protection(), {"local": 1, "partner": 1, "persistent": 20}),
        (Protection(partner=False), {"local": 1, "persistent": 20}),
    ):
        this = planned(failures, 10.0, protection=protection)
        results = [run(this, Cadences(600.0, levels, 60 * DAY), seed) for seed in range(3)]
        efficiency[protection.partner] = sum(result.efficiency for result in results)
    assert efficiency[True] > efficiency[False]


# --- results ----------------------------------------------------------------------------------------------------------


def _busy(**changes: object) -> tuple[Planned, Cadences]:
    """Everything happens: all classes of failures, background work that takes time, other jobs on the file system."""
    failures = Failures(process=40 * DAY, node=20 * DAY, group=40 * DAY, group_nodes=2, system=30 * DAY, shape=0.8)
    machine = replace(
        QUIET,
        interference=0.05,
        failures=failures,
        restart=Restart(detect=30, relaunch=60, replace=30, repair=2 * DAY),
        local=replace(QUIET.local, write=2e9),
        network=replace(QUIET.network, bandwidth=5e9),
        persistent=replace(QUIET.persistent, write=1e9, node_write=0.5e9, others=0.3),
    )
    this = Planned(Job(read_state("tensors-8x10GB"), machine, 8, 1))
    defaults: dict[str, object] = {"spares": 1, "elastic": True}
    return this, Cadences(900.0, {"local": 1, "partner": 2, "persistent": 4}, 40 * DAY, **(defaults | changes))  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_course_and_another_another() -> None:
    this, cadences = _busy()
    texts = [json.dumps(asdict(run(this, cadences, seed)), sort_keys=True) for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("elastic", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_time_adds_up(seed: int, elastic: bool) -> None:
    this, cadences = _busy(elastic=elastic)
    result = run(this, cadences, seed)
    assert set(result.buckets) == set(BUCKETS)
    assert sum(result.buckets.values()) == pytest.approx(cadences.wall_s, rel=1e-9)
    if not elastic:  # all nodes at full speed: training is useful, lost or slowed
        known = result.useful_s + result.lost_s + result.slowed_s
        assert known == pytest.approx(result.buckets["training"], rel=1e-9)
        assert result.least_nodes == this.nodes
    assert 0 < result.efficiency < 1
    # A failure during a restart is no recovery of its own.
    assert sum(result.recoveries.values()) <= sum(result.failures.values())


def test_elastic_jobs_go_on_with_fewer_nodes() -> None:
    this, cadences = _busy(spares=0)
    waits = run(this, replace(cadences, elastic=False), 3)
    goes_on = run(this, cadences, 3)
    assert goes_on.least_nodes < this.nodes == waits.least_nodes
    assert goes_on.buckets["short of nodes"] < waits.buckets["short of nodes"]
    assert goes_on.useful_s > waits.useful_s


def test_elastic_jobs_grow_back_when_that_is_worth_a_restart() -> None:
    """One of eight nodes is lost for six hours; later failures would be far off, so it is taken in when it is back."""
    this, cadences = _busy(spares=0)
    trace = (Failure(3600.0, "node", (2,)),)
    machine = replace(this.job.machine, restart=replace(this.job.machine.restart, repair=21600.0))
    job = replace(this.job, machine=machine)
    long = replace(cadences, wall_s=DAY)
    result = run(Planned(job), long, 1, trace)
    assert result.least_nodes == 7 and result.grown == 1
    assert sum(result.recoveries.values()) == 1, "taking a node in is no recovery"
    assert sum(result.buckets.values()) == pytest.approx(DAY, rel=1e-9)
    shaky = replace(machine, failures=replace(machine.failures, process=600.0 * 8))
    result = run(Planned(replace(job, machine=shaky)), long, 1, trace)
    assert result.grown == 0, "failures each ten minutes take it in anyway"


def test_a_trace_is_followed() -> None:
    this, cadences = _busy()
    trace = (
        Failure(3600.0, "node", (2,)),
        Failure(7200.0, "system", tuple(range(8))),
        Failure(9000.0, "process", (0,)),
    )
    result = run(this, replace(cadences, wall_s=4 * 3600.0), 1, trace)
    assert result.failures == {"node": 1, "system": 1, "process": 1}
    assert sum(result.recoveries.values()) == 3
    assert result.recoveries["persistent"] >= 1


def test_checkpoints_wait_for_room() -> None:
    this, cadences = _busy()
    quick = replace(cadences, period_s=5.0, every={"local": 1, "persistent": 1}, wall_s=DAY / 4)
    result = run(this, quick, 1, ())
    assert result.buckets["waiting"] > 0.3 * result.wall_s
    assert result.checkpoints["persistent"] <= result.checkpoints["local"] <= result.checkpoints["persistent"] + 2


def test_without_failures_only_checkpoints_cost() -> None:
    this = planned(Failures(), 60.0)
    result = run(this, Cadences(540.0, {"local": 1}, 10 * DAY), 1)
    assert result.efficiency == pytest.approx(0.9, rel=1e-3)
    assert result.lost_s == 0 and not result.recoveries


@pytest.mark.parametrize(
    ("period", "every"), [(0.0, {"local": 1}), (math.inf, {"local": 1}), (1.0, {"cloud": 1}), (1.0, {"local": -1})]
)
def test_impossible_cadences_are_refused(period: float, every: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Cadences(period, every, DAY)


# --- statistics -------------------------------------------------------------------------------------------------------


def test_confidence_intervals_are_those_of_student() -> None:
    assert student(9) == pytest.approx(2.2622, abs=1e-4)
    found = estimate([1.0, 2.0, 3.0])
    assert (found.mean, found.low, found.high) == pytest.approx(
        (2.0, 2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-4
    )
    assert estimate([5.0]).low == estimate([5.0]).high == 5.0


def test_summaries() -> None:
    one = RunResult(1, 100.0, useful_s=80.0, failures={"node": 1}, recoveries={"partner": 1})
    two = RunResult(2, 100.0, useful_s=90.0, failures={"process": 2}, recoveries={"local": 2})
    summary = summarize([one, two])
    assert summary.efficiency.mean == pytest.approx(0.85)
    assert {kind: each.mean for kind, each in summary.failures.items()} == {"node": 0.5, "process": 1.0}
