"""The library's writer and reader under DCP, on four ranks: sharded states, other meshes, failures, lost files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.distributed.tensor

from deeppart.interop.dcp import StorageReader
from tests.mpi.torchrun import torchrun
from tests.sharded.layouts import build, clear, wrong

pytestmark = [
    pytest.mark.timeout(220),
    pytest.mark.xdist_group("torchrun"),
    pytest.mark.skipif(not hasattr(torch.distributed.tensor, "Shard"), reason="DTensor is public since torch 2.5"),
]
MODULE = ["-m", "tests.sharded.dcp_storage_job"]


@pytest.mark.now_and_then(2)
def test_sharded_states_of_four_ranks(tmp_path: Path) -> None:
    ranks = torchrun(4, [*MODULE, "all", str(tmp_path)], tmp_path)
    for rank, found in enumerate(ranks):
        assert found["fsdp"] == found["hsdp"] == found["tp-dp"] == [], found
        assert all(each == [] for each in found["onto"].values()), found["onto"]
        assert found["metadata"] == [] and found["planner"] == [], found
        assert found["beside"] == [5.0, 1.0], found
        parts = found["parts"]
        assert parts["mine"] == [[rank], rank, [rank, rank], rank] and parts["of"] == [2, [2, 2, 2]], parts
        assert rank or parts["alone"] == [[1], 1, 3], parts
        assert found["lost"] == {"partner": [[], True], "persistent": [[], True]}, found["lost"]
        failures = found["failures"]
        for name, kind, failed in (("save", "UnsupportedLeafError", 1), ("load", "LeafMismatchError", 3)):
            kinds = [text.split(":")[1].strip() for text in failures[name]]
            assert kinds == [kind if each == failed else "RemoteRankError" for each in range(4)], failures
        assert ("UnsupportedLeafError" if rank == 1 else "RemoteRankError") in failures["async_save"][0], failures
        assert "NoneType" in str(failures["staged"]) and "2: " in failures["staged"][0], failures
        assert "not now" in str(failures["planner"]), failures
        assert failures["next"] == [] and failures["untouched"] == [0] and failures["loaded"], failures
        for name, texts in found["refused"].items():
            assert texts and "ConfigError" in texts[0], (name, texts)
            assert name in ("no_dist load", "training's group") or "deeppart's writer" in texts[0], (name, texts)
        assert "process_group=group" in found["refused"]["training's group"][0], found["refused"]
        assert found["alone"] in (None, [rank])
    assert {"fsdp on 2", "replicated on 1"} < ranks[0]["onto"].keys()
    # DCP keeps one of them and says nothing.
    assert any("rng" in text for text in ranks[0]["parts"]["told"]), ranks[0]["parts"]["told"]


@pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")
def test_a_rank_is_killed_between_two_saves(tmp_path: Path) -> None:
    torchrun(4, [*MODULE, "killed", str(tmp_path)], tmp_path, expect_rc=None)
    state = build("replicated", None)
    clear(state)
    dcp.load(state, storage_reader=StorageReader(tmp_path / "ckpt"))
    assert state["step"] in (1, 2) and wrong(state, state["step"]) == []
