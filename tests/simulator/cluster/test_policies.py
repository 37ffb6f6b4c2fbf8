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


#: results-jobload/optimus-1.0/summary.json, workload-3: the mean of all jobs, and every tenth of them.
MEAN_S_OPTIMUS = 3944.01
EVERY_TENTH_S_OPTIMUS = [126, 1652, 909, 650, 909, 19746, 99, 2406, 9576, 10231, 18354, 82, 4755, 122, 7872, 131]


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


def test_the_published_results_of_optimus() -> None:
    jobs = read_workload(Archive(), "workloads/workload-3.csv", {})
    found = run(Cluster(16, 4, 60.0, lambda name: 30.0), Optimus(16, 4), jobs)
    assert sum(job.completion_s for job in found) / len(found) == pytest.approx(MEAN_S_OPTIMUS, abs=0.5)
    assert [round(job.completion_s) for job in found[::10]] == EVERY_TENTH_S_OPTIMUS
