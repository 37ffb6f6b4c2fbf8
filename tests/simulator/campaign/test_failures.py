"""Failures, drawn at their rate."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from deeppart_simulator.campaign.costs import level_costs, survival
from deeppart_simulator.campaign.failures import (
    Failure,
    drawn,
    pieces_s,
    rates_per_s,
)
from deeppart_simulator.campaign.outcomes import RunResult
from deeppart_simulator.campaign.plan import Cadences, Planned
from deeppart_simulator.campaign.run import run
from deeppart_simulator.machine.record import PIECES, WAYS, Failures, Group, Restart

from tests.simulator.campaign.jobs import DAY
from tests.simulator.campaign.jobs import planned as planned_for


@pytest.mark.parametrize("shape", [1.0, 0.7, 2.0])
def test_failures_come_at_their_rate(shape: float) -> None:
    groups = {"group": Group(nodes=4, mtbf=30 * DAY)}
    failures = Failures(process=40 * DAY, node=10 * DAY, system=20 * DAY, shape=shape, groups=groups)
    this = planned_for(failures, ranks=8).job
    wall = 20_000 * DAY
    found = list(itertools.takewhile(lambda f: f.at_s < wall, drawn(this, np.random.default_rng(3))))
    for kind, rate in rates_per_s(this).items():
        mine = [f for f in found if f.kind == kind]
        assert len(mine) == pytest.approx(rate * wall, rel=0.12), kind
    assert [f.at_s for f in found] == sorted(f.at_s for f in found)
    assert {f.nodes for f in found if f.kind == "group"} == {(0, 1, 2, 3), (4, 5, 6, 7)}
    assert {f.nodes for f in found if f.kind == "node"} == {(n,) for n in range(8)}
    assert {f.nodes for f in found if f.kind == "system"} == {tuple(range(8))}


CLASSES = ("process", "node", "group", "system")
PAIRS = {"group": Group(nodes=2, mtbf=DAY)}
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
    some = failures or Failures(process=DAY, node=DAY, system=DAY, groups=PAIRS)
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
    this = job(way, Failures(groups=PAIRS) if kind == "group" else Failures(**{kind: DAY}))
    level = survival(this).needs[kind]
    expected = next(cost.restart_s for cost in level_costs(this) if cost.name == level)
    result = course(this, (Failure(4000.0, kind, strikes(kind)),))
    assert result.recoveries == {level: 1}
    assert expected == pytest.approx(result.buckets["down"] + result.buckets["restoring"], rel=1e-6)
