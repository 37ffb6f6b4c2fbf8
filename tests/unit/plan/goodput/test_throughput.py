"""How long a training step takes, and how fast a job learns."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest

from deeppart.errors import ConfigError
from deeppart.plan.goodput import Throughput
from tests.unit.plan.goodput.models import JOB, TRUE


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


@pytest.mark.parametrize(("place", "value"), [(0, -1.0), (1, float("nan")), (6, 0.5), (6, 11.0), (3, float("inf"))])
def test_impossible_parameters(place: int, value: float) -> None:
    parameters = list(astuple(TRUE))
    parameters[place] = value
    with pytest.raises(ConfigError, match="impossible"):
        Throughput(*parameters)


def test_an_uneven_batch_takes_as_long_as_its_longest_share() -> None:
    even = float(JOB.of_batch(1, 4, 64, 16))
    assert even == pytest.approx(float(JOB.samples_per_s(1, 4, 16)))
    uneven = float(JOB.of_batch(1, 4, 62, 16))
    assert uneven == pytest.approx(62 / float(TRUE.step_s(1, 4, 16)) * float(JOB.noise.efficiency(62)))
    assert uneven < even
