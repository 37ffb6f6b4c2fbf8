"""What is advised: the least waste of all candidates, and of equals the simplest."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from deeppart_simulator.advise.choose import (
    AS_GOOD_OF_ALL,
    FACTORS,
    Advice,
    Wanted,
    advise,
    advised,
    describe,
    least_restart,
    loss_of,
    shown,
)
from deeppart_simulator.advise.text import config_toml, in_a_sentence, reasons
from deeppart_simulator.campaign.costs import followed, training_s
from deeppart_simulator.campaign.failures import Scheduling
from deeppart_simulator.campaign.plan import Cadences, Planned
from deeppart_simulator.campaign.run import run
from deeppart_simulator.machine.record import Failures
from deeppart_simulator.timing.stages import Job

from deeppart.errors import ConfigError
from deeppart.model import show_seconds, show_share
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


def test_what_is_as_good_loses_at_most_a_hundredth_of_the_useful_time_more() -> None:
    """Where 30 % are lost, a twentieth of that would be 1.5 %; of the other 70 % a hundredth is 0.7 %."""

    def choice(total: float, drained: float) -> Any:
        waste = SimpleNamespace(total=total, restart=0.0)
        return SimpleNamespace(waste=waste, idle=0.0, drained_daily_bytes=drained, node_daily_bytes=0.0, simplicity=0)

    least, near, far = choice(0.3, 8e12), choice(0.306, 3e12), choice(0.309, 1e12)
    assert advised([least, far]) is least
    assert advised([least, near, far]) is near


def test_what_is_adapted_is_never_worse_than_what_is_kept() -> None:
    advice = advise(asked(Failures(node=10 * DAY, system=100 * DAY)))
    assert tuple(each.factor for each in advice.sensitivity) == FACTORS
    for each in advice.sensitivity:
        assert each.adapted <= each.kept * (1 + 1e-9)
    periods = [each.period_s for each in advice.sensitivity]
    assert periods == sorted(periods), "the rarer failures are, the longer one may wait"


def test_a_job_that_gets_nowhere_is_refused_with_the_reason() -> None:
    """A failure every minute, and an hour to come back."""
    slow = replace(MACHINE.restart, relaunch=3600.0, detect=0.0, replace=0.0)
    with pytest.raises(ConfigError, match="nothing gets done") as caught:
        advise(asked(Failures(process=16 * 60.0), restart=slow))
    said = str(caught.value)
    assert "a failure every 60 s" in said and "goes into coming back" in said


@pytest.mark.sweep(2)
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


# --- advice as text: every level and every failure is told, and the configuration says what was chosen ---


@pytest.fixture(scope="module")
def advice() -> Advice:
    return advise(asked(Failures(process=5 * DAY, node=10 * DAY, system=100 * DAY)))


def test_every_failure_that_happens_and_every_level_has_a_line(advice: Advice) -> None:
    lines = reasons(advice)
    for words in ("a process dies every", "a node is lost every", "everything stops every", "compression: "):
        assert sum(line.startswith(words) for line in lines) == 1, words
    assert not any("a group of nodes" in line for line in lines), "which never happens here"
    for cost in advice.chosen.costs:
        assert sum(line.startswith(f"{cost.name}: every") for line in lines) == 1
    assert all(lines) and len(lines) == len(set(lines))


def test_the_configuration_is_what_was_chosen(advice: Advice) -> None:
    said = tomllib.loads(config_toml(advice))
    job = advice.chosen.job
    assert (said["compression"], said["capture"]) == (job.compression, job.capture)
    assert said["kappa"] == round(job.machine.memory.kappa_bytes)
    assert {level for level, count in said["every"].items() if count} >= {cost.name for cost in advice.chosen.costs}
    assert ("parity_group" in said) == bool(job.protection.parity_group) and "flush_bandwidth" not in said


def test_the_sentence_has_the_figures_of_the_choice(advice: Advice) -> None:
    chosen = advice.chosen
    said = in_a_sentence(chosen)
    assert said.startswith(f"Call checkpoint() every {show_seconds(chosen.cadence.period_s)}: each blocks ")
    assert f"blocks {show_seconds(chosen.blocked_s)}, a failure costs {show_seconds(chosen.work_s)} of work" in said
    assert said.endswith(f"{show_share(chosen.waste.total)} of the time in all.")
    # A failure finds training half a period after the last call, and what all of them cost is what is lost.
    assert 0.4 < chosen.work_s / chosen.cadence.period_s < 0.7
    rate = sum(cost.failures_per_s for cost in chosen.costs)
    lost = chosen.waste.cost + rate * (chosen.work_s + chosen.back_s)
    assert lost == pytest.approx(chosen.waste.total)
