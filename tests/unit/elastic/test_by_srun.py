"""Ranks over the nodes of an allocation; a Slurm that does not answer. With Slurm: tests/slurm/test_elastic_run.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from deeppart.config.job import Allocation
from deeppart.elastic.by_srun import BySrun, divided
from deeppart.errors import LaunchError


@pytest.mark.parametrize("nodes", [1, 2, 3, 7])
@pytest.mark.parametrize("ranks", [1, 2, 5, 21])
def test_ranks_are_spread_evenly(ranks: int, nodes: int) -> None:
    shares = divided(ranks, nodes)
    assert sum(shares) == ranks and len(shares) == min(ranks, nodes)
    assert shares == sorted(shares, reverse=True) and max(shares) - min(shares) <= 1


def test_a_slurm_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError) as caught:
        BySrun(("true",), 5.0, Allocation("7", "node[1-2]"), 2)
    assert caught.value.tried == "scontrol show hostnames node[1-2]" and "scontrol" in str(caught.value.found)
