"""Checkpoints that were written when structure documents got versions 4 and 5."""

from __future__ import annotations

import collections
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import CorruptFileError
from deeppart.offline.inspect.verifying import choose_steps, verify
from deeppart.state.document.structure_json import decode_structure
from deeppart.state.tree import objects as registry
from deeppart.state.tree.values import SavedMember
from tests.features.script_files import bits
from tests.features.script_values import Phase, state
from tests.golden.make_structure_v4 import BOTH, ROWS, SPARSE, STAGE, make_states
from tests.golden.make_structure_v5 import Meter, register_meter
from tests.golden.make_structure_v5 import make_states as v5_make_states
from tests.unit.sharded_states import restore

GOLDEN = Path(__file__).parents[3] / "golden" / "structure-v4" / "ckpt"


def assert_whole(model: dict[str, Any]) -> None:
    for name, whole in (("rows", ROWS), ("tied", ROWS), ("both", BOTH), ("half", ROWS.half()), ("stage", STAGE)):
        assert torch.equal(model[name], whole), name
    assert torch.equal(model["buffer"], torch.arange(3))


def test_it_is_sound_and_loaded_as_it_was() -> None:
    (subject,) = choose_steps(GOLDEN)
    assert verify(subject).state == "sound"
    for rank in (0, 1):
        loaded = deeppart.load(GOLDEN, rank=rank)
        assert_whole(loaded["model"])
        assert loaded["model"]["tied"].data_ptr() == loaded["model"]["rows"].data_ptr()
        assert loaded["sparse"].is_sparse and not loaded["sparse"].is_coalesced()
        assert torch.equal(loaded["sparse"].to_dense(), SPARSE.to_dense()) and loaded["step"] == 9


def test_it_is_restored_to_the_same_and_to_whole_tensors(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "ckpt")
    expected, live = make_states(), make_states()
    for each in live:
        for tensor in each["model"].values():
            tensor.zero_()
    assert restore(tmp_path / "ckpt", live) == 9
    for one, other in zip(expected, live, strict=True):
        assert all(map(torch.equal, one["model"].values(), other["model"].values()))
    wholes = {"rows": ROWS, "both": BOTH, "half": ROWS.half(), "stage": STAGE, "buffer": torch.arange(3)}
    model = {name: torch.zeros_like(whole) for name, whole in wholes.items()}
    alone: dict[str, Any] = {
        "model": model | {"tied": model["rows"]},
        "plain": torch.zeros(7).long(),
        "sparse": None,
        "step": 0,
    }
    assert restore(tmp_path / "ckpt", [alone]) == 9
    assert_whole(alone["model"])


GOLDEN_V5 = Path(__file__).parents[3] / "golden" / "structure-v5" / "ckpt"


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_by_type", {})
    monkeypatch.setattr(registry, "_by_name", {})


@pytest.mark.filterwarnings("ignore::deeppart.PerRankNotice")
def test_it_is_sound_and_loaded_as_it_was_of_v5() -> None:
    (subject,) = choose_steps(GOLDEN_V5)
    assert verify(subject).state == "sound"
    for rank in (0, 1):
        loaded = deeppart.load(GOLDEN_V5, rank=rank)
        assert loaded["own"]["set"] == {rank, "a"} and list(loaded["apart"]) == [1, 2][: 1 + rank]
        assert loaded["own"]["phase"].name == ["WARMUP", "TRAIN"][rank] and type(loaded["own"]["phase"]) is SavedMember
        assert loaded["meter"] == {"total": 2.5}
    expected = state(2)
    for name in ("path", "at", "decimal", "fraction", "uuid", "range", "slice", "zone", "delta", "windows", "version"):
        assert bits(loaded["values"][name]) == bits(expected["values"][name]), name
    for name in ("set", "sets", "deque", "window", "stream", "octets"):
        assert bits(loaded["in place"][name]) == bits(expected["in place"][name]), name
    assert loaded["in place"]["words"] == expected["in place"]["words"]


def test_it_is_restored_to_the_same(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN_V5, tmp_path / "ckpt")
    expected, live = v5_make_states(), [{**state(0), **_own(rank)} for rank in range(2)]
    assert restore(tmp_path / "ckpt", live) == 9
    for one, other in zip(expected, live, strict=True):
        assert one.pop("meter").total == other.pop("meter").total
        assert bits(one) == bits(other)


def _own(rank: int) -> dict[str, Any]:
    register_meter()
    apart = collections.deque([0, 0][: 1 + rank], maxlen=3)
    return {"meter": Meter(0), "own": {"set": {9}, "phase": Phase.WARMUP}, "apart": apart}


DAMAGED: dict[str, Any] = {
    "no such form": ["w", "pickle", [], ["l", []]],
    "too little about it": ["w", "deque", [], ["l", []]],
    "too much about it": ["w", "namespace", [1], ["d", [], [], None]],
    "a length that is none": ["w", "deque", [-1], ["l", []]],
    "a bool for a length": ["w", "deque", [True], ["l", []]],
    "a class without a name": ["w", "dataclass", ["m", 5, []], ["d", [], [], None]],
    "fields that are no list": ["w", "dataclass", ["m", "C", "ab"], ["d", [], [], None]],
    "a field without a name": ["w", "dataclass", ["m", "C", [1]], ["d", [], [], None]],
    "a name with a NUL": ["w", "dataclass", ["m", "C\0", []], ["d", [], [], None]],
    "a lone surrogate": ["w", "registered", ["\ud800"], ["d", [], [], None]],
    "about it that is no list": ["w", "deque", None, ["l", []]],
    "no data": ["w", "deque", [None]],
    "a form that is no text": ["w", ["deque"], [None], ["l", []]],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_other_forms_are_damage(name: str) -> None:
    document = {
        "version": 5, "tree": DAMAGED[name], "leaves": [], "values": [], "per_rank_values": [], "rank0": [],
        "apart": False,
    }  # fmt: skip
    with pytest.raises(CorruptFileError):
        decode_structure(document, "here")
