"""From a profile to goodput."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deeppart.elastic.fitting import fit_throughput, goodput_of
from deeppart.elastic.profile import Profile
from deeppart.errors import ConfigError
from deeppart.plan.goodput import Bounds
from tests.unit.plan.goodput.models import SIZES, TRUE


def profile_of_true() -> Profile:
    """Steps on one and on two nodes, without a single one that accumulates."""
    profile = Profile()
    for nodes, ranks in SIZES:
        for local in (16, 32, 64):
            step_s = float(TRUE.step_s(nodes, ranks, local))
            profile = profile.with_step(
                nodes=nodes, ranks=ranks, local_batch=local, batch=local * ranks, seconds=step_s
            )
    return profile


def test_a_profile_is_fitted() -> None:
    found = fit_throughput(profile_of_true())
    assert float(found.step_s(4, 16, 32)) == pytest.approx(float(TRUE.step_s(4, 16, 32)), rel=0.05)


def test_a_job_that_measured_no_noise_keeps_its_batch() -> None:
    goodput, bounds = goodput_of(profile_of_true())
    assert (bounds.batch, bounds.most_batch) == (512, 512) and float(goodput.noise.efficiency(512)) == 1.0
    goodput, bounds = goodput_of(replace(profile_of_true(), bounds=Bounds(128, 4096, 64)))
    assert bounds == Bounds(128, 128, 64)


def test_an_empty_profile_says_nothing() -> None:
    with pytest.raises(ConfigError, match="nothing was measured"):
        goodput_of(Profile())
