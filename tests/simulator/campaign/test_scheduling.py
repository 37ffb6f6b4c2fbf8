"""Turns, notices and queues, against what is worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.campaign.failures import Failure, Scheduling, Waits
from deeppart_simulator.campaign.outcomes import RunResult, estimate
from deeppart_simulator.campaign.plan import Cadences, Planned
from deeppart_simulator.campaign.run import run
from deeppart_simulator.machine.record import Failures, Restart
from deeppart_simulator.timing.stages import Protection

from tests.simulator.campaign.jobs import QUIET, planned

#: A call blocks for 60 s and takes no time in the background.
LIMIT, WAIT, PERIOD, BLOCKED = 10_000.0, 500.0, 1000.0, 60.0
CALL = PERIOD + BLOCKED


def _job() -> Planned:
    return planned(Failures(), BLOCKED, protection=Protection(local=False, partner=False))


#: From the file system, with all nodes.
RESTORE = _job().on(4).restore_s({"persistent": 4}, 4)


def _run(scheduling: Scheduling, wall_s: float, *failures: Failure, job: Planned | None = None) -> RunResult:
    return run(job or _job(), Cadences(PERIOD, {"persistent": 1}, wall_s, scheduling=scheduling), 1, failures)


def test_told_in_time_it_saves_and_loses_nothing() -> None:
    """Nine calls take 9,540 s; told at 9,900 it has trained 360 s more, saves for 60 s, and waits for 500 s."""
    result = _run(Scheduling(LIMIT, notice_s=100.0, waits=Waits(WAIT)), 9960 + WAIT)
    assert result.useful_s == pytest.approx(9360.0, abs=0.01) and result.lost_s == pytest.approx(0.0, abs=1e-6)
    assert result.buckets["blocked"] == pytest.approx(10 * BLOCKED, abs=0.01)
    assert result.buckets["queued"] == pytest.approx(WAIT, abs=0.01)
    assert result.ends == {"time limit": 1} and result.in_time == 1 and result.failures == {}


def test_turn_after_turn() -> None:
    """Each is used for 9,960 s, of which it restores, trains until 9,900 but for nine calls, and saves."""
    turns = 7
    assert RESTORE < 360
    result = _run(Scheduling(LIMIT, notice_s=100.0, waits=Waits(WAIT)), turns * (9960 + WAIT))
    # Writing takes milliseconds here.
    assert result.useful_s == pytest.approx(9360 + (turns - 1) * (9360 - RESTORE), abs=turns * 0.1)
    assert result.buckets["restoring"] == pytest.approx((turns - 1) * RESTORE, abs=turns * 0.1)
    assert result.buckets["queued"] == pytest.approx(turns * WAIT, abs=turns * 0.1)
    assert result.in_time == turns and sum(result.buckets.values()) == pytest.approx(result.wall_s)


def test_not_told_it_loses_what_came_after_the_last_call() -> None:
    result = _run(Scheduling(LIMIT, waits=Waits(WAIT)), LIMIT + WAIT + RESTORE + 7)
    assert result.lost_s == pytest.approx(LIMIT - 9 * CALL, abs=0.01)  # trained since 9,540
    assert result.useful_s == pytest.approx(9 * PERIOD + 7, abs=0.01)
    assert result.ends == {"time limit": 1} and result.in_time == 0
    assert result.buckets["queued"] == pytest.approx(WAIT)


def test_it_comes_back_after_the_queue_from_the_file_system_alone() -> None:
    restart = Restart(detect=11.0, relaunch=70.0, replace=13.0, repair=0.0)
    job = _job()
    job = Planned(replace(job.job, machine=replace(QUIET, restart=restart)))
    result = _run(Scheduling(LIMIT, notice_s=100.0, waits=Waits(WAIT)), 9960 + WAIT + 70 + RESTORE + 1, job=job)
    # Nothing is detected and nothing replaced: it starts on new nodes.
    assert result.buckets["down"] == pytest.approx(70.0, abs=0.01)
    assert result.recoveries == {"persistent": 1}
    local = planned(Failures(), BLOCKED, protection=Protection(partner=False))
    cadences = Cadences(PERIOD, {"local": 1}, LIMIT + WAIT + 10, scheduling=Scheduling(LIMIT, waits=Waits(WAIT)))
    assert run(local, cadences, 1).recoveries == {"none": 1}  # what was on its nodes is gone


def test_a_failure_between_notice_and_end() -> None:
    """It comes back at once, and then saves: all within the notice."""
    struck = Failure(9930.0, "process", (0,))
    result = _run(Scheduling(LIMIT, notice_s=400.0, waits=Waits(WAIT)), LIMIT + WAIT, struck)
    # Told at 9,600, it blocks until 9,660 and is in the queue before it strikes.
    assert result.failures == {} and result.in_time == 1
    early = Failure(9630.0, "process", (0,))
    again = _run(Scheduling(LIMIT, notice_s=400.0, waits=Waits(WAIT)), LIMIT, early)
    assert again.failures == {"process": 1} and again.in_time == 1
    assert again.lost_s == pytest.approx(9600 - 9 * CALL, abs=0.01)


def test_preemptions_are_drawn_at_their_rate() -> None:
    mean_s, wall_s = 20_000.0, 2e6
    scheduling = Scheduling(preemption_s=mean_s, notice_s=100.0, waits=Waits(WAIT, exponential=True))
    runs = [run(_job(), Cadences(PERIOD, {"persistent": 1}, wall_s, scheduling=scheduling), seed) for seed in range(6)]
    ends = estimate([float(each.ends["preemption"]) for each in runs])
    expected = wall_s / (mean_s + BLOCKED + WAIT)
    assert ends.low * 0.97 <= expected <= ends.high * 1.03
    queued = estimate([each.buckets["queued"] / each.ends["preemption"] for each in runs])
    assert queued.low * 0.97 <= WAIT <= queued.high * 1.03
    assert all(each.lost_s == pytest.approx(0.0, abs=1e-3) for each in runs)
