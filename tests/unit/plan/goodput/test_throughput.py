"""How long a training step takes, and how fast a job learns."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest

from deeppart.errors import ConfigError
from deeppart.plan.goodput import Throughput
from tests.unit.plan.goodput.models import JOB, TRUE


def test_one_rank_has_no_network() -> None:
    assert float(TRUE.step_s(1, 1, 50)) == pytest.approx(0.02 + 0.05, rel=1e-4)


@pytest.mark.parametrize(("nodes", "ranks", "network"), [(1, 4, 0.01 + 2 * 0.0002), (2, 4, 0.03 + 2 * 0.0006)])
def test_the_slowest_link_counts_and_grows_with_the_ranks(nodes: int, ranks: int, network: float) -> None:
    assert float(TRUE.network_s(nodes, ranks)) == pytest.approx(network)


def test_overlap_lies_between_the_sum_and_the_longer_one() -> None:
    computing, network = 0.02 + 0.032, float(TRUE.network_s(2, 8))
    one_after_the_other = float(replace(TRUE, overlap=1.0).step_s(2, 8, 32))
    at_once = float(replace(TRUE, overlap=10.0).step_s(2, 8, 32))
    assert one_after_the_other == pytest.approx(computing + network)
    assert max(computing, network) < at_once < 1.02 * max(computing, network)
    assert at_once < float(TRUE.step_s(2, 8, 32)) < one_after_the_other


def test_accumulated_micro_batches_have_no_network() -> None:
    more = float(TRUE.step_s(2, 8, 32, 3)) - float(TRUE.step_s(2, 8, 32))
    assert more == pytest.approx(3 * float(TRUE.accumulated_s(32)))
    assert float(TRUE.samples_per_s(2, 8, 32, 3)) == pytest.approx(8 * 32 * 4 / float(TRUE.step_s(2, 8, 32, 3)))


def test_arrays_are_as_numbers() -> None:
    nodes, ranks = np.array([1, 1, 2, 4]), np.array([1, 4, 8, 16])
    each = [float(TRUE.step_s(n, r, 32, 1)) for n, r in zip(nodes, ranks, strict=True)]
    assert TRUE.step_s(nodes, ranks, np.full(4, 32), np.full(4, 1)) == pytest.approx(each)


@pytest.mark.parametrize(("place", "value"), [(0, -1.0), (1, float("nan")), (6, 0.5), (6, 11.0), (3, float("inf"))])
def test_impossible_parameters(place: int, value: float) -> None:
    parameters = list(astuple(TRUE))
    parameters[place] = value
    with pytest.raises(ConfigError, match="impossible"):
        Throughput(*parameters)


def test_the_product() -> None:
    fast = float(TRUE.samples_per_s(2, 8, 16, 1))
    assert float(JOB.samples_per_s(2, 8, 16, 1)) == pytest.approx(fast * float(JOB.noise.efficiency(256)))


def test_an_uneven_batch_takes_as_long_as_its_longest_share() -> None:
    even = float(JOB.of_batch(1, 4, 64, 16))
    assert even == pytest.approx(float(JOB.samples_per_s(1, 4, 16)))
    uneven = float(JOB.of_batch(1, 4, 62, 16))
    assert uneven == pytest.approx(62 / float(TRUE.step_s(1, 4, 16)) * float(JOB.noise.efficiency(62)))
    assert uneven < even
