"""What is advised: the least waste of all candidates, and of equals the simplest."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from deeppart_simulator.advise.choose import (
    AS_GOOD_OF_ALL,
    FACTORS,
    Wanted,
    advise,
    advised,
    describe,
    front_of,
    in_steps,
    least_restart,
    loss_of,
    shown,
    steps_between,
)
from deeppart_simulator.advise.text import reasons
from deeppart_simulator.campaign.costs import followed, training_s
from deeppart_simulator.campaign.failures import Scheduling
from deeppart_simulator.campaign.plan import Cadences, Planned
from deeppart_simulator.campaign.run import run
from deeppart_simulator.machine.record import Failures
from deeppart_simulator.timing.stages import Job, Protection

from deeppart.errors import ConfigError
from deeppart.plan.interval import LevelCost, Waste, best
from tests.simulator.campaign.jobs import DAY
from tests.simulator.timing.jobs import MACHINE, STATE


def asked(failures: Failures, **machine: object) -> Job:
    return Job(STATE, replace(MACHINE, failures=failures, **machine), 16, 4)


def test_the_advice_is_on_the_front_and_loses_little_more_than_the_least() -> None:
    advice = advise(asked(Failures(node=10 * DAY, system=100 * DAY)))
    wastes = [choice.waste.total for choice in advice.choices]
    assert wastes == sorted(wastes)
    assert advice.chosen in advice.front and advice.front[0].waste.total <= wastes[0]
    least = least_restart(advice.front)
    assert loss_of(advice.chosen, least) <= 1.05 * loss_of(advice.front[0], least) + AS_GOOD_OF_ALL
    assert advice.chosen in shown(advice, 3) and len(shown(advice, 3)) <= 4


def test_a_file_system_is_not_written_to_all_the_time_for_a_few_seconds_less_to_come_back() -> None:
    """Where most of the time is lost by coming back, which nothing changes, a twentieth of it is no excuse."""
    restart = replace(MACHINE.restart, relaunch=3600.0)
    shared = replace(MACHINE.persistent, write=1e9, read=1e9)
    advice = advise(asked(Failures(node=2 * DAY), restart=restart, persistent=shared))
    only = next(each for each in advice.choices if describe(each.job) == "persistent")
    assert only.waste.total < 1.05 * advice.choices[0].waste.total, "it would have been as good, all in all"
    assert advice.chosen.drained_daily_bytes < only.drained_daily_bytes / 3


def test_what_is_adapted_is_never_worse_than_what_is_kept() -> None:
    advice = advise(asked(Failures(node=10 * DAY, system=100 * DAY)))
    assert tuple(each.factor for each in advice.sensitivity) == FACTORS
    for each in advice.sensitivity:
        assert each.adapted <= each.kept * (1 + 1e-9)
    periods = [each.period_s for each in advice.sensitivity]
    assert periods == sorted(periods), "the rarer failures are, the longer one may wait"


def test_a_job_that_gets_nowhere_is_refused_with_what_would_have_to_change() -> None:
    """A failure every minute, and an hour to come back: with half of the time for training failures are so much rarer
    that a few of them strike in an hour.
    """
    slow = replace(MACHINE.restart, relaunch=3600.0, detect=0.0, replace=0.0)
    with pytest.raises(ConfigError, match="nothing gets done") as caught:
        advise(asked(Failures(process=16 * 60.0), restart=slow))
    said = str(caught.value)
    assert "a failure every 60 s, from which coming back takes 1 h" in said
    assert "128 times as rare" in said and "goes into coming back" in said
    found = advise(asked(Failures(process=16 * 60.0 * 128), restart=slow)).chosen.waste.total
    assert 0.25 < found < 0.55


@pytest.mark.parametrize("notice_s", [0.0, 60.0])
def test_a_campaign_with_preemptions_loses_what_the_advice_says(notice_s: float) -> None:
    """With a notice no work is lost, and checkpoints are as rare as without preemptions; otherwise it is a failure."""
    slow = replace(MACHINE.persistent, write=1e9, read=1e9)
    job = asked(Failures(node=20 * DAY), persistent=slow, restart=replace(MACHINE.restart, relaunch=300.0))
    scheduling = Scheduling(preemption_s=DAY / 4, notice_s=notice_s)
    wanted = Wanted(local=False, compression="none")
    advice = advise(job, wanted=wanted, scheduling=scheduling)
    chosen, calm = advice.chosen, advise(job, wanted=wanted).chosen
    assert (chosen.leaving > 0) == (notice_s > 0)
    assert (chosen.cadence.period_s == calm.cadence.period_s) == (notice_s > 0)
    (line,) = [line for line in reasons(advice) if line.startswith("preempted every 6 h")]
    assert ("no work is lost" in line) == (notice_s > 0)
    cadences = Cadences(
        training_s(chosen.costs, chosen.cadence), followed(chosen.cadence), 50 * DAY, spares=2, scheduling=scheduling
    )
    runs = [run(Planned(chosen.job), cadences, seed) for seed in range(4)]
    wasted = 1 - sum(each.efficiency for each in runs) / len(runs)
    assert wasted == pytest.approx(chosen.waste.total, rel=0.1)


@dataclass(frozen=True)
class Weighed:
    waste: Waste
    drained_daily_bytes: float
    node_daily_bytes: float
    simplicity: tuple[int, ...] = (0,)
    idle: float = 0.0


def choice(loss: float, drained: float, worn: float, simplicity: int = 0, restart: float = 0.4) -> Weighed:
    return Weighed(Waste(loss / 2, loss / 2, restart), drained, worn, (simplicity,))


def test_on_the_front_is_what_no_other_one_is_as_good_as() -> None:
    best, rare, simple = choice(0.010, 100.0, 10.0, 1), choice(0.012, 20.0, 10.0, 1), choice(0.013, 200.0, 10.0, 0)
    worse = choice(0.014, 100.0, 10.0, 1)
    assert front_of([worse, simple, rare, best]) == (best, rare, simple)


def test_of_those_that_lose_nearly_least_the_file_system_counts_first_then_drives_then_how_simple_it_is() -> None:
    best, same, simple = choice(0.0100, 1000.0, 1.0, 0), choice(0.0102, 10.0, 50.0, 3), choice(0.0103, 15.0, 20.0, 2)
    assert advised(front_of([best, same])) == same
    assert advised(front_of([best, same, simple])) == simple, "drives wear less than half as much"
    simplest = choice(0.0104, 16.0, 30.0, 1)
    assert advised(front_of([best, same, simple, simplest])) == simplest, "as few bytes, within a factor of two"


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


COSTS = (LevelCost("local", 0.5, 1.0, 1.0, 60.0, 1 / 3e4), LevelCost("persistent", 2.0, 30.0, 40.0, 300.0, 1 / 1e6))


@pytest.mark.parametrize("step_s", [0.001, 0.37, 1.0, 30.0, 1000.0, 1e5])
def test_training_between_calls_is_whole_steps(step_s: float) -> None:
    free = best(COSTS, step_s)
    found = in_steps(COSTS, free, step_s)
    steps = training_s(COSTS, found) / step_s
    assert steps == pytest.approx(round(steps), rel=1e-9) and round(steps) == steps_between(COSTS, found, step_s) >= 1
    assert found.every == free.every and abs(found.period_s - free.period_s) <= step_s * (1 + 1e-9)
    assert free.waste.total <= found.waste.total * (1 + 1e-3)
    busy = sum(cost.busy_s / found.every[cost.name] for cost in COSTS)
    assert found.period_s >= busy * (1 - 1e-9)
