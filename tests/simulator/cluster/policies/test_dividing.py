"""Dividing GPUs: against every way there is."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from deeppart_simulator.cluster.pollux import divide


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
