"""The best batch: against every batch there is, and within its bounds; kept unless another pays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deeppart.errors import ConfigError
from deeppart.plan.goodput import Bounds, Goodput, GradientNoise, best_step, better_step, fixed_step
from tests.unit.plan.goodput.models import BOUNDS, JOB


def best_of_all(job: Goodput, nodes: int, ranks: int, bounds: Bounds) -> float:
    """The most goodput of any batch with any accumulation."""
    found = [0.0]
    for batch in range(max(bounds.batch, ranks * bounds.least_local), bounds.most_batch + 1):
        for accumulation in range(8 if bounds.accumulate else 1):
            local = -(-batch // (ranks * (accumulation + 1)))
            fits = bounds.least_local <= local <= bounds.most_local and batch >= ranks * (accumulation + 1)
            if fits and (ranks > 1 or batch == bounds.batch or accumulation):
                found.append(float(job.of_batch(nodes, ranks, batch, local, accumulation)))
    return max(found)


@pytest.mark.parametrize(("nodes", "ranks"), [(1, 1), (1, 3), (1, 4), (2, 8), (4, 16), (8, 32)])
@pytest.mark.parametrize("noise", [0.3, 30.0, 3000.0])
def test_the_best_of_all_batches_within_two_percent(nodes: int, ranks: int, noise: float) -> None:
    job = replace(JOB, noise=GradientNoise(1.0, noise, 32))
    found = best_step(job, nodes, ranks, BOUNDS)
    assert BOUNDS.batch <= found.batch <= BOUNDS.most_batch and found.local_batch <= BOUNDS.most_local
    assert found.goodput >= 0.98 * best_of_all(job, nodes, ranks, BOUNDS)
    assert found.local_batch == -(-found.batch // (ranks * (found.accumulation + 1)))


def test_accumulation_only_where_it_is_allowed_and_for_one_rank_always() -> None:
    noisy = replace(JOB, noise=GradientNoise(1.0, 1e6, 32))
    assert best_step(noisy, 2, 8, BOUNDS).accumulation == 1
    assert best_step(noisy, 2, 8, replace(BOUNDS, accumulate=False)).batch == 8 * 64
    assert best_step(noisy, 1, 1, replace(BOUNDS, most_local=2048)).accumulation == 1


def test_a_batch_is_kept_unless_more_than_five_percent_is_gained() -> None:
    best = best_step(JOB, 1, 4, BOUNDS)
    near = next(b for b in range(best.batch, 32, -1) if fixed_step(JOB, 1, 4, b, BOUNDS).goodput < best.goodput / 1.05)
    assert better_step(JOB, 1, 4, BOUNDS, now=near + 4).batch == near + 4
    assert better_step(JOB, 1, 4, BOUNDS, now=near).batch == best.batch


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"batch": 2000}, {"least_local": 65}, {"least_local": 0}])
def test_bounds_that_leave_nothing(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="leave no batch"):
        replace(BOUNDS, **wrong)
