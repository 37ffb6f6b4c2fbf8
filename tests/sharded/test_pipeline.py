"""Pipeline stages have other layers on other ranks: the state that is saved is all of them together."""

from __future__ import annotations

from pathlib import Path

import pytest

import deeppart
from tests.mpi.torchrun import torchrun
from tests.sharded.layouts import tensors, wrong
from tests.sharded.pipeline_job import wrong_numbers

pytestmark = [pytest.mark.timeout(220), pytest.mark.xdist_group("torchrun")]


def test_stages_come_back_as_stages_and_as_a_whole_and_a_whole_as_stages(tmp_path: Path) -> None:
    found = torchrun(4, ["-m", "tests.sharded.pipeline_job", str(tmp_path)], tmp_path)
    for each in found:
        assert each["notices"] == []
        for restored, step in (("same", 2), ("exchanged", 2), ("fsdp", 2), ("back", 5)):
            assert each[restored] == [step, [], []], restored
    loaded = deeppart.load(tmp_path / "stages")
    assert wrong(loaded, 2) == wrong_numbers(loaded, 2) == []
    paths = {path for path, _ in tensors(loaded)}
    assert {"/model/embedding.weight", "/model/blocks.1.up.bias", "/model/last", "/model/scale"} <= paths
    assert {"param_groups.embedding.weight.lr", "param_groups.blocks.1.up.bias.lr"} <= loaded["flat"].keys()
    assert {f"/optimizer/state/blocks.{block}.norm.bias/step" for block in (0, 1)} <= paths
