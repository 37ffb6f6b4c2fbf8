"""Runs of jobs, added up."""

from __future__ import annotations

import pytest
from deeppart_simulator.traces.record import JobLog, LoggedRun


def test_runs_are_added_up() -> None:
    log = JobLog()
    log.add(LoggedRun(1000.0, 1100.0, ("b", "a"), "node", 16, 5.0))
    log.add(LoggedRun(900.0, 1200.0, ("a",), None, 8, -1.0))
    log.add(LoggedRun(1150.0, None, ("c",), None, 8))  # until the last time that the log knows
    trace = log.trace("x", 1.0, ["said"])
    seen = trace.observation
    assert (seen.seconds, seen.nodes, seen.node_s) == (300.0, 3, 2 * 100.0 + 300.0 + 50.0)
    assert seen.process_s == 16 * 100.0 + 8 * 300.0 + 8 * 50.0
    assert [(event.at_s, event.kind, event.nodes) for event in trace.events] == [(200.0, "node", ("b", "a"))]
    assert trace.names == ("a", "b", "c") and trace.notes == ("said",)
    assert trace.runs is not None
    assert list(trace.runs.seconds) == [100.0, 300.0, 50.0] and list(trace.runs.ended) == [1, -1, -1]
    assert list(trace.waits_s) == [5.0, 0.0]


def test_events_are_in_order_of_time_whatever_the_order_of_lines() -> None:
    log = JobLog()
    for at_s in (50.0, 10.0, 30.0):
        log.add(LoggedRun(0.0, at_s, ("a",), "process"))
    assert [event.at_s for event in log.trace("x", 1.0, []).events] == [10.0, 30.0, 50.0]
    assert len(log) == 3


def test_a_job_that_has_only_begun() -> None:
    log = JobLog()
    log.add(LoggedRun(5.0, None, ("a",), None))
    assert log.trace("x", 1.0, []).observation.seconds == pytest.approx(0.0)
