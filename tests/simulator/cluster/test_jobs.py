"""One job: as long as its model says, with restarts, and with the batch that it chooses."""

from __future__ import annotations

from pathlib import Path

import pytest
from deeppart_simulator.cluster.engine import Job

from deeppart.plan.goodput import GradientNoise
from tests.simulator.cluster.toy import MODELS, NOISE, application, request

MODEL = MODELS["scales"]


def finished_s(job: Job, interval_s: float = 10.0) -> float:
    now_s = 0.0
    while job.finished_s is None:
        job.advance(now_s, interval_s)
        now_s += interval_s
        assert now_s < 1e6
    return float(job.finished_s)


@pytest.mark.parametrize("interval_s", [7.0, 60.0, 10_000.0])
def test_a_fixed_batch_takes_as_long_as_its_steps(tmp_path: Path, interval_s: float) -> None:
    job = Job(request(application(tmp_path)), 64)
    job.place((2,), 30.0)
    gain = float(GradientNoise(*NOISE, 32).gain(64))
    expected = 30 + 1500 / gain * float(MODEL.step_s(1, 2, 32))
    assert finished_s(job, interval_s) == pytest.approx(expected, abs=5 * 0.51)  # ends of epochs are whole seconds
    assert job.stopped_s == 30.0 and job.restarts == 0 and job.throughput is None


def test_restarts_cost_what_they_take(tmp_path: Path) -> None:
    app = application(tmp_path)
    without, with_one = Job(request(app), 64), Job(request(app), 64)
    for job in (without, with_one):
        job.place((2,), 30.0)
        job.advance(0.0, 60.0)
    with_one.place((2,), 45.0)
    assert with_one.restarts == 1
    ends = [finished_s(job) for job in (without, with_one)]
    assert ends[1] - ends[0] == pytest.approx(45.0, abs=3.0)


def test_a_job_without_gpus_waits(tmp_path: Path) -> None:
    job = Job(request(application(tmp_path)), 64)
    job.advance(0.0, 1000.0)
    assert job.epoch == 0 and job.finished_s is None
    job.place((1,), 0.0)
    job.advance(1000.0, 10.0)
    job.place((), 0.0)
    job.advance(1010.0, 1e6)
    assert job.finished_s is None and job.restarts == 0


def test_a_job_that_chooses_its_batch_learns_its_model_and_is_faster(tmp_path: Path) -> None:
    app = application(tmp_path)
    chooses, keeps = Job(request(app), None), Job(request(app), 32)
    for job in (chooses, keeps):
        job.place((2, 2), 0.0)
    assert finished_s(chooses) < 0.8 * finished_s(keeps)
    assert chooses.throughput is not None and chooses.most_gpus_seen == 4
    assert float(chooses.throughput.step_s(2, 4, 64)) == pytest.approx(float(MODEL.step_s(2, 4, 64)), rel=0.1)
