"""First in, first out."""

from __future__ import annotations

from pathlib import Path

import pytest
from deeppart_simulator.cluster.applications import Archive, read_workload
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


#: results-jobload/tiresias-1.0/summary.json, workload-8: the mean of all jobs, and every tenth of them.
MEAN_S = 5079.71
EVERY_TENTH_S = [102, 966, 550, 107, 14161, 117, 80, 86, 4986, 6233, 6789, 5284, 7750, 7820, 7846, 744]


def test_the_published_results() -> None:
    jobs = read_workload(Archive(), "workloads/workload-8.csv", {})
    found = run(Cluster(16, 4, 60.0, lambda name: 30.0), Tiresias(16, 4), jobs)
    assert sum(job.completion_s for job in found) / len(found) == pytest.approx(MEAN_S, abs=0.5)
    assert [round(job.completion_s) for job in found[::10]] == EVERY_TENTH_S


#: results-jobload/optimus-1.0/summary.json, workload-3: the mean of all jobs, and every tenth of them.
MEAN_S_OPTIMUS = 3944.01
EVERY_TENTH_S_OPTIMUS = [126, 1652, 909, 650, 909, 19746, 99, 2406, 9576, 10231, 18354, 82, 4755, 122, 7872, 131]


def test_the_published_results_of_optimus() -> None:
    jobs = read_workload(Archive(), "workloads/workload-3.csv", {})
    found = run(Cluster(16, 4, 60.0, lambda name: 30.0), Optimus(16, 4), jobs)
    assert sum(job.completion_s for job in found) / len(found) == pytest.approx(MEAN_S_OPTIMUS, abs=0.5)
    assert [round(job.completion_s) for job in found[::10]] == EVERY_TENTH_S_OPTIMUS
