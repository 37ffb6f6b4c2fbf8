"""Tiresias: two queues; and the published results of AdaptDL's artefact, job by job."""

from __future__ import annotations

from pathlib import Path

import pytest
from deeppart_simulator.cluster.applications import Archive, read_workload
from deeppart_simulator.cluster.engine import Cluster, Job, run
from deeppart_simulator.cluster.policies import Tiresias

from tests.simulator.cluster.toy import application, request

#: results-jobload/tiresias-1.0/summary.json, workload-8: the mean of all jobs, and every tenth of them.
MEAN_S = 5079.71
EVERY_TENTH_S = [102, 966, 550, 107, 14161, 117, 80, 86, 4986, 6233, 6789, 5284, 7750, 7820, 7846, 744]


def test_who_had_little_service_comes_before_who_had_much(tmp_path: Path) -> None:
    app = application(tmp_path)
    old, new = (Job(request(app, name, gpus=2), 64) for name in ("old", "new"))
    policy = Tiresias(1, 2)
    held = policy.share(0.0, [old], {})
    assert held == {"old": (0, 0)}
    assert list(policy.share(8 * 3600.0 - 60, [old, new], held)) == ["old"]  # not 16 GPU hours yet
    assert list(policy.share(8 * 3600.0, [old, new], held)) == ["new"]
    assert list(policy.share(8 * 3600.0 + 60, [old], {})) == ["old"]


def test_small_jobs_pass_large_ones(tmp_path: Path) -> None:
    app = application(tmp_path)
    jobs = [Job(request(app, name, gpus=gpus), 64) for name, gpus in (("a", 3), ("b", 2), ("c", 1))]
    assert {name: len(gpus) for name, gpus in Tiresias(2, 2).share(0.0, jobs, {}).items()} == {"a": 3, "c": 1}


def test_the_published_results() -> None:
    jobs = read_workload(Archive(), "workloads/workload-8.csv", {})
    found = run(Cluster(16, 4, 60.0, lambda name: 30.0), Tiresias(16, 4), jobs)
    assert sum(job.completion_s for job in found) / len(found) == pytest.approx(MEAN_S, abs=0.5)
    assert [round(job.completion_s) for job in found[::10]] == EVERY_TENTH_S
