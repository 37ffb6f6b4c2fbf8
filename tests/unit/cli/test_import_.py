"""``deeppart import``: what it prints, and its exit codes."""

from __future__ import annotations

from pathlib import Path

import torch

import deeppart
from tests.unit.cli_support import call, call_json, save


def test_there_and_back(tmp_path: Path) -> None:
    save(tmp_path / "ckpt", 1)
    for name in ("x.safetensors", "x.pt", "x.dcp"):
        extra = ("--to", "dcp") if name == "x.dcp" else ()
        exported = call_json("export", tmp_path / "ckpt", tmp_path / name, *extra)
        assert exported["form"] == {"x.pt": "torch", "x.dcp": "dcp"}.get(name, "safetensors")
        found = call_json("import", tmp_path / name, tmp_path / "of" / name)
        assert (found["form"], found["step"], found["leaves"]) == (exported["form"], 0, exported["leaves"])
        printed = call("import", tmp_path / name, tmp_path / "of" / name, "--step", 3, "--keys", "m*")
        assert printed.startswith(f"step 3 of {tmp_path / 'of' / name}: ") and f"({exported['form']})" in printed
    assert torch.equal(
        deeppart.load(tmp_path / "of" / "x.pt", 0)["model"]["bias"], deeppart.load(tmp_path / "ckpt")["model"]["bias"]
    )


def test_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    answer = call_json("import", tmp_path / "text", tmp_path / "ckpt", code=1)
    assert answer["error"]["kind"] == "RestoreError"
    call("import", tmp_path / "none", tmp_path / "ckpt", code=1)
    call("import", tmp_path / "text", tmp_path / "ckpt", "--from", "torch", code=1)
    torch.save({"a": 1}, tmp_path / "x.pt")
    call("import", tmp_path / "x.pt", tmp_path / "ckpt")
    assert call_json("import", tmp_path / "x.pt", tmp_path / "ckpt", code=2)["error"]["kind"] == "StateError"
    assert (
        call_json("import", tmp_path / "x.pt", tmp_path / "ckpt", "--step", 0, code=2)["error"]["kind"]
        == "StepExistsError"
    )
    call("export", tmp_path / "ckpt", tmp_path / "y.pt", "--max-shard-size", "5GB", code=2)
    call("export", tmp_path / "ckpt", tmp_path / "y", "--to", "dcp", "--max-shard-size", "many", code=2)
