"""The rounds: who is placed when, and what is told of it."""

from __future__ import annotations

import pytest
from deeppart_simulator.cluster.engine import JobResult, Outcome, mean_of


def outcome(*took_s: float) -> Outcome:
    jobs = [JobResult(str(n), "app", 10.0 * n, 10.0 * n + took, n, 30.0 * n) for n, took in enumerate(took_s)]
    return Outcome("fifo", "w", {"app": 30.0}, jobs)


def test_figures() -> None:
    found = outcome(100.0, 20.0, 60.0)
    assert (found.mean_s, found.median_s, found.makespan_s) == (60.0, 60.0, 100.0)
    assert (found.restarts, found.stopped_s) == (1.0, 30.0) and found.p90_s == pytest.approx(92.0)
    assert mean_of([outcome(10.0), outcome(30.0)], "mean_s") == 20.0
