"""``capture="lazy"`` on several ranks: each step's parts are of that step, and one rank's bad capture is everyone's."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import deeppart
from deeppart.errors import CheckpointError
from deeppart.testing.states import difference

pytestmark = pytest.mark.mpi(min_size=4)


def training(comm: Any, directory: Path, spoiler: int | None) -> tuple[list[str], Any, list[float]]:
    """Steps without a pause; after the second checkpoint one rank writes where it should not."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(500, 400), nn.Linear(400, 500))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    state = {"net": net, "optimizer": optimizer, "rank": torch.full((40_000,), comm.rank)}
    settings = {"local_dir": str(directory / "local" / "{node}"), "node_size": 1, "timeout": 200.0, "capture": "lazy"}
    levels, expected, held = [], {}, []
    config = deeppart.Config(persistent_dir=str(directory / "ckpt"), keep={"persistent": 0}, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)
        with deeppart.Checkpointer(config, comm) as ck:
            for step in (1, 2, 3):
                net(torch.full((4, 500), float(step))).square().sum().backward()
                optimizer.step()
                expected[step] = copy.deepcopy([net.state_dict(), optimizer.state_dict()])
                pending = ck.checkpoint(state, step)
                if step == 2 and spoiler is not None:
                    ck._pipeline._capturer._job.deferred._before += comm.rank == spoiler
                optimizer.step()  # at once
                try:
                    pending.wait(timeout=200)
                    pending.wait("local", timeout=200)
                    levels.append("done")
                except CheckpointError as error:
                    levels.append(str(error))
                held.append(pending.report.held_s)
            found = []
            for step in (1, 3):
                assert ck.restore(state, step) == step
                found.append(difference(expected[step], [net.state_dict(), optimizer.state_dict()]))
                found.append(None if bool((state["rank"] == comm.rank).all()) else "own leaf")
    return levels, found, held


def test_what_comes_back_is_the_step(run_on: Any, shared_path: Path) -> None:
    for levels, found, _ in run_on(4, training, shared_path, None):
        assert levels == ["done"] * 3
        assert found == [None] * 4


def test_a_bad_capture_on_one_rank_fails_the_checkpoint_on_all(run_on: Any, shared_path: Path) -> None:
    for levels, found, _ in run_on(4, training, shared_path, 2):
        assert levels[0] == levels[2] == "done"
        assert "rank 2" in levels[1] and "written to while it was being captured" in levels[1]
        assert found == [None] * 4
