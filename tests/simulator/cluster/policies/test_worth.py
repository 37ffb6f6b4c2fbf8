"""What GPUs are worth to a job."""

from __future__ import annotations

import pytest
from deeppart_simulator.cluster.pollux import Worth

from deeppart.plan.goodput import best_step
from tests.unit.plan.goodput.models import BOUNDS, JOB


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
