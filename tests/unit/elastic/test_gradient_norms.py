"""The noise that is measured in the backward pass, against gradients that ranks tell each other in full; its parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.elastic.kinds_job import KINDS
from tests.elastic.norms_job import AUTOSCALED, BATCH
from tests.mpi.torchrun import torchrun


@pytest.mark.timeout(220)
@pytest.mark.xdist_group("torchrun")
@pytest.mark.sweep(3)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_noise_is_that_of_the_gradients_and_batches_follow_it_together(tmp_path: Path, ranks: int) -> None:
    """SGD and Adam, one group and two, micro-batches; a loss scale that grows; 7 samples, at last 1: two fill in."""
    told = torchrun(ranks, ["-m", "tests.elastic.norms_job", str(tmp_path)], tmp_path)
    for of_rank in told:
        assert len(of_rank["norms"]) == 10
        for case, (measured, expected) in of_rank["norms"].items():
            assert measured == pytest.approx(expected, rel=1e-4), (case, ranks)
    for workers in (0, 1):
        check_autoscaled([of_rank["autoscaled"][workers] for of_rank in told], ranks)


def check_autoscaled(found: list[dict[str, Any]], ranks: int) -> None:
    """All ranks have changed their batch after the same steps, and every sample was had once."""
    sizes = found[0]["sizes"]
    assert all(of_rank["sizes"] == sizes for of_rank in found), ranks
    assert sizes[0] == BATCH and max(sizes) > 2 * BATCH, sizes
    assert sum(sizes) == AUTOSCALED
    assert sorted(sample for of_rank in found for sample in of_rank["samples"]) == list(range(AUTOSCALED))


@pytest.mark.timeout(220)
@pytest.mark.xdist_group("torchrun")
@pytest.mark.sweep(2)
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_noise_is_measured_of_gradients_of_all_kinds(tmp_path: Path, ranks: int) -> None:
    for of_rank in torchrun(ranks, ["-m", "tests.elastic.kinds_job", str(tmp_path)], tmp_path):
        assert set(of_rank["kinds"]) == set(KINDS)
        for kind, (measured, expected, (error,)) in of_rank["kinds"].items():
            rough = 1e-2 if kind == "bfloat16" else 1e-3
            assert error < rough and measured == pytest.approx(expected, rel=rough), (kind, ranks)
        for way, estimates in of_rank["by_hand"].items():
            assert estimates == pytest.approx([1.0] * 4, rel=1e-3), (way, ranks)
        # Of large models the first four steps, and then one in four, for all four; on one rank each step but the first.
        *measured, weight = of_rank["large"]
        steps = [0, 1, 2, 3, 4, 8] if ranks > 1 else range(1, 10)
        assert [step for step, each in enumerate(measured) if each] == list(steps)
        assert weight == pytest.approx(1 - 0.999 ** (4 + 2 * 4 if ranks > 1 else 18))
