"""Models that several tests use, and times that they give."""

from __future__ import annotations

from collections.abc import Sequence

from deeppart.elastic.goodput import Bounds, Goodput, GradientNoise, Measured, Throughput

TRUE = Throughput(0.02, 0.001, 0.03, 0.0006, 0.01, 0.0002, overlap=1.6)
JOB = Goodput(TRUE, GradientNoise(1.0, 30.0, 32))
BOUNDS = Bounds(32, 1024, most_local=64)
SIZES = ((1, 1), (1, 2), (1, 4), (2, 4), (2, 8))


def measured(model: Throughput, sizes: Sequence[tuple[int, int]] = SIZES, noise: float = 0.0) -> list[Measured]:
    """Times of a model with 16, 32 and 64 samples of a rank; every other one wrong by a share."""
    found = []
    for number, (nodes, ranks) in enumerate(sizes):
        for local in (16, 32, 64):
            wrong = 1 + noise * (-1) ** (number + local // 32)
            step_s = float(model.step_s(nodes, ranks, local)) * wrong
            found.append(Measured(nodes, ranks, local, step_s, float(model.accumulated_s(local)) * wrong))
    return found
