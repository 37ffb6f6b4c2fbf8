"""The callback for the Trainer of transformers: killed and ended trainings go on to the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.interop.trainer_runs import EVERY, STEPS, check, results


@pytest.mark.now_and_then(4)
@pytest.mark.timeout(260)
def test_trainings_that_were_ended_come_to_the_same_bits(tmp_path: Path) -> None:
    found = results("transformers_job", ("transformers", "accelerate"), tmp_path)
    check(found)
    assert [step for step, _ in found["grown"]][-1] == STEPS and found["grown"][0][
        0
    ] > EVERY  # from the middle, by three
    later, foreign, not_resumed, strict = found["refusals"]
    assert "model_init" in later
    assert "does not have this callback" in foreign
    assert "resume_from_checkpoint=callback.resume(trainer)" in not_resumed
    assert "found: per rank: rng/torch\n" in strict and "per_rank={'rng/*': 'drop'}" in strict
