"""Pollux: close to the best of all allocations; its rules; and better than policies that choose no sizes."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from deeppart_simulator.cluster.applications import Archive, read_workload
from deeppart_simulator.cluster.engine import Allocation, Cluster, Job, run
from deeppart_simulator.cluster.policies import Tiresias
from deeppart_simulator.cluster.pollux import Packing, Pollux, Worth, divide

from deeppart.plan.goodput import GradientNoise, best_step
from tests.simulator.cluster.toy import MODELS, application, request
from tests.unit.plan.goodput.models import BOUNDS, JOB

NODES, PER_NODE = 3, 2


def known_jobs(folder: Path, seed: int) -> list[Job]:
    """Jobs that have run for some time, and know their models."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(3):
        (folder / str(number)).mkdir()
        name = str(random.choice(list(MODELS)))
        job = Job(
            request(application(folder / str(number), name), str(number), at_s=-float(random.integers(50, 5000))), None
        )
        job.throughput, job.noise = MODELS[name], GradientNoise(1.0, float(random.choice([0.5, 8.0, 500.0])), 32)
        job.most_gpus_seen, job.restarts = int(random.integers(1, 4)), int(random.integers(0, 3))
        found.append(job)
    return found


def is_allowed(allocations: tuple[Allocation, ...]) -> bool:
    used = Counter(node for each in allocations for node in each)
    spread = Counter(node for each in allocations if len(set(each)) > 1 for node in set(each))
    return max(used.values(), default=0) <= PER_NODE and max(spread.values(), default=0) <= 1


def cost(job: Job, allocation: Allocation, held: Allocation, fair: int) -> float:
    """What an allocation contributes to the sum, with the restart that it takes (section 4.2 of the paper)."""
    age_s = -job.request.submitted_s
    factor = 1.0 if allocation == held else max(age_s - 30 * job.restarts, 0) / (age_s + 30)
    worth = Worth(job.goodput, job.bounds, NODES * PER_NODE, PER_NODE)
    return float(worth.cost(len(set(allocation)), len(allocation), fair, factor))


@pytest.mark.parametrize("seed", range(12))
def test_close_to_the_best_of_all_allocations(tmp_path: Path, seed: int) -> None:
    jobs = known_jobs(tmp_path, seed)
    policy = Pollux(NODES, PER_NODE)
    held: dict[str, Allocation] = {"0": (0,), "1": (1, 2)} if seed % 2 else {}
    found = policy.share(0.0, jobs, held)
    everywhere = [
        tuple(node for node, count in enumerate(counts) for _ in range(count))
        for counts in product(range(PER_NODE + 1), repeat=NODES)
    ]
    choices = [[each for each in everywhere if len(each) <= 2 * job.most_gpus_seen] for job in jobs]
    costs = [
        {each: cost(job, each, held.get(job.request.name, ()), 2) for each in choice}
        for job, choice in zip(jobs, choices, strict=True)
    ]
    least = min(sum(costs[n][each] for n, each in enumerate(way)) for way in product(*choices) if is_allowed(way))
    got = tuple(found[job.request.name] for job in jobs)
    assert is_allowed(got)
    assert sum(costs[n][each] for n, each in enumerate(got)) <= 1.03 * least


def test_no_more_than_twice_the_gpus_that_a_job_has_had(tmp_path: Path) -> None:
    job = Job(request(application(tmp_path)), None)
    assert len(Pollux(4, 2).share(60.0, [job], {})["a"]) == 1
    job.throughput, job.noise, job.most_gpus_seen = MODELS["scales"], GradientNoise(1.0, 1e4, 32), 2
    assert len(Pollux(4, 2).share(600.0, [job], {"a": (0, 0)})["a"]) == 4


def test_jobs_stay_where_restarts_would_cost_more_than_they_gain(tmp_path: Path) -> None:
    jobs = known_jobs(tmp_path, 5)
    policy = Pollux(NODES, PER_NODE)
    held = policy.share(0.0, jobs, {})
    assert policy.share(60.0, jobs, held) == held


