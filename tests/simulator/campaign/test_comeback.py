"""Coming back, piece by piece: a campaign is down for what the pieces add up to, and advice expects the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.campaign.costs import level_costs, survival
from deeppart_simulator.campaign.failures import CLASSES, Failure, pieces_s, stopped_s
from deeppart_simulator.campaign.outcomes import RunResult
from deeppart_simulator.campaign.plan import Cadences, Planned
from deeppart_simulator.campaign.run import run
from deeppart_simulator.machine.record import PIECES, WAYS, Failures, Restart

from tests.simulator.campaign.jobs import DAY, QUIET
from tests.simulator.campaign.jobs import planned as planned_for

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


def test_old_machine_files_mean_what_they_meant() -> None:
    """Detect, relaunch, and a node that is replaced: nothing else unless it is written down."""
    old = Restart(detect=30.0, relaunch=240.0, replace=60.0)
    assert sum(pieces_s(old, 16_384, {"node"}).values()) == 330.0
    assert sum(pieces_s(old, 16_384, {"process"}).values()) == 270.0 == sum(pieces_s(old, 1, {"system"}).values())
    assert QUIET.restart.mode == "job"


def test_groups_of_any_name_are_paid_for_as_groups() -> None:
    restart = Restart(detect=30.0, replace=60.0, relaunch=90.0)
    assert pieces_s(restart, 8, {"rack"}) == pieces_s(restart, 8, {"group"}) != pieces_s(restart, 8, {"process"})
