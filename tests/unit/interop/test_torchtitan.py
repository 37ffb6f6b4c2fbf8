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
    positions, generators, seed, names, remote, ours, step = found["refusals"]
    assert "dataloader/dp_rank_0_of_1" in positions
    assert "rng" in generators and "1 rank restores" in generators
    assert "initial_load_path" in seed
    assert "optimiser" in names and "lr_scheduler" in names
    assert "s3://x/y" in remote
    assert "whole-1/ckpt" in ours and "deeppart export" in ours
    assert "step 7" in step