@pytest.mark.now_and_then(2)
def test_thirty_published_jobs_are_done_sooner_than_with_tiresias() -> None:
    """The first thirty of workload-6; the whole published workloads are in docs/simulator.md."""
    jobs = [
        job for job in read_workload(Archive(), "workloads/workload-6.csv", {}) if job.application.name != "imagenet"
    ][:30]
    cluster = Cluster(4, 4, 60.0, lambda name: 30.0)
    pollux, tiresias = (run(cluster, policy, jobs) for policy in (Pollux(4, 4), Tiresias(4, 4)))
    means = [sum(job.completion_s for job in found) / len(found) for found in (pollux, tiresias)]
    assert means[0] < 0.8 * means[1]
    assert sum(job.restarts for job in pollux) > sum(job.restarts for job in tiresias)


def test_speed_ups_are_beside_a_fair_share_on_one_node() -> None:
    worth = Worth(JOB, BOUNDS, most=16, per_node=4)
    speed_up = best_step(JOB, 2, 8, BOUNDS).goodput / best_step(JOB, 1, 2, BOUNDS).goodput
    assert worth.cost(2, 8, fair=2) == pytest.approx(1 / (speed_up / 4 + 1e-3))
    assert worth.cost(2, 8, fair=2, factor=0.25) == pytest.approx(1 / (speed_up / 16 + 1e-3))
    assert worth.cost(0, 0, fair=2) == pytest.approx(1000.0)


def test_all_numbers_at_once_on_as_few_nodes_as_can_be() -> None:
    worth = Worth(JOB, BOUNDS, most=9, per_node=4)
    costs = worth.costs(fair=3, factor=0.5)
    assert costs == pytest.approx([worth.cost(-(-gpus // 4), gpus, 3, 0.5) for gpus in range(10)])


def test_before_its_first_step_a_job_is_worth_its_gpus() -> None:
    worth = Worth(None, BOUNDS, most=4, per_node=4)
    assert worth.cost(1, 4, fair=2) == pytest.approx(1 / (0.5 + 1e-3))


@pytest.mark.parametrize("seed", range(20))
def test_no_way_costs_less(seed: int) -> None:
    random = np.random.default_rng(seed)
    costs = [random.random(random.integers(1, 7)) for _ in range(4)]
    for cost in costs:
        cost[1:][random.random(cost.size - 1) < 0.2] = np.inf
    gpus = int(random.integers(0, 12))
    found = divide(costs, gpus)
    ways = [way for way in product(*(range(cost.size) for cost in costs)) if sum(way) <= gpus]
    least = min(sum(cost[n] for cost, n in zip(costs, way, strict=True)) for way in ways)
    assert tuple(found) in ways
    assert sum(cost[n] for cost, n in zip(costs, found, strict=True)) == pytest.approx(least)


def test_small_jobs_go_where_they_leave_least() -> None:
    packing = Packing(3, 4)
    packing.put((1,))
    assert packing.place(3) == (1, 1, 1) and packing.place(4) == (0, 0, 0, 0)
    packing.put((0, 0))
    assert packing.place(2) == (0, 0)


def test_one_job_with_others_elsewhere_on_a_node() -> None:
    packing = Packing(3, 4)
    packing.put((0, 0, 0, 1))
    assert packing.place(3) == (1, 1, 1)  # alone on its node: it shares no network
    assert packing.place(5) is None and not packing.fits((1, 2)) and packing.fits((1, 1))
    packing.remove((0, 0, 0, 1))
    assert packing.place(5) == (0, 0, 0, 0, 1)


def test_not_scattered_over_more_nodes_than_allowed() -> None:
    packing = Packing(6, 4)
    for node in range(6):
        packing.put((node,) * 3)
    assert packing.place(3) == (0, 1, 2)
    assert packing.place(4) is None and packing.place(4, scattered=3) is not None


def test_only_free_gpus_fit() -> None:
    packing = Packing(1, 2)
    assert packing.fits((0, 0)) and not packing.fits((0, 0, 0))
    packing.put((0,))
    assert packing.fits((0,)) and not packing.fits((0, 0))
