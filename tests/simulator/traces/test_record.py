"""What a trace is."""

from __future__ import annotations

from deeppart_simulator.campaign.failures import CLASSES, ENDS
from deeppart_simulator.traces.record import FAILURES, KINDS, Event, Observation, Trace


def test_failures_are_those_of_campaigns() -> None:
    assert FAILURES == CLASSES and KINDS == (*CLASSES, *ENDS)


def test_a_trace_without_jobs_has_no_runs() -> None:
    trace = Trace("csv", (Event(1.0, "node", ("3",)),), Observation(10.0, 4, 40.0), ("0", "1", "2", "3"))
    assert trace.runs is None and not len(trace.waits_s) and not trace.one_job
