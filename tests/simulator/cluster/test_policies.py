"""Policies that choose no sizes, against published results; and the trace of these."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from deeppart_simulator.cluster import applications as module
from deeppart_simulator.cluster.applications import SHIPPED, Archive, read_workload
from deeppart_simulator.cluster.engine import Cluster, Job, run
from deeppart_simulator.cluster.policies import Fifo, Optimus, Tiresias

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


#: Of results-jobload/POLICY-1.0/summary.json: the mean of all jobs, and every tenth of them.
PUBLISHED: dict[str, tuple[Any, str, float, list[int]]] = {
    "tiresias": (
        Tiresias, "workload-8", 5079.71,
        [102, 966, 550, 107, 14161, 117, 80, 86, 4986, 6233, 6789, 5284, 7750, 7820, 7846, 744],
    ),
    "optimus": (
        Optimus, "workload-3", 3944.01,
        [126, 1652, 909, 650, 909, 19746, 99, 2406, 9576, 10231, 18354, 82, 4755, 122, 7872, 131],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_results(name: str) -> None:
    policy, workload, mean_s, every_tenth_s = PUBLISHED[name]
    jobs = read_workload(Archive(), f"workloads/{workload}.csv", {})
    found = run(Cluster(16, 4, 60.0, lambda name: 30.0), policy(16, 4), jobs)
    assert sum(job.completion_s for job in found) / len(found) == pytest.approx(mean_s, abs=0.5)
    assert [round(job.completion_s) for job in found[::10]] == every_tenth_s


def test_the_trace_that_is_shipped_is_small_and_says_whose_it_is() -> None:
    shipped = Path(module.__file__).parent / "adaptdl.zip"
    assert shipped.stat().st_size < 300_000
    with zipfile.ZipFile(shipped) as file:
        assert b"Apache License" in file.read("NOTICE") and b"Petuum" in file.read("NOTICE")
    assert [len(Archive(SHIPPED).workloads(f"workloads{load}")) for load in ("", "-0.5", "-1.5", "-2.0")] == [8] * 4
