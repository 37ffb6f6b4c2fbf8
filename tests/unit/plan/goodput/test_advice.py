"""Advice: sizes and which one pays, and nothing beyond what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deeppart.errors import ConfigError
from deeppart.plan.goodput import GradientNoise, Limits, advise, best_step
from tests.unit.plan.goodput.models import BOUNDS, JOB

LIMITS = Limits(profiled_ranks=8, profiled_batch=256, node_ranks=4)


def test_sizes_up_to_twice_what_was_measured() -> None:
    found = advise(JOB, BOUNDS, LIMITS, profiled=[1, 4, 8])
    assert [size.ranks for size in found.sizes] == [1, 2, 3, 4, 8, 12, 16]
    assert [size.ranks for size in found.sizes if size.profiled] == [1, 4, 8]
    assert [size.nodes for size in found.sizes] == [1, 1, 1, 1, 2, 3, 4]
    for size in found.sizes:
        assert size.goodput == pytest.approx(size.samples_per_s * size.efficiency)
        assert size.samples_per_s == pytest.approx(size.batch / size.step_s)
        assert size.batch == best_step(JOB, size.nodes, size.ranks, BOUNDS).batch


def test_the_largest_size_whose_ranks_do_their_share_pays() -> None:
    noises = GradientNoise(1.0, 0.1, 32), GradientNoise(1.0, 1e5, 32)
    few, many = (advise(replace(JOB, noise=noise), BOUNDS, LIMITS).best.ranks for noise in noises)
    assert few < many
    strict, lax = (advise(JOB, BOUNDS, LIMITS, worth=worth).best.ranks for worth in (0.95, 0.05))
    assert strict <= 2 < lax == max(advise(JOB, BOUNDS, LIMITS).sizes, key=lambda size: size.goodput).ranks
    assert max(size.per_rank for size in advise(JOB, BOUNDS, LIMITS).sizes) == 1.0


def test_sizes_that_no_batch_suits_are_left_out() -> None:
    few = replace(BOUNDS, most_batch=64, least_local=16)
    assert [size.ranks for size in advise(JOB, few, LIMITS).sizes] == [1, 2, 3, 4]
    with pytest.raises(ConfigError, match="no batch suits"):
        advise(JOB, few, LIMITS, ranks=[16])
