"""States that exist: of a checkpoint, or of what a Python file builds."""

from __future__ import annotations

from pathlib import Path

import pytest

import deeppart
from tests.simulator.commands import sim, sim_json

MODEL = """
import torch

def build():
    with torch.device("meta"):
        last = torch.nn.Linear(500, 10).to(torch.bfloat16)
        return torch.nn.Sequential(torch.nn.Linear(1000, 500), torch.nn.ReLU(), last)

def nested():
    with torch.device("meta"):
        return {"a": [torch.empty(10, 10), torch.empty(3, dtype=torch.int64)], "n": 5}

def nothing():
    return {"a": 1}

def fails():
    raise RuntimeError("no luck")
"""


def test_a_state_from_a_python_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    found = sim_json(capsys, "scale", "--from", str(file), "--state", "+adam", "--ranks", "2")["state"]
    weights, biases = 1000 * 500 + 500, 500 * 10 + 10
    assert found["parameters"] == weights + biases
    assert found["bytes"] == 12 * weights + (2 + 8) * biases + 4 * 4
    found = sim_json(capsys, "scale", "--from", f"{file}:nested", "--ranks", "2")["state"]
    assert (found["bytes"], found["leaves"]) == (400 + 24, 2)


@pytest.mark.parametrize(
    ("function", "state", "what"),
    [(":nothing", "", "without a tensor"), (":fails", "", "no luck"), (":absent", "", "it has no function"),
     (":nested", "+adam", "optimizer"), ("", "bert-base", "both --from and a model")],
)  # fmt: skip
def test_python_files_that_will_not_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, function: str, state: str, what: str
) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    arguments = ["scale", "--from", f"{file}{function}", "--ranks", "2", *(["--state", state] if state else [])]
    code, _, err = sim(capsys, *arguments)
    assert code == 2 and what in err


def test_a_state_from_a_checkpoint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import torch

    state = {"model": {"w": torch.zeros(1000, 10), "b": torch.zeros(10, dtype=torch.bfloat16)}, "step": 3}
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path / "ckpt"))) as checkpointer:
        checkpointer.checkpoint(state, 1).wait()
    found = sim_json(capsys, "scale", "--from", str(tmp_path / "ckpt"), "--ranks", "2")["state"]
    assert (found["bytes"], found["leaves"]) == (40_020, 2)
    code, _, err = sim(capsys, "scale", "--from", str(tmp_path / "nowhere"), "--ranks", "2")
    assert code == 2 and "nowhere" in err
