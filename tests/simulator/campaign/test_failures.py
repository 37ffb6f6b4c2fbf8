"""Failures, drawn at their rate."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from deeppart_simulator.campaign.costs import level_costs, survival
from deeppart_simulator.campaign.failures import (
    CLASSES,
    Failure,
    Size,
    classes,
    drawn,
    failures_from,
    pieces_s,
    rates_per_s,
    stopped_s,
)
from deeppart_simulator.campaign.outcomes import RunResult
from deeppart_simulator.campaign.plan import Cadences, Planned
from deeppart_simulator.campaign.run import run
from deeppart_simulator.machine.record import PIECES, WAYS, Failures, Group, Restart

from deeppart.errors import ConfigError
from tests.simulator.campaign.jobs import DAY
from tests.simulator.campaign.jobs import planned as planned_for
from tests.simulator.traces.logs import SACCT, written

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


def test_groups_of_each_kind_fail_whole_and_at_a_rate_of_their_own() -> None:
    """Ten nodes: four switches of three, the last with one node, and two halves."""
    groups = {"switch": Group(nodes=3, mtbf=50 * DAY), "power": Group(nodes=5, mtbf=200 * DAY)}
    failures, size = Failures(node=30 * DAY, groups=groups), Size(10, 10)
    assert classes(failures) == ("process", "node", "group", "switch", "power", "system")
    rates = rates_per_s(failures, size)
    assert [rates[kind] * DAY for kind in ("switch", "power", "group")] == pytest.approx([4 / 50, 2 / 200, 0])
    wall = 50_000 * DAY
    found = list(itertools.takewhile(lambda f: f.at_s < wall, drawn(failures, size, np.random.default_rng(3))))
    for kind in ("node", "switch", "power"):
        assert sum(f.kind == kind for f in found) == pytest.approx(rates[kind] * wall, rel=0.12)
    assert {f.nodes for f in found if f.kind == "switch"} == {(0, 1, 2), (3, 4, 5), (6, 7, 8), (9,)}
    assert {f.nodes for f in found if f.kind == "power"} == {(0, 1, 2, 3, 4), (5, 6, 7, 8, 9)}


def test_a_table_of_more_nodes_than_the_job_has(tmp_path: Path) -> None:
    file = written(tmp_path, "# nodes = 9\nat_s,kind,nodes\n1,node,8\n2,group,1 8\n3,node,0\n")
    assert failures_from(file, Size(2, 2)) == (Failure(2.0, "group", (1,)), Failure(3.0, "node", (0,)))
    with pytest.raises(ConfigError, match="at most 9 nodes"):
        failures_from(file, Size(10, 10))


def test_a_run_longer_than_the_trace(tmp_path: Path) -> None:
    file = written(tmp_path, "# seconds = 86400\nat_s,kind,nodes\n1,node,0\n")
    assert len(failures_from(file, Size(2, 2), wall_s=86400.0)) == 1
    with pytest.raises(ConfigError, match="at most 1"):
        failures_from(file, Size(2, 2), wall_s=86401.0)


def test_a_log_of_jobs(tmp_path: Path) -> None:
    """Node k of the job is the k-th of the log; both losses of node1 within a minute are one."""
    file = written(tmp_path, SACCT)
    assert failures_from(file, Size(4, 4)) == (
        Failure(1.0, "process", (0,)), Failure(15.0, "node", (0,)), Failure(35.0, "preemption", (0, 1, 2, 3)),
    )  # fmt: skip
    assert [failure.kind for failure in failures_from(file, Size(2, 2))] == ["process", "node"]
    with pytest.raises(ConfigError, match="at most 4 nodes"):
        failures_from(file, Size(5, 5))


def test_where_the_log_does_not_say_which_node_they_take_turns(tmp_path: Path) -> None:
    line = "1|NODE_FAIL|2026-11-27T15:00:00|2026-11-27T15:00:00|2026-11-27T15:{}:00|n[1-3]\n"
    text = "JobID|State|Submit|Start|End|NodeList\n" + "".join(line.format(minute) for minute in (10, 20, 30, 40))
    assert [failure.nodes for failure in failures_from(written(tmp_path, text), Size(3, 3))] == [(0,), (1,), (2,), (0,)]


@pytest.mark.parametrize("seconds", [2591999.9, 86400.5, 7 * 86400 + 0.01, 0.3])
def test_the_days_that_are_told_are_accepted(tmp_path: Path, seconds: float) -> None:
    file = written(tmp_path, f"# seconds = {seconds}\nat_s,kind,nodes\n0,node,0\n")
    with pytest.raises(ConfigError) as caught:
        failures_from(file, Size(2, 2), wall_s=100 * 86400.0)
    days = float(str(caught.value).partition("at most ")[2].split()[0])
    assert len(failures_from(file, Size(2, 2), wall_s=days * 86400)) == 1 and days * 86400 > seconds - 1


#: Any two sums of these numbers differ.
RESTART = Restart(
    detect=1.0, requeue=2.0, requeue_rank=0.5, replace=1000.0, relaunch=16.0, imports=32.0, imports_rank=8.0,
    communicator=128.0, communicator_rank=64.0, first_step=512.0, repair=5000.0,
)  # fmt: skip
#: What the pieces take with eight ranks; of the node that replaces another, what is longer than the queue.
EIGHT = {
    "detect": 1.0, "requeue": 6.0, "relaunch": 16.0, "imports": 96.0, "communicator": 640.0, "first_step": 512.0,
}  # fmt: skip
REPLACE = {"job": 994.0, "allocation": 1000.0}
PAID = {
    "job": {"detect", "requeue", "relaunch", "imports", "communicator", "first_step"},
    "allocation": {"detect", "relaunch", "imports", "communicator", "first_step"},
    "spares": {"detect", "relaunch", "imports", "communicator", "first_step"},
    "standby": {"detect", "relaunch", "communicator", "first_step"},
    "in-process": {"detect", "communicator", "first_step"},
}


def expected_s(way: str, kind: str) -> float:
    """Counted by hand."""
    paid = PAID["job" if kind == "system" else way]
    replaced = REPLACE.get(way, 0.0) if kind in ("node", "group") else 0.0
    return sum(EIGHT[piece] for piece in paid) + replaced


def job(way: str, failures: Failures | None = None, restart: Restart = RESTART) -> Planned:
    """Eight ranks on eight nodes, whose checkpoints block for ten seconds."""
    some = failures or Failures(process=DAY, node=DAY, group=DAY, group_nodes=2, system=DAY)
    return planned_for(some, 10.0, ranks=8).restarting(replace(restart, mode=way))


def strikes(kind: str) -> tuple[int, ...]:
    return {"process": (3,), "node": (3,), "group": (2, 3), "system": tuple(range(8))}[kind]


def course(this: Planned, trace: tuple[Failure, ...], spares: int = 2, elastic: bool = False) -> RunResult:
    cadences = Cadences(900.0, {"local": 1, "partner": 1, "persistent": 1}, DAY, spares=spares, elastic=elastic)
    return run(this, cadences, 1, trace)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", CLASSES)
def test_a_campaign_is_down_for_the_sum_of_the_pieces(way: str, kind: str) -> None:
    pieces = pieces_s(replace(RESTART, mode=way), 8, {kind})
    assert sum(pieces.values()) == expected_s(way, kind)
    assert [piece for piece in PIECES if piece in pieces] == list(pieces)
    result = course(job(way), (Failure(4000.0, kind, strikes(kind)),))
    assert result.buckets["down"] == pytest.approx(expected_s(way, kind), abs=1e-6)
    assert result.buckets["short of nodes"] == 0.0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", CLASSES)
def test_advice_expects_what_a_campaign_takes(way: str, kind: str) -> None:
    """One class of failures at a time: down and restoring of one failure, to the second."""
    this = job(way, Failures(**{kind: DAY}, group_nodes=2))
    level = survival(this).needs[kind]
    expected = next(cost.restart_s for cost in level_costs(this) if cost.name == level)
    result = course(this, (Failure(4000.0, kind, strikes(kind)),))
    assert result.recoveries == {level: 1}
    assert expected == pytest.approx(result.buckets["down"] + result.buckets["restoring"], rel=1e-6)


def test_several_classes_that_need_a_level_are_averaged_by_how_often_they_strike() -> None:
    failures = Failures(process=8 * DAY, system=3 * DAY)
    this = planned_for(failures, 10.0, ranks=8).restarting(replace(RESTART, mode="in-process"))
    only = Planned(replace(this.job, protection=replace(this.job.protection, local=False, partner=False)))
    (cost,) = level_costs(only)
    restored_s = only.on(8).restore_s({"persistent": 8}, 8)
    a_day = expected_s("in-process", "process") + expected_s("in-process", "system") / 3
    assert cost.restart_s == pytest.approx(a_day / (1 + 1 / 3) + restored_s)


@pytest.mark.parametrize(("way", "queue_s"), [("job", 6.0), ("in-process", 0.0)])
def test_a_node_that_had_to_be_repaired_starts_anew(way: str, queue_s: float) -> None:
    """Nothing waits on it. Without spares no node is replaced: the job waits for the repair."""
    result = course(job(way), (Failure(4000.0, "node", (3,)),), spares=0)
    started = sum(EIGHT[piece] for piece in ("relaunch", "imports", "communicator", "first_step"))
    assert result.buckets["down"] == pytest.approx(EIGHT["detect"] + queue_s + started, abs=1e-6)
    assert result.buckets["short of nodes"] == pytest.approx(5000.0 - EIGHT["detect"] - queue_s, abs=1e-6)


def test_failures_before_training_goes_on_are_paid_together() -> None:
    """A node is lost, and while its place is taken a process dies: what the node needs is paid all the same."""
    way = "allocation"
    result = course(job(way), (Failure(4000.0, "node", (3,)), Failure(4500.0, "process", (0,))))
    whole = expected_s(way, "node")
    assert result.buckets["down"] == pytest.approx(500.0 + whole, abs=1e-6), "500 s of the first attempt are lost"
    again = course(job(way), (Failure(4000.0, "node", (3,)), Failure(9000.0, "process", (0,))))
    assert again.buckets["down"] == pytest.approx(whole + expected_s(way, "process"), abs=1e-6)
    everything = Failure(4000.0, "system", strikes("system"))
    later = course(job("in-process"), (everything, Failure(9000.0, "process", (0,))))
    both = expected_s("in-process", "system") + expected_s("in-process", "process")
    assert later.buckets["down"] == pytest.approx(both, abs=1e-6), "what struck before training went on is forgotten"


@pytest.mark.parametrize(("way", "grown_s"), [("job", 6.0 + 994.0 + 112.0), ("in-process", 0.0)])
def test_a_job_that_grows_pays_without_noticing_anything(way: str, grown_s: float) -> None:
    assert stopped_s(replace(RESTART, mode=way), 8) == grown_s + 640.0 + 512.0
    this = job(way, Failures(node=1e4 * DAY))
    result = course(this, (Failure(4000.0, "node", (3,)),), spares=0, elastic=True)
    assert result.grown == 1 and result.least_nodes == 7
    seven = pieces_s(this.job.machine.restart, 7, {"node"})  # it goes on with seven, then all eight begin together
    lost_s = sum(seven.values()) - seven.get("replace", 0.0) + (0.5 if way == "job" else 0.0)
    assert result.buckets["down"] == pytest.approx(lost_s + grown_s + 640.0 + 512.0, abs=1e-6)
