"""Gradients of all kinds: in other orders of memory, sparse, complex, of branches, added up by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.elastic.kinds_job import KINDS
from tests.mpi.torchrun import torchrun

pytestmark = [pytest.mark.timeout(220), pytest.mark.xdist_group("torchrun")]


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_noise_is_measured_of_gradients_of_all_kinds(tmp_path: Path, ranks: int) -> None:
    """All of each gradient, and parts as of large models."""
    for of_rank in torchrun(ranks, ["-m", "tests.elastic.kinds_job", str(tmp_path)], tmp_path):
        for cases in (of_rank["whole"], of_rank["parts"]):
            assert set(cases) == set(KINDS)
            for kind, (measured, expected, (error,)) in cases.items():
                rough = 1e-2 if kind == "bfloat16" else 1e-3
                assert error < rough and measured == pytest.approx(expected, rel=rough), (kind, ranks)
        for way, estimates in of_rank["by_hand"].items():
            assert estimates == pytest.approx([1.0] * 4, rel=1e-3), (way, ranks)
