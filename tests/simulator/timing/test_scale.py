"""The study of one checkpoint on more and more ranks."""

from __future__ import annotations

import pytest
from deeppart_simulator.timing.scale import study

from tests.simulator.timing.jobs import job

# --- the study --------------------------------------------------------------------------------------------------------


def test_a_study_has_all_combinations() -> None:
    points = study(job(), [16, 1, 4], ["deeppart", "rank0"])
    assert [(p.ranks, p.strategy) for p in points] == [
        (ranks, strategy) for ranks in (1, 4, 16) for strategy in ("deeppart", "rank0")
    ]
    assert all(point.serial_speedup == pytest.approx(1) for point in points if point.strategy == "rank0")
    assert points[0].serial_efficiency == pytest.approx(1)
    many = points[-2]
    assert many.blocked_speedup == pytest.approx(16 / 0.2, rel=1e-3)  # all of torch.save's 16 GB at 1 GB/s, and a copy
    assert 1 <= many.imbalance < 1.02
