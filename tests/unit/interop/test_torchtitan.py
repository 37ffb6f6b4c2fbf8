"""The checkpoint manager for torchtitan: killed trainings with FSDP2 go on to the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.interop.trainer_runs import check, results


@pytest.mark.timeout(260)
def test_trainings_that_were_killed_come_to_the_same_bits(tmp_path: Path) -> None:
    needs = ("torchtitan", "spmd_types", "triton", "torchdata")
    found = results("torchtitan_job", needs, tmp_path, "pip install torchtitan==0.3.0 triton")
    check(found, sigterm=False)
    seed, names, remote = found["refusals"]
    assert "initial_load_path" in seed
    assert "optimiser" in names and "lr_scheduler" in names
    assert "s3://x/y" in remote
