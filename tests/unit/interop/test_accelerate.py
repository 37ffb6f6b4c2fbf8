"""Checkpoints for loops with Accelerate: killed trainings go on to the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.interop.trainer_runs import EVERY, STEPS, check, results


@pytest.mark.now_and_then(4)
@pytest.mark.timeout(260)
def test_trainings_that_were_killed_come_to_the_same_bits(tmp_path: Path) -> None:
    found = results("accelerate_job", ("accelerate", "torchdata"), tmp_path)
    check(found, sigterm=False)
    steps = [step for step, *_ in found["grown"]]
    assert steps == list(range(steps[0], STEPS + 1)) and steps[0] > EVERY  # from the middle, by three
    (refusal,) = found["refusals"]
    assert "FSDP" in refusal and "one process, or DDP" in refusal
