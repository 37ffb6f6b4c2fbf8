"""The checkpoint engine for DeepSpeed: killed trainings with ZeRO 1 to 3 go on to the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.interop.trainer_runs import check, results


@pytest.mark.timeout(620)
def test_trainings_that_were_killed_come_to_the_same_bits(tmp_path: Path) -> None:
    needs = ("deepspeed", "torchdata")
    found = results("deepspeed_job", needs, tmp_path, "pip install deepspeed==0.19.8", limit_s=600.0)
    check(found, sigterm=False, sizes=(2,), variants=("-zero1", "-zero2", "-zero3", "-bf16-zero1"))
    stage, ranks, loader = found["refusals"]
    assert "ZeRO stage 0" in stage
    assert "2 ranks" in ranks and "1 rank restores" in ranks and "flat and opaque" in ranks
    assert "'plain' has no position" in loader
