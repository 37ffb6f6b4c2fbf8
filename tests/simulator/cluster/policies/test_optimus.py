"""Optimus: GPUs by marginal gain; and the published results of AdaptDL's artefact, job by job."""

from __future__ import annotations

from pathlib import Path

import pytest
from deeppart_simulator.cluster.applications import Archive, read_workload
from deeppart_simulator.cluster.engine import Cluster, Job, run
from deeppart_simulator.cluster.policies import Optimus

from tests.simulator.cluster.toy import application, request

#: results-jobload/optimus-1.0/summary.json, workload-3: the mean of all jobs, and every tenth of them.
MEAN_S = 3944.01
EVERY_TENTH_S = [126, 1652, 909, 650, 909, 19746, 99, 2406, 9576, 10231, 18354, 82, 4755, 122, 7872, 131]


def sizes(jobs: list[Job], nodes: int, held: dict[str, tuple[int, ...]] | None = None) -> dict[str, int]:
    return {name: len(gpus) for name, gpus in Optimus(nodes, 2).share(0.0, jobs, held or {}).items()}


def test_gpus_go_to_the_job_that_they_bring_nearer_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    scales, stays = application(tmp_path / "a"), application(tmp_path / "b", "stays")
    jobs = [Job(request(stays, "stays", batch=128), 128), Job(request(scales, "scales", batch=128), 128)]
    found = sizes(jobs, nodes=3)
    assert found["stays"] == 1 and found["scales"] == 5
    jobs[1].epoch = 4  # one step is taken to be left
    assert sizes(jobs, nodes=3)["scales"] == 5  # nobody else has a use for them


def test_no_more_gpus_than_the_batch_has_samples_for_and_one_for_everybody_first(tmp_path: Path) -> None:
    app = application(tmp_path)
    assert sizes([Job(request(app, batch=32), 32)], nodes=4) == {"a": 4}  # 8 samples at least
    crowd = [Job(request(app, str(number), batch=128), 128) for number in range(6)]
    assert sizes(crowd, nodes=2) == {"0": 1, "1": 1, "2": 1, "3": 1}


def test_who_keeps_its_number_keeps_its_place(tmp_path: Path) -> None:
    job = Job(request(application(tmp_path), batch=16 * 2), 32)
    assert Optimus(4, 2).share(0.0, [job], {"a": (3, 3, 1, 1)}) == {"a": (3, 3, 1, 1)}


def test_the_published_results() -> None:
    jobs = read_workload(Archive(), "workloads/workload-3.csv", {})
    found = run(Cluster(16, 4, 60.0, lambda name: 30.0), Optimus(16, 4), jobs)
    assert sum(job.completion_s for job in found) / len(found) == pytest.approx(MEAN_S, abs=0.5)
    assert [round(job.completion_s) for job in found[::10]] == EVERY_TENTH_S
