"""``deeppart cat``: arguments and exit codes; leaves and values as numpy prints them, as JSON, and as bytes."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.cli_support import call, call_json, flip, forge, invoke, part_path, save, save_states


def test_steps_and_ranks(tmp_path: Path) -> None:
    save(tmp_path / "a", 1, 2)
    assert call("cat", tmp_path / "a", "rate") == "0.002\n"
    assert call("cat", tmp_path / "a", "rate", "--step", 1) == "0.001\n"
    forge(tmp_path / "b", 5)
    result = invoke("cat", tmp_path / "b", "rng", "--rank", 2)
    assert result.stdout == f"[{' '.join(16 * '2')}]\n"
    assert result.stderr == "of what each rank saved for itself, this is rank 2's\n"
    assert invoke("cat", tmp_path / "b", "a").stderr == ""


def test_what_is_not_there(tmp_path: Path) -> None:
    save(tmp_path, 1)
    for arguments in (("model/wieght",), ("model/*",), ("rate", "--step", 9), ("rate", "--rank", 1)):
        result = invoke("cat", tmp_path, *arguments)
        assert (result.exit_code, result.stdout) == (1, "") and result.stderr.startswith("error: ")
    assert "such as model/weight" in call("cat", tmp_path, "model/wieght", code=1)
    assert call_json("cat", tmp_path, "model/*", code=1)["error"]["found"] == "model/weight, model/head, model/bias"


@pytest.mark.parametrize("form", [(), ("--npy",), ("--raw",), ("--json",), ("--full",)])
def test_no_byte_of_what_is_damaged_is_shown(tmp_path: Path, form: tuple[str, ...]) -> None:
    save_states(tmp_path, {"x": torch.arange(5000)}, compression="none")
    assert invoke("cat", tmp_path, "x", *form).exit_code == 0
    flip(part_path(tmp_path, 1), 4096 + 1000)
    result = invoke("cat", tmp_path, "x", *form)
    assert result.exit_code == 1 and "digest of a chunk" in result.output
    assert result.stdout_bytes == b"" or form == ("--json",)


def test_bytes_are_not_for_a_terminal(tmp_path: Path) -> None:
    main, other = pty.openpty()
    command = [sys.executable, "-m", "deeppart.cli", "cat", str(tmp_path), "x", "--npy"]
    try:
        refused = subprocess.run(command, stdout=other, stderr=subprocess.PIPE, check=False, timeout=60)
        assert refused.returncode == 2 and b"send them to a file or a pipe" in refused.stderr
    finally:
        os.close(other)
        os.close(main)


STATE: dict[str, Any] = {
    "f32": torch.arange(6.0).reshape(2, 3) / 3,
    "bf16": torch.tensor([1.5, -0.0, float("nan")], dtype=torch.bfloat16),
    "f8": torch.tensor([0.5, 448.0]).to(torch.float8_e4m3fn),
    "i64": torch.tensor([2**63 - 1, -1]),
    "u64": torch.tensor([2**64 - 1], dtype=torch.uint64),
    "bool": torch.tensor([[True], [False]]),
    "c64": torch.tensor([1 + 2j]),
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 3),
    "long": torch.arange(5000),
    "text": np.array(["a\x1b[2J", "b"]),
    "time": np.array(["2026-11-27", "NaT"], dtype="M8[D]"),
    "big-endian": np.array([1.0, 2.0], dtype=">f4"),
    "small": {"n": 1 << 70, "s": "a\x1b\nb", "run": list(range(100))},
    "esc\x07\x1b[2J": {"t": torch.ones(2)},
}
if hasattr(torch, "float4_e2m1fn_x2"):
    STATE["f4"] = torch.tensor([0x10, 0xF2], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_states(tmp_path_factory.mktemp("leaves"), STATE)


def loaded(root: Path, key: str) -> Any:
    result = invoke("cat", root, key, "--npy")
    assert result.exit_code == 0
    return np.load(io.BytesIO(result.stdout_bytes), allow_pickle=False)


@pytest.mark.parametrize("key", ["f32", "i64", "u64", "bool", "c64", "scalar", "empty", "long", "bf16", "f8"])
def test_npy_is_float32_of_what_numpy_lacks(root: Path, key: str) -> None:
    leaf = STATE[key].float() if key in ("bf16", "f8") else STATE[key]
    found, expected = loaded(root, key), leaf.numpy()
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape) and found.tobytes() == expected.tobytes()


def test_nothing_steers_the_terminal(root: Path) -> None:
    """click takes ANSI sequences out of what goes to no terminal, but no bell."""
    evil = "esc\x07\x1b[2J"
    text = call("cat", root, "esc*") + call("cat", root, "text") + call("cat", root, evil) + call("cat", root, "small")
    text += call("cat", root, f"{evil}/x", code=1)
    assert not {"\x1b", "\x07"} & set(text) and "esc\\x07\\x1b[2J/t  float32[2]\n[1. 1.]\n" in text
    assert "such as esc\\x07\\x1b[2J/t" in text


def test_json(root: Path) -> None:
    document = call_json("cat", root, "f32")
    kind = {"kind": "torch", "dtype": "float32", "shape": [2, 3]}
    assert document["leaves"] == [
        {"kind": "leaf", "path": "f32", "own": False, "form": None, "type": kind, "data": STATE["f32"].tolist()}
    ]
    data = {key: call_json("cat", root, key)["leaves"][0]["data"] for key in ("bf16", "i64", "u64", "c64", "time")}
    assert data == {
        "bf16": [1.5, -0.0, "nan"],
        "i64": [2**63 - 1, -1],
        "u64": [hex(2**64 - 1)],
        "c64": ["(1+2j)"],
        "time": ["2026-11-27", "NaT"],
    }
    small = {leaf["path"]: leaf for leaf in call_json("cat", root, "small")["leaves"]}
    assert small["small/n"] == {
        "kind": "value", "path": "small/n", "own": False, "form": None, "type": "int", "value": hex(1 << 70)
    }  # fmt: skip
    assert small["small/run"]["value"] == list(range(100))
