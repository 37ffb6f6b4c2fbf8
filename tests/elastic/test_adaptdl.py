"""A script written for AdaptDL, under torchrun: told to end on two ranks, it goes on with three."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import deeppart
from tests.mpi.torchrun import torchrun_prints

pytestmark = [pytest.mark.timeout(220), pytest.mark.xdist_group("torchrun")]


def run(monkeypatch: pytest.MonkeyPatch, ranks: int, folder: Path, *told_at: str, expect_rc: int = 0) -> Any:
    monkeypatch.setenv("ADAPTDL_CHECKPOINT_PATH", str(folder / "ckpt"))
    folder.mkdir(exist_ok=True)
    torchrun_prints(ranks, ["-m", "tests.elastic.adaptdl_job", str(folder), *told_at], expect_rc=expect_rc)
    return json.loads((folder / "found.json").read_text()) if expect_rc == 0 else None


def test_it_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = run(monkeypatch, 1, tmp_path / "alone")
    run(monkeypatch, 2, tmp_path / "changing", "4", expect_rc=1)
    assert not (tmp_path / "changing" / "found.json").exists()
    saved = deeppart.load(tmp_path / "changing" / "ckpt")["models"]
    weights = saved["adaptdl-dataparallel"]["model"]
    assert sorted(weights) == ["0.bias", "0.weight", "2.bias", "2.weight"]  # tensors, not one file
    changing = run(monkeypatch, 3, tmp_path / "changing")
    assert (alone["replicas"], changing["replicas"]) == (1, 3)
    assert [each[0] for each in changing["losses"]] == [0, 1, 2]
    for one, other in zip(alone["losses"], changing["losses"], strict=True):
        assert one == pytest.approx(other, rel=1e-9)
    assert alone["lr"] == changing["lr"]
