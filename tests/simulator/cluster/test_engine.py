"""The rounds: who is placed when, and what is told of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from deeppart_simulator.cluster.engine import Cluster, Job, JobResult, Outcome, Request, mean_of, placement_of, run
from deeppart_simulator.cluster.policies import Fifo

from deeppart.errors import ConfigError
from deeppart.plan.goodput import GradientNoise
from tests.simulator.cluster.toy import MODELS, NOISE, application, request


def cluster(nodes: int = 2, restart_s: float = 30.0) -> Cluster:
    return Cluster(nodes, 2, 60.0, lambda name: restart_s)


class Moves:
    """Gives one job the other node in each round, for some rounds."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.asked = rounds, 0

    def batch(self, request: Request) -> int:
        return int(request.batch)

    def share(
        self, now_s: float, jobs: Sequence[Job], held: Mapping[str, tuple[int, ...]]
    ) -> dict[str, tuple[int, ...]]:
        self.asked += 1
        node = min(self.asked, self.rounds) % 2
        return {job.request.name: (node, node) for job in jobs}


def test_a_job_is_placed_at_the_first_decision_after_it_came(tmp_path: Path) -> None:
    app = application(tmp_path)
    (first,) = run(cluster(restart_s=0.0), Fifo(2, 2), [request(app, at_s=0)])
    (later,) = run(cluster(restart_s=0.0), Fifo(2, 2), [request(app, at_s=61)])
    assert later.finished_s - first.finished_s == pytest.approx(60.0)
    assert later.completion_s == pytest.approx(first.completion_s - 1)


def test_every_move_is_a_restart_and_costs_its_time(tmp_path: Path) -> None:
    app = application(tmp_path)
    calm, moved = (run(cluster(), Moves(rounds), [request(app)])[0] for rounds in (1, 5))
    assert (calm.restarts, moved.restarts) == (0, 4) and (calm.stopped_s, moved.stopped_s) == (30.0, 150.0)
    assert moved.finished_s - calm.finished_s == pytest.approx(120.0, abs=5.0)


def test_a_job_that_never_fits_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not done after a year"):
        run(Cluster(1, 2, 86_400.0, lambda name: 0.0), Fifo(1, 2), [request(application(tmp_path), gpus=3)])


def test_placements() -> None:
    assert placement_of((3, 3, 0, 5, 5)) == (2, 1, 2) and placement_of(()) == ()


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


def outcome(*took_s: float) -> Outcome:
    jobs = [JobResult(str(n), "app", 10.0 * n, 10.0 * n + took, n, 30.0 * n) for n, took in enumerate(took_s)]
    return Outcome("fifo", "w", {"app": 30.0}, jobs)


def test_figures() -> None:
    found = outcome(100.0, 20.0, 60.0)
    assert (found.mean_s, found.median_s, found.makespan_s) == (60.0, 60.0, 100.0)
    assert (found.restarts, found.stopped_s) == (1.0, 30.0) and found.p90_s == pytest.approx(92.0)
    assert mean_of([outcome(10.0), outcome(30.0)], "mean_s") == 20.0
