"""Throughput times efficiency."""

from __future__ import annotations

import pytest

from tests.unit.plan.goodput.models import JOB, TRUE


def test_the_product() -> None:
    fast = float(TRUE.samples_per_s(2, 8, 16, 1))
    assert float(JOB.samples_per_s(2, 8, 16, 1)) == pytest.approx(fast * float(JOB.noise.efficiency(256)))


def test_an_uneven_batch_takes_as_long_as_its_longest_share() -> None:
    even = float(JOB.of_batch(1, 4, 64, 16))
    assert even == pytest.approx(float(JOB.samples_per_s(1, 4, 16)))
    uneven = float(JOB.of_batch(1, 4, 62, 16))
    assert uneven == pytest.approx(62 / float(TRUE.step_s(1, 4, 16)) * float(JOB.noise.efficiency(62)))
    assert uneven < even
