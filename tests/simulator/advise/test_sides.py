"""Jobs beside each other."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from deeppart_simulator.advise.choose import Wanted, advise
from deeppart_simulator.advise.compare import has_failures, least_restart_of, side_of
from deeppart_simulator.machine.record import Failures
from deeppart_simulator.timing.stages import Protection, times_of

from tests.simulator.timing.jobs import MACHINE, STATE, job

FAILING = replace(MACHINE, failures=Failures(node=5e6, system=5e6))


def test_a_side_has_what_is_advised_for_its_job() -> None:
    wanted = Wanted(parity=(4, 1))
    side, expected = side_of("x", job(machine=FAILING), wanted), advise(job(machine=FAILING), wanted=wanted).chosen
    assert side.choice == expected and side.job == expected.job and side.job.protection.parity_group == 4
    assert (side.label, side.blocked_s, side.complete_s) == ("x", expected.blocked_s, expected.complete_s)


def test_where_nothing_fails_nothing_is_advised() -> None:
    this = job(protection=Protection(partner=False))
    side, times = side_of("x", this), times_of(this, STATE.shares(16, kappa=0))
    assert not has_failures(this) and side.choice is None and side.job == this
    assert side.blocked_s == pytest.approx(times.blocked_s) and side.complete_s == pytest.approx(times.complete())
    assert least_restart_of([side]) == 0


@pytest.mark.parametrize("kind", ["process", "node", "group", "system"])
def test_any_failure_is_one(kind: str) -> None:
    assert has_failures(job(machine=replace(MACHINE, failures=Failures(**{kind: 1e6}))))
    assert not has_failures(job(machine=replace(MACHINE, failures=Failures(**{kind: math.inf}))))


def test_the_least_time_to_come_back_is_that_of_all() -> None:
    sides = [side_of("x", job(machine=FAILING.with_failures(factor))) for factor in (1.0, 4.0)]
    restarts = [side.choice.waste.restart for side in sides if side.choice is not None]
    assert least_restart_of(sides) == min(restarts) == restarts[1] < restarts[0]
