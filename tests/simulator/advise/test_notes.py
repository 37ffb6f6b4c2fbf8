"""What is said where the model does not quite fit what was asked."""

from __future__ import annotations

from dataclasses import replace

from deeppart_simulator.advise.text import bursts, what_if
from deeppart_simulator.machine.record import Failures

from tests.simulator.timing.jobs import MACHINE, job


def test_more_nodes_than_there_are() -> None:
    assert what_if(MACHINE, 64) == [] == what_if(MACHINE, 60, 4)
    (note,) = what_if(MACHINE, 2000)
    assert "2,000 nodes" in note and "round numbers has 64" in note
    (note,) = what_if(MACHINE, 60, 5)
    assert "60 nodes and 5 spare ones" in note


def test_failures_that_do_not_come_at_random() -> None:
    assert bursts(job()) == []
    (early,) = bursts(job(machine=replace(MACHINE, failures=Failures(shape=0.7))))
    (even,) = bursts(job(machine=replace(MACHINE, failures=Failures(shape=2.0))))
    assert "in bursts (Weibull, shape 0.7)" in early and "campaign" in early and "exponential" in early
    assert "evenly" in even
