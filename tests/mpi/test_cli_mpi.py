"""The commands on checkpoints that two real ranks wrote, each with node-local storage of its own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from tests.copying import copy_as_original
from tests.mpi import launch, launchers
from tests.unit.cli_support import call, call_json, part_path

#: One worker runs all of these, so that what they share is made once; one that has nurseries (tests/conftest.py).
pytestmark = pytest.mark.xdist_group("ranks-0")


def train(root: Path) -> int:
    """Steps 1 to 3 of a model with a tie, and a generator and a position per rank."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(2000, 200), torch.nn.Linear(200, 200), torch.nn.Linear(200, 2000))
    model[2].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    config = deeppart.Config(
        persistent_dir=str(root / "ckpt"),
        local_dir=str(root / "{node}"),
        node_size=1,
        compression="none",
        keep={"local": 1},
    )
    with deeppart.Checkpointer(config) as checkpointer:
        rng = torch.Generator().manual_seed(checkpointer.rank)
        for step in (1, 2, 3):
            optimizer.zero_grad()
            model(torch.arange(8)).square().mean().backward()
            optimizer.step()
            state = {
                "model": model,
                "optimizer": optimizer,
                "data": {"position": 100 * checkpointer.rank + step, "epoch": 0},
                "rng": rng.get_state(),
            }
            checkpointer.checkpoint(state, step=step).wait("persistent", timeout=200)
        return checkpointer.rank


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := launchers.unavailable():
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("trained")
    assert launch.run_ranks(2, train, root).values == [0, 1]
    return root


@pytest.fixture
def job(trained: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return copy_as_original(trained, tmp_path / "job")


def show(root: Path, *keys: str) -> dict[str, Any]:
    return {leaf["path"]: leaf for leaf in call_json("show", root, *keys)["leaves"]}


def test_ls(job: Path) -> None:
    nodes = ("--local", job / "node0", "--local", job / "node1")
    steps = call_json("ls", job / "ckpt", *nodes)["steps"]
    assert [(step["step"], step["state"], step["attempt"]["world_size"]) for step in steps] == [
        (step, "complete", 2) for step in (1, 2, 3)
    ]
    places = [(place["level"], place["parts"]) for place in steps[2]["places"]]
    on_nodes = [("local", [0]), ("local", [1]), ("partner", [1]), ("partner", [0])]
    assert places == [("persistent", [0, 1]), *on_nodes]
    assert "local, partner, persistent  complete" in call("ls", job / "ckpt", *nodes)
    one = call("ls", job / "ckpt", "--local", job / "node1")
    assert "local 1/2, partner 1/2, persistent  complete" in one
    shutil.rmtree(part_path(job / "ckpt", 3, 0, 2).parent)
    states = [step["state"] for step in call_json("ls", job / "ckpt", *nodes)["steps"]]
    assert states == ["complete", "complete", "recoverable"]
    last = call_json("ls", job / "ckpt", "--local", job / "node0")["steps"][2]
    assert last["state"] == "recoverable", "the other node's part is there as a copy"
    shutil.rmtree(next((job / "node0").glob("*/partner/step-000000000003-*")))
    last = call_json("ls", job / "ckpt", "--local", job / "node0")["steps"][2]
    assert last["reasons"] == ["not on the persistent level", "found nowhere: part 1"]


def test_show(job: Path) -> None:
    found = show(job / "ckpt")
    assert {part["rank"] for leaf in found.values() for part in leaf.get("holdings", ())} == {0, 1}
    for leaf in found.values():
        if leaf["kind"] == "leaf" and not leaf["per_rank"]:
            spans = sorted((part["start"], part["length"]) for part in leaf["holdings"])
            assert sum(length for _, length in spans) == leaf["nbytes"]
    assert found["data/position"]["per_rank"] == [[0, 3], [1, 103]]
    assert found["rng"]["per_rank"] and [part["rank"] for part in found["rng"]["holdings"]] == [0, 1]
    assert found["model/2.weight"]["alias_of"] == "model/0.weight"
    assert "position  = 0: 3, 1: 103  per rank" in call("show", job / "ckpt", "data/*")


@pytest.mark.parametrize("rank", [0, 1])
def test_missing_part_names_exactly_what_it_held(rank: int, job: Path) -> None:
    found = show(job / "ckpt")
    held = {path for path, leaf in found.items() if any(part["rank"] == rank for part in leaf.get("holdings", ()))}
    held = {f"{path} (rank {rank})" if found[path]["per_rank"] else path for path in held}
    part_path(job / "ckpt", 3, rank, 2).unlink()
    (step,) = call_json("verify", job / "ckpt", code=1)["steps"]
    assert set(step["damaged_leaves"]) == held | {f"data/position (rank {rank})"}


def test_prune_goes_back_on_both_levels(job: Path) -> None:
    call("prune", job / "ckpt", "--after", "2", "--local", job / "node0", "--local", job / "node1", "--yes")
    assert not list(job.glob("*/**/step-000000000003*"))
    assert call_json("verify", job / "ckpt", "--all")["good"] is True
