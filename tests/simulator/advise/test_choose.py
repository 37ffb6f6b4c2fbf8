"""What is advised: the least waste of all candidates, and of equals the simplest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.advise.choose import AS_GOOD_OF_ALL, FACTORS, HOPELESS, Wanted, advise, describe, least_restart, loss_of, shown
from deeppart_simulator.advise.text import reasons
from deeppart_simulator.campaign.costs import followed, training_s
from deeppart_simulator.campaign.failures import Scheduling
from deeppart_simulator.campaign.plan import Cadences, Planned
from deeppart_simulator.campaign.run import run
from deeppart_simulator.machine.record import Failures
from deeppart_simulator.timing.stages import Job, Protection

from deeppart.errors import ConfigError
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
    assert advice.chosen.drained_daily_bytes < only.drained_daily_bytes / 5


def test_what_stands_beside_the_best_cadence_is_written_less_often() -> None:
    advice = advise(asked(Failures(node=DAY / 4, system=10 * DAY)))
    best = {describe(choice.job): choice for choice in advice.choices}
    for choice in advice.front:
        same = best[describe(choice.job)]
        assert choice.cadence.period_s >= same.cadence.period_s
        assert choice.waste.total >= same.waste.total * (1 - 1e-4)


def test_where_only_processes_die_no_node_is_protected() -> None:
    chosen = advise(asked(Failures(process=DAY))).chosen
    assert chosen.job.protection.local and not chosen.job.protection.partner
    assert not chosen.job.protection.parity_group and chosen.survival.needs["process"] == "local"


def test_nodes_that_are_often_lost_are_protected_from_it() -> None:
    slow = replace(MACHINE.persistent, write=1e8, read=1e8)
    chosen = advise(asked(Failures(node=DAY / 4), persistent=slow)).chosen
    assert chosen.job.protection.partner or chosen.job.protection.parity_group
    assert chosen.survival.needs["node"] in ("partner", "parity")


def test_without_a_codec_nothing_is_compressed_and_progress_is_told() -> None:
    told: list[str] = []
    advice = advise(asked(Failures(node=DAY), codecs={}), progress=told.append)
    assert {choice.job.compression for choice in advice.choices} == {"none"}
    assert len(told) == len(set(told)) >= len(advice.choices)


def test_what_is_adapted_is_never_worse_than_what_is_kept() -> None:
    advice = advise(asked(Failures(node=10 * DAY, system=100 * DAY)))
    assert tuple(each.factor for each in advice.sensitivity) == FACTORS
    for each in advice.sensitivity:
        assert each.adapted <= each.kept * (1 + 1e-9)
    periods = [each.period_s for each in advice.sensitivity]
    assert periods == sorted(periods), "the rarer failures are, the longer one may wait"


def test_what_keeps_more_than_a_node_holds_is_on_no_list() -> None:
    """16 GB on 4 nodes: 8 GB for two local steps, 8 for two copies, 4 more where copies are written more rarely."""
    failures = Failures(process=DAY / 4, node=DAY, system=10 * DAY)
    shared = replace(MACHINE.persistent, write=1e9, read=1e9)
    partner = Wanted(partner=True, compression="none")
    for capacity, copies_at in ((20.5e9, 2), (16.5e9, 1), (15.5e9, None)):
        job = asked(failures, persistent=shared, local=replace(MACHINE.local, capacity=capacity))
        found = advise(job)
        assert all(each.space.on_node <= capacity for each in (*found.front, *found.choices, found.chosen))
        copies = [each for each in found.choices if describe(each.job) == "local + partner + persistent"]
        assert [each.cadence.every["partner"] for each in copies] == ([copies_at] if copies_at else [])
        if copies_at:
            assert not found.too_large and advise(job, wanted=partner).chosen.job.protection.partner
        else:
            assert list(found.too_large) == ["local + partner + persistent"]
            with pytest.raises(ConfigError, match="no room"):
                advise(job, wanted=partner)


def test_a_quota_that_nothing_fits_is_refused_and_one_that_compression_fits_is_met() -> None:
    """Four steps of 16 GB are 64 GB, compressed 51.2."""
    failures = Failures(node=DAY, system=10 * DAY)
    found = advise(asked(failures, persistent=replace(MACHINE.persistent, quota=60e9)))
    assert {choice.job.compression for choice in found.front} == {"tensor"} and found.too_large
    with pytest.raises(ConfigError) as caught:
        advise(asked(failures, persistent=replace(MACHINE.persistent, quota=50e9)))
    assert "[persistent] quota" in str(caught.value) and "keep" in str(caught.value)


def test_a_machine_without_failures_needs_no_advice() -> None:
    with pytest.raises(ConfigError):
        advise(asked(Failures()))


@pytest.mark.parametrize(
    ("protection", "compression", "text"),
    [
        (Protection(), "none", "local + partner + persistent"),
        (Protection(local=False, partner=False), "none", "persistent"),
        (Protection(partner=False, parity_group=8, parity_tolerate=2), "tensor",
         "local + parity 8/2 + persistent, compressed"),
    ],
)  # fmt: skip
def test_described_in_a_few_words(protection: Protection, compression: str, text: str) -> None:
    assert describe(replace(asked(Failures()), protection=protection, compression=compression)) == text


@pytest.mark.parametrize(("nodes", "widths"), [(64, {1, 2, 4, 8}), (8, {2, 4, 8}), (2, {4, 8})])
def test_a_what_if_has_other_widths_that_take_no_more_nodes_than_it(nodes: int, widths: set[int]) -> None:
    """16 ranks, 4 on each node: with 2 nodes that is a what-if of 4."""
    advice = advise(asked(Failures(process=DAY), nodes=nodes))
    assert set(advice.by_ranks_per_node) == widths


def test_what_gets_nowhere_is_not_beside_what_nearly_does() -> None:
    """Where 99.6 % is lost, mostly by coming back, a twentieth more of the rest would be all of the time."""
    slow = replace(MACHINE.restart, relaunch=300.0, detect=0.0, replace=0.0)
    advice = advise(asked(Failures(node=4 * 60.0), restart=slow))
    assert 0.99 < advice.chosen.waste.total < HOPELESS
    assert max(choice.waste.total for choice in advice.front) < HOPELESS


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


def test_what_is_advised_is_shown_first() -> None:
    advice = advise(asked(Failures(node=10 * DAY, system=100 * DAY)))
    assert shown(advice)[0] is advice.chosen
    others = [choice.waste.total for choice in shown(advice)[1:]]
    assert others == sorted(others) and shown(advice).count(advice.chosen) == 1


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
        training_s(chosen.costs, chosen.cadence), followed(chosen.cadence), 100 * DAY, spares=2, scheduling=scheduling
    )
    runs = [run(Planned(chosen.job), cadences, seed) for seed in range(4)]
    wasted = 1 - sum(each.efficiency for each in runs) / len(runs)
    assert wasted == pytest.approx(chosen.waste.total, rel=0.1)
