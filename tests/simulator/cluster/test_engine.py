"""The rounds: who is placed when, and what is told of it."""

from __future__ import annotations

import pytest
from deeppart_simulator.cluster.engine import JobResult, Outcome


def outcome(*took_s: float) -> Outcome:
    jobs = [JobResult(str(n), "app", 10.0 * n, 10.0 * n + took, n, 30.0 * n) for n, took in enumerate(took_s)]
    return Outcome("fifo", "w", {"app": 30.0}, jobs)


def test_figures() -> None:
    found = outcome(100.0, 20.0, 60.0)
    assert list(found.figures.values()) == pytest.approx([60.0, 60.0, 92.0, 100.0, 1.0, 30.0])
