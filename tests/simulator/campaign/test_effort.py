"""The time that a simulation takes, estimated: more for more calls, failures and nodes; and near the truth."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from deeppart_simulator.campaign.plan import LIMIT_S, Cadences, effort_s, too_long
from deeppart_simulator.campaign.run import run
from deeppart_simulator.machine.record import Failures

from tests.simulator.campaign.jobs import DAY, busy, planned


def test_more_of_anything_takes_longer() -> None:
    job, cadences = busy()
    usual = effort_s(job, cadences)
    assert effort_s(job, replace(cadences, wall_s=2 * cadences.wall_s)) > 1.9 * usual
    assert effort_s(job, replace(cadences, period_s=cadences.period_s / 2)) > usual
    assert effort_s(job, cadences, 10**6) > effort_s(job, cadences, 10**3)
    often = planned(Failures(system=60.0), ranks=64)
    rarely = planned(Failures(system=DAY), ranks=64)
    assert effort_s(often, cadences) > 10 * effort_s(rarely, cadences)


def test_it_is_within_a_factor_of_what_it_takes() -> None:
    for job, cadences in (busy(), (planned(Failures(node=DAY)), Cadences(60.0, {"local": 1}, 20 * DAY))):
        began = time.process_time()
        run(job, cadences, 1)
        taken = time.process_time() - began
        assert taken / 30 < effort_s(job, cadences) < taken * 30


def test_an_hour_is_the_limit() -> None:
    assert not too_long(LIMIT_S) and too_long(1.01 * LIMIT_S) and too_long(math.inf) and too_long(math.nan)
