"""Sharded state dicts of Megatron-core: killed trainings go on to the same bits, and on another layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.interop.trainer_runs import check, results


@pytest.mark.timeout(260)
def test_trainings_that_were_killed_come_to_the_same_bits_and_go_on_by_one(tmp_path: Path) -> None:
    install = "pip install --no-deps megatron-core==0.16.1"
    found = results("megatron_job", ("megatron.core", "torchdata"), tmp_path, install)
    check(found, sigterm=False)
    taken_up, refused = found["refusals"]
    assert taken_up == "step 28 of two ranks on one"
    assert "linear_fc2" in refused and "[2, 5, 8]" in refused
