"""Goodput as AdaptDL's published traces have it: fitted on at most 8 GPUs, it predicts more of them."""

from __future__ import annotations

import pytest
from deeppart_simulator.cluster.applications import SETTINGS, Archive, read_application

from benchmarks.elastic_goodput import errors_of


@pytest.mark.parametrize("name", SETTINGS)
def test_twice_the_gpus_and_four_times_the_batch(name: str) -> None:
    found = errors_of(read_application(Archive(), name))
    assert found.twice <= 0.12 and found.beyond <= 0.12
    assert found.twice_of_means <= 0.12  # as a job keeps its times
    assert found.efficiency <= 0.08
