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
from deeppart_simulator.cluster.pollux import Pollux, Worth

from deeppart.elastic.goodput import GradientNoise
from tests.simulator.cluster.toy import MODELS, application, request

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
