"""Ways to come back, compared: parts that add up to what is lost, and what a faster piece would save."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.advise.choose import Choice, Wanted, advise
from deeppart_simulator.advise.comebacks import PARTS, REPLAY, RESTORE, WRITING, Comparison, compare
from deeppart_simulator.campaign.costs import cadence_of, training_s
from deeppart_simulator.campaign.outcomes import estimate
from deeppart_simulator.campaign.plan import Cadences, Planned
from deeppart_simulator.campaign.run import run
from deeppart_simulator.machine.record import PIECES, WAYS, Failures, Restart
from deeppart_simulator.timing.stages import Job

from tests.simulator.campaign.jobs import DAY
from tests.simulator.timing.jobs import MACHINE, STATE

RESTART = Restart(
    detect=60.0, requeue=600.0, replace=700.0, relaunch=60.0, imports=40.0, imports_rank=1.0, communicator=5.0,
    communicator_rank=2.0, first_step=20.0, mode="allocation",
)  # fmt: skip


@pytest.fixture(scope="module")
def choice() -> Choice:
    failures = Failures(process=10 * DAY, node=3 * DAY, system=20 * DAY)
    job = Job(STATE, replace(MACHINE, failures=failures, restart=RESTART), 16, 4)
    return advise(job, wanted=Wanted(partner=True, compression="none")).chosen


@pytest.fixture(scope="module")
def found(choice: Choice) -> dict[str, Comparison]:
    return {each.way: each for each in compare(choice)}


def test_the_parts_add_up_to_what_is_lost(choice: Choice, found: dict[str, Comparison]) -> None:
    assert tuple(found) == tuple(WAYS)
    for each in found.values():
        assert tuple(each.shares) == PARTS
        assert sum(each.shares.values()) == pytest.approx(each.waste.total, rel=1e-9)
        assert each.shares[REPLAY] == each.waste.rework and each.shares[WRITING] == each.waste.cost
        for kind, back in each.after.items():
            assert set(back.pieces) == WAYS[each.way].after({kind}) | {RESTORE}
            assert back.total_s == sum(back.pieces.values()) and back.replay_s > 0
    assert found["allocation"].waste == choice.waste, "the machine's own way is what the advice has"


def test_each_way_loses_less_than_the_one_before(found: dict[str, Comparison]) -> None:
    lost = [each.waste.total for each in found.values()]
    assert lost == sorted(lost, reverse=True) and len(set(lost)) == len(lost)
    assert found["spares"].shares["replace"] == 0.0 < found["allocation"].shares["replace"]
    rare = found["in-process"].shares["imports"]
    assert 0.0 < rare < found["spares"].shares["imports"] / 5, "after everything has stopped, and then alone"


def test_what_half_a_piece_saves_is_what_the_advice_would_lose_less(
    choice: Choice, found: dict[str, Comparison]
) -> None:
    for piece in PIECES:
        machine = replace(choice.job.machine, restart=RESTART.scaled(piece, 0.5))
        faster = compare(replace(choice, job=replace(choice.job, machine=machine)))
        (same_way,) = (each for each in faster if each.way == "allocation")
        before = found["allocation"]
        assert before.saved[piece] == pytest.approx(before.waste.total - same_way.waste.total, rel=0.01, abs=1e-7)
        assert before.saved[piece] <= before.shares[piece]
    for each in found.values():
        for part in PARTS:
            half = pytest.approx(each.shares[part] / 2, rel=0.06, abs=1e-9)
            assert each.saved[part] == half or (each.way == "job" and part in ("requeue", "replace")), (each.way, part)
    of_job = found["job"]
    assert of_job.saved["requeue"] < 0.3 * of_job.shares["requeue"], "a node is not replaced faster by a shorter queue"
    assert of_job.saved["replace"] == pytest.approx(of_job.shares["replace"], rel=0.03), "350 s pass in the queue"


@pytest.mark.sweep(2)
@pytest.mark.parametrize("way", ["job", "in-process"])
def test_a_campaign_loses_what_the_comparison_says(choice: Choice, way: str) -> None:
    every = dict.fromkeys(choice.cadence.every, 1)
    rare = replace(choice, cadence=cadence_of(choice.costs, 1800.0, every))
    (expected,) = (each.waste.total for each in compare(rare) if each.way == way)
    planned = Planned(choice.job).restarting(replace(RESTART, mode=way, repair=1.0))
    cadences = Cadences(training_s(choice.costs, rare.cadence), every, 100 * DAY, spares=8)
    lost = estimate([1 - run(planned, cadences, seed).efficiency for seed in range(4)])
    assert lost.low <= expected <= lost.high and lost.mean == pytest.approx(expected, rel=0.1), (lost, expected)
