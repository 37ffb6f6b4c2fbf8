"""Learning rates at other batch sizes."""

from __future__ import annotations

import math

import pytest

from deeppart.elastic.noise import NoiseScale, Norms
from deeppart.elastic.rules import AdamScale, AdaScale, LEGWScale, LinearScale, ScalingRule, SqrtScale


def noise() -> NoiseScale:
    """|G|^2 and variance 1 and 3 in one group, 2 and 0 in the other."""
    found = NoiseScale(2)
    found.update(Norms((4.0, 2.0), (2.5, 2.0), 2, 2.0))
    assert found.by_group() == pytest.approx([(1.0, 3.0), (2.0, 1e-6)])
    return found


@pytest.mark.parametrize(
    ("rule", "factors"),
    [
        (AdaScale(), [4 / (3 / 4 + 1), 1.0]),
        (AdamScale(), [math.sqrt(4 / (3 / 4 + 1)), 1.0]),
        (LinearScale(), [4.0, 4.0]),
        (SqrtScale(), [2.0, 2.0]),
        (LEGWScale(2, 10), [2.0 * 30 / 80] * 2),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ScalingRule) else "",
)
def test_factors_at_scale_4(rule: ScalingRule, factors: list[float]) -> None:
    assert rule.factors(4.0, noise(), progress=30.0) == pytest.approx(factors, rel=1e-5)


@pytest.mark.parametrize("rule", [AdaScale(), AdamScale(), LinearScale(), SqrtScale(), LEGWScale(0, 10)])
def test_nothing_changes_at_scale_1(rule: ScalingRule) -> None:
    assert rule.factors(1.0, noise(), progress=0.0) == pytest.approx([1.0, 1.0])


def test_the_warm_up_ends() -> None:
    assert LEGWScale(2, 10).factors(4.0, noise(), progress=81.0) == [2.0, 2.0]
