"""The callback for Lightning: killed and ended trainings go on to the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.interop.trainer_runs import EVERY, STEPS, check, results


@pytest.mark.now_and_then(4)
@pytest.mark.timeout(260)
def test_trainings_that_were_ended_come_to_the_same_bits(tmp_path: Path) -> None:
    found = results("lightning_job", ("lightning", "torchdata"), tmp_path)
    check(found)
    steps = [line[3] for line in found["grown"] if line[0] == "train"]
    assert steps == list(range(steps[0], STEPS)) and steps[0] >= EVERY  # from the middle, by three
    (refusal,) = found["refusals"]
    assert "FSDPStrategy" in refusal and "single device, or DDP" in refusal
