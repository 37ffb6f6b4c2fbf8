"""What is given restricts the candidates, and what is left out is free."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.advise.choose import Wanted, advise, describe
from deeppart_simulator.machine.record import Failures
from deeppart_simulator.timing.stages import Job, Protection

from deeppart.plan.interval import Cadence, LevelCost, Waste
from deeppart.plan.multiples import MOST_EVERY
from tests.simulator.campaign.jobs import DAY
from tests.simulator.timing.jobs import MACHINE, STATE

NOWHERE = Protection(local=False, partner=False)
LOCAL, COPIES = Protection(partner=False), Protection()
PARITY = Protection(partner=False, parity_group=4)


def candidates() -> list[Job]:
    job = Job(STATE, MACHINE, 64, 4)
    return [
        replace(job, protection=protection, compression=compression)
        for protection in (NOWHERE, LOCAL, COPIES, PARITY)
        for compression in ("none", "tensor")
    ]


@pytest.mark.parametrize(
    ("wanted", "protections", "compressions"),
    [
        (Wanted(), [NOWHERE, LOCAL, COPIES, PARITY], ["none", "tensor"]),
        (Wanted(local=False), [NOWHERE], ["none", "tensor"]),
        (Wanted(local=True), [LOCAL, COPIES, PARITY], ["none", "tensor"]),
        (Wanted(partner=True), [COPIES], ["none", "tensor"]),
        (Wanted(partner=False), [NOWHERE, LOCAL, PARITY], ["none", "tensor"]),
        (Wanted(parity=(4, 1)), [PARITY], ["none", "tensor"]),
        (Wanted(parity=(12, 3)), [Protection(partner=False, parity_group=12, parity_tolerate=3)], ["none", "tensor"]),
        (Wanted(parity=(4, 1), partner=True), [replace(PARITY, partner=True)], ["none", "tensor"]),
        (Wanted(compression="none", local=False), [NOWHERE], ["none"]),
        (Wanted(compression="auto", partner=True), [COPIES], ["auto"]),
    ],
)
def test_candidates(wanted: Wanted, protections: list[Protection], compressions: list[str]) -> None:
    found = [(job.protection, job.compression) for job in wanted.among(candidates())]
    assert found == [(protection, compression) for protection in protections for compression in compressions]


def test_only_what_is_given_is_advised() -> None:
    job = Job(STATE, replace(MACHINE, failures=Failures(node=10 * DAY, system=100 * DAY)), 64, 4)
    advice = advise(job, wanted=Wanted(parity=(8, 2), compression="none"))
    assert [describe(choice.job) for choice in advice.choices] == ["local + parity 8/2 + persistent"]
    free = advise(job)
    assert len(free.choices) > 4


@pytest.mark.parametrize(("wanted", "level"), [(Wanted(partner=True), "partner"), (Wanted(parity=(4, 1)), "parity")])
def test_what_is_given_is_advised_even_if_no_failure_needs_it(wanted: Wanted, level: str) -> None:
    job = Job(STATE, replace(MACHINE, failures=Failures(process=DAY)), 64, 4)
    for step_s in (0.0, 5.0):
        chosen = advise(job, step_s, wanted=wanted).chosen
        every, least = chosen.cadence.every, advise(job, step_s).chosen.cadence.waste.total
        assert every["local"] == 1 <= every[level] < MOST_EVERY
        assert least * (1 - 1e-9) <= chosen.cadence.waste.total < 1
        busy = sum(cost.busy_s / every[cost.name] for cost in chosen.costs)
        assert chosen.cadence.period_s >= busy * (1 - 1e-9)


def test_a_level_that_is_left_out_is_as_often_as_the_next_above() -> None:
    costs = [LevelCost(level, 1.0, failures_per_s=1e-5) for level in ("local", "partner", "parity", "persistent")]
    counts = {"local": 1, "partner": MOST_EVERY, "parity": MOST_EVERY, "persistent": 6}
    cadence = Cadence(600.0, counts, Waste(0.1, 0.1, 0.1))
    assert Wanted().kept(costs, cadence) is cadence
    assert dict(Wanted(partner=True).kept(costs, cadence).every) == counts | {"partner": 6}
    assert dict(Wanted(partner=True, parity=(4, 1)).kept(costs, cadence).every) == counts | {"partner": 6, "parity": 6}
    rare = Cadence(600.0, counts | {"persistent": MOST_EVERY}, cadence.waste)
    assert Wanted(parity=(4, 1)).kept(costs, rare).every["parity"] == 1
