"""The noise that is measured in the backward pass, against gradients that ranks tell each other in full."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mpi.torchrun import torchrun

pytestmark = [pytest.mark.timeout(220), pytest.mark.xdist_group("torchrun")]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_noise_is_that_of_the_gradients(tmp_path: Path, ranks: int) -> None:
    """SGD and Adam, one group and two, with micro-batches; steps of 7 samples, and a last one of 1: two fill in."""
    for of_rank in torchrun(ranks, ["-m", "tests.elastic.norms_job", str(tmp_path)], tmp_path):
        assert len(of_rank) == 8
        for case, (measured, expected) in of_rank.items():
            assert measured == pytest.approx(expected, rel=2e-4), (case, ranks)
