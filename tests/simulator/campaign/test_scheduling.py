"""Turns, notices and queues, against what is worked out by hand."""

from __future__ import annotations

import pytest
from deeppart_simulator.campaign.failures import Scheduling, Waits
from deeppart_simulator.campaign.plan import Cadences
from deeppart_simulator.campaign.run import run
from deeppart_simulator.machine.record import Failures
from deeppart_simulator.timing.stages import Protection

from tests.simulator.campaign.jobs import planned

#: A call blocks for 60 s and takes no time in the background.
LIMIT, WAIT, PERIOD, BLOCKED = 10_000.0, 500.0, 1000.0, 60.0


def test_turn_after_turn_it_is_told_in_time_saves_and_loses_nothing() -> None:
    """Each is used for 9,960 s, of which it restores, trains until 9,900 but for nine calls, and saves."""
    turns, job = 7, planned(Failures(), BLOCKED, protection=Protection(local=False, partner=False))
    restore_s = job.on(4).restore_s({"persistent": 4}, 4)  # from the file system, with all nodes
    assert restore_s < 360
    scheduling = Scheduling(LIMIT, notice_s=100.0, waits=Waits(WAIT))
    result = run(job, Cadences(PERIOD, {"persistent": 1}, turns * (9960 + WAIT), scheduling=scheduling), 1, ())
    # Writing takes milliseconds here.
    assert result.useful_s == pytest.approx(9360 + (turns - 1) * (9360 - restore_s), abs=turns * 0.1)
    assert result.lost_s == pytest.approx(0.0, abs=1e-6)
    assert result.buckets["blocked"] == pytest.approx(10 * turns * BLOCKED, abs=turns * 0.1)
    assert result.buckets["restoring"] == pytest.approx((turns - 1) * restore_s, abs=turns * 0.1)
    assert result.buckets["queued"] == pytest.approx(turns * WAIT, abs=turns * 0.1)
    assert result.ends == {"time limit": turns} and result.failures == {}
    assert result.in_time == turns and sum(result.buckets.values()) == pytest.approx(result.wall_s)
