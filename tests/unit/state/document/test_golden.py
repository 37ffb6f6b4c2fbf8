"""A checkpoint that was written when the format got its version, of a state that has everything."""

from __future__ import annotations

import collections
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.offline.inspect.verifying import choose_steps, verify
from deeppart.state import objects as registry
from deeppart.state.values import SavedMember
from tests.features.script_files import bits
from tests.features.script_values import Phase, state
from tests.golden.make import FILES
from tests.golden.states import (
    BOTH,
    ODD,
    ROWS,
    SPARSE,
    STAGE,
    Meter,
    make_states,
    make_tensors,
    make_values,
    register_meter,
)
from tests.unit.sharded_states import restore

GOLDEN = FILES / "ckpt"


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_by_type", {})
    monkeypatch.setattr(registry, "_by_name", {})


#: The tensors of the model, as all ranks together have them.
WHOLE = {"rows": ROWS, "tied": ROWS, "both": BOTH, "half": ROWS.half(), "stage": STAGE, "odd": ODD}
WHOLE["buffer"] = torch.arange(3)


def assert_whole(model: dict[str, Any]) -> None:
    for name, whole in WHOLE.items():
        assert torch.equal(model[name], whole), name


@pytest.mark.filterwarnings("ignore::deeppart.errors.PerRankNotice")
def test_it_is_sound_and_loaded_as_it_was() -> None:
    (subject,) = choose_steps(GOLDEN)
    assert verify(subject).state == "sound"
    for rank in (0, 1):
        loaded = deeppart.load(GOLDEN, rank=rank)
        assert loaded["step"] == 9
        tensors, values = loaded["tensors"], loaded["values"]
        assert_whole(tensors["model"])
        assert tensors["model"]["tied"].data_ptr() == tensors["model"]["rows"].data_ptr()
        assert tensors["sparse"].is_sparse and not tensors["sparse"].is_coalesced()
        assert torch.equal(tensors["sparse"].to_dense(), SPARSE.to_dense())
        assert values["own"]["set"] == {rank, "a"} and list(values["apart"]) == [1, 2][: 1 + rank]
        assert values["own"]["phase"].name == ["WARMUP", "TRAIN"][rank] and type(values["own"]["phase"]) is SavedMember
        assert values["meter"] == {"total": 2.5}
    expected = state(2)
    for name in ("path", "at", "decimal", "fraction", "uuid", "range", "slice", "zone", "delta", "windows", "version"):
        assert bits(values["values"][name]) == bits(expected["values"][name]), name
    for name in ("set", "sets", "deque", "window", "stream", "octets"):
        assert bits(values["in place"][name]) == bits(expected["in place"][name]), name
    assert values["in place"]["words"] == expected["in place"]["words"]


def test_it_is_restored_to_the_same(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "ckpt")
    expected = make_states()
    live: list[dict[str, Any]] = [
        {"tensors": make_tensors(rank), "values": _blank(rank), "step": 0} for rank in range(2)
    ]
    for each in live:
        for tensor in each["tensors"]["model"].values():
            tensor.zero_()
    assert restore(tmp_path / "ckpt", live) == 9
    for one, other in zip(expected, live, strict=True):
        models = (each["tensors"]["model"].values() for each in (one, other))
        assert all(map(torch.equal, *models)) and other["step"] == 9
        assert one["values"].pop("meter").total == other["values"].pop("meter").total
        assert bits(one["values"]) == bits(other["values"])


def test_its_shards_are_restored_to_whole_tensors(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "ckpt")
    model = {name: torch.zeros_like(whole) for name, whole in WHOLE.items()}
    tensors = {"model": model | {"tied": model["rows"]}, "plain": torch.zeros(7).long(), "sparse": None}
    alone: dict[str, Any] = {"tensors": tensors, "values": make_values(0), "step": 0}
    assert restore(tmp_path / "ckpt", [alone], per_rank="rank0") == 9
    assert_whole(alone["tensors"]["model"])


def _blank(rank: int) -> dict[str, Any]:
    register_meter()
    rank_local = collections.deque([0, 0][: 1 + rank], maxlen=3)
    return {**state(0), "meter": Meter(0), "own": {"set": {9}, "phase": Phase.WARMUP}, "apart": rank_local}
