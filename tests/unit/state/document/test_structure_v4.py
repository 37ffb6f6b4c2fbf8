"""A checkpoint that was written when structure documents got version 4."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

import deeppart
from deeppart.offline.inspect.choosing import choose_steps
from deeppart.offline.inspect.verifying import verify
from tests.golden.make_structure_v4 import BOTH, ROWS, SPARSE, STAGE, make_states
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
    for state in live:
        for tensor in state["model"].values():
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
