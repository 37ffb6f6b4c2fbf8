"""Turns, notices and queues, against what is worked out by hand."""

from __future__ import annotations

import pytest
from deeppart_simulator.campaign.failures import Failure, Scheduling, Waits
from deeppart_simulator.campaign.outcomes import RunResult
from deeppart_simulator.campaign.plan import Cadences, Planned
from deeppart_simulator.campaign.run import run
from deeppart_simulator.machine.record import Failures
from deeppart_simulator.timing.stages import Protection

from tests.simulator.campaign.jobs import planned

#: A call blocks for 60 s and takes no time in the background.
LIMIT, WAIT, PERIOD, BLOCKED = 10_000.0, 500.0, 1000.0, 60.0


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
