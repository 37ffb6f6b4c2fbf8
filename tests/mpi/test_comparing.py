"""Leaves that come to differ on some ranks are found, at once or in turn; what was saved meanwhile is suspect."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.offline.inspect.listing import list_directory
from tests.mpi.suspect_training import Training
from tests.unit.cli_support import call_json

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.filterwarnings("ignore::deeppart.errors.DeeppartWarning"),
]

ROWS = 20_000


def config(directory: Path, **settings: Any) -> deeppart.Config:
    return deeppart.Config(persistent_dir=str(directory), timeout=30.0, keep={"persistent": 0}, **settings)


def equal(one: Any, other: Any) -> bool:
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))


def fill_row(buffer: Any, rank: int, turn: int) -> None:
    buffer[turn] = rank + 1


def fill_numpy(buffer: Any, rank: int, turn: int) -> None:
    buffer.numpy()[turn, 0] = rank


BUFFERS: dict[str, tuple[Callable[[], Any], Callable[[Any, int, int], None]]] = {
    "1 row": (lambda: torch.zeros(ROWS, 8), fill_row),
    "numpy": (lambda: np.zeros((ROWS, 8), dtype=np.float32), fill_row),
    "every other row": (lambda: torch.zeros(2 * ROWS, 8)[::2], fill_row),
    "through numpy": (lambda: torch.zeros(ROWS, 8), fill_numpy),
}


def filled(comm: Any, directory: Path, name: str) -> tuple[list[tuple[str, ...]], bool, int]:
    """A buffer that all ranks hold alike at first and each fills for itself, a little between checkpoints."""
    make, fill = BUFFERS[name]
    buffer, reported, saved = make(), [], []
    with deeppart.Checkpointer(config(directory), comm) as ck:
        for step in range(1, 6):
            if step > 1:
                fill(buffer, comm.rank, step)
            pending = ck.checkpoint({"buffer": buffer, "same": torch.ones(30_000)}, step)
            pending.wait(timeout=200)
            reported.append(pending.report.diverged)
            saved.append(buffer.copy() if isinstance(buffer, np.ndarray) else buffer.clone())
        same = True
        for step in (2, 5):
            buffer[...] = 0
            ck.restore({"buffer": buffer, "same": torch.ones(30_000)}, step=step)
            same = same and equal(buffer, saved[step - 1])
    return reported, same, len(list(directory.glob("suspect-*")))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", BUFFERS)
def test_a_buffer_of_each_rank_is_found_at_the_next_checkpoint(run_on: Any, shared_path: Path, name: str) -> None:
    for reported, same, records in run_on(2, filled, shared_path, name):
        assert [len(each) for each in reported] == [0, 1, 0, 0, 0]
        assert reported[1] == ("buffer: rank 0 holds other bytes than rank 1",)
        assert same, "every rank gets its own back, of the first step that differs too"
        assert records == 0, "no earlier step is suspect"


def found_at_once(comm: Any, directory: Path, mode: Any, trains_on: bool) -> list[int]:
    """One element differs from step 4 on."""
    training, found = Training(comm.rank), []
    with deeppart.Checkpointer(config(directory, replicated=mode), comm) as ck:
        for step in range(1, 6):
            if step < 4 or trains_on:
                training.step()
            if step == 4:
                training.harm(12_345)
            found.append(len(ck.checkpoint({"weight": training.weight}, step).report.diverged))
    return found


@pytest.mark.parametrize(("mode", "trains_on"), [("verify", True), ({"weight": "verify"}, True), ("auto", False)])
def test_all_is_compared_where_it_is_to_be_verified_and_without_a_step_since_the_last_checkpoint(
    run_on: Any, shared_path: Path, mode: Any, trains_on: bool
) -> None:
    assert run_on(2, found_at_once, shared_path, mode, trains_on) == [[0, 0, 0, 1, 0]] * 2


def made_suspect(comm: Any, directory: Path) -> tuple[int, tuple[str, ...], list[str], list[str]]:
    """Steps turn out to be suspect that are persistent, or on nodes alone; another life of the job restores them."""
    levels = {"local": 0, "partner": 0, "persistent": 0}
    local = str(directory / "nodes" / "{node}")
    own = replace(config(directory / "ckpt"), local_dir=local, node_size=1, every={"persistent": 2}, keep=levels)
    training, found, lines = Training(comm.rank), 0, tuple[str, ...]()
    with deeppart.Checkpointer(own, comm) as ck:
        for step in range(1, 6):
            training.step()
            if step == 4:
                training.harm()
            pending = ck.checkpoint({"weight": training.weight}, step)
            pending.wait("local", timeout=200)
            found, lines = (step, pending.report.diverged) if pending.report.diverged else (found, lines)
    explanation = list[str]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(own, comm) as ck:
            for step in (1, 2, 3):
                ck.restore({"weight": training.weight}, step=step)
                explanation += [line for line in ck.explanation if "suspect" in line]
    said = [str(each.message) for each in caught if issubclass(each.category, deeppart.errors.SuspectStepWarning)]
    return found, lines, explanation, said


def test_steps_since_the_last_comparison_in_full_are_suspect(run_on: Any, shared_path: Path) -> None:
    for rank, (found, lines, explanation, said) in enumerate(run_on(2, made_suspect, shared_path)):
        assert found == 4 and lines[0].startswith("weight: rank 0 holds other bytes than rank 1")
        assert "suspect: last compared in full at step 1" in lines[0]
        assert len(explanation) == 2 and all(
            f"step {step} is suspect: weight" in line for step, line in zip((2, 3), explanation, strict=True)
        )
        assert len(said) == 2 * (rank == 0)
    if run_on(2, lambda comm: comm.rank)[0] == 0:
        root = shared_path / "ckpt"
        with pytest.warns(deeppart.errors.SuspectStepWarning, match="weight"):
            deeppart.load(root, step=3)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            deeppart.load(root, step=1)
            deeppart.load(root, step=5)
        assert {step.step: [leaf.path for leaf in step.suspect] for step in list_directory(root).steps} == {
            1: [], 3: ["weight"], 5: []
        }  # fmt: skip
        local = [word for node in (shared_path / "nodes").iterdir() for word in ("--local", node)]
        listed = {step["step"]: bool(step["suspect"]) for step in call_json("ls", root, *local)["steps"]}
        assert listed == {1: False, 2: True, 3: True, 4: False, 5: False}
        verified = call_json("verify", root, *local)["nodes"]["suspect"]
        assert [(attempt["step"], [leaf["path"] for leaf in leaves]) for attempt, leaves in verified] == [
            (2, ["weight"]),
            (3, ["weight"]),
        ]
