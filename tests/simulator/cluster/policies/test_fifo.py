"""First in, first out."""

from __future__ import annotations

from pathlib import Path

from deeppart_simulator.cluster.engine import Job
from deeppart_simulator.cluster.policies import Fifo

from tests.simulator.cluster.toy import application, request


def test_nobody_gets_ahead_and_nobody_is_stopped(tmp_path: Path) -> None:
    app = application(tmp_path)
    jobs = [Job(request(app, name, gpus=gpus), 64) for name, gpus in (("a", 3), ("b", 2), ("c", 1))]
    policy = Fifo(2, 2)
    held = policy.share(60.0, jobs, {})
    assert list(held) == ["a"] and sorted(held["a"]) == [0, 0, 1]
    assert policy.share(120.0, jobs, held) == held
    later = policy.share(180.0, jobs[1:], {})
    assert {name: len(gpus) for name, gpus in later.items()} == {"b": 2, "c": 1}
