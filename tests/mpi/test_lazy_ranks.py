"""``capture="lazy"`` on several ranks: each step's parts are of that step, and one rank's bad capture is everyone's."""

from __future__ import annotations

import copy
import itertools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import deeppart
from deeppart.errors import CheckpointError
from deeppart.state.compare import SLICES
from tests.mpi.on_nodes import config
from tests.states import difference
from tests.unit.memory_ways import Slow

pytestmark = pytest.mark.mpi(min_size=4)


def _scale(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Write to all that an optimizer has, so that no counter tells."""
    tensors = [*optimizer.param_groups[0]["params"], *(t for each in optimizer.state.values() for t in each.values())]
    for tensor in tensors:
        tensor.data.mul_(factor)


def training(comm: Any, directory: Path) -> tuple[list[str], list[Any]]:
    """Steps without a pause; after the second checkpoint rank 2 writes where it should not."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(500, 400), nn.Linear(400, 500))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    state = {"net": net, "optimizer": optimizer, "rank": torch.full((40_000,), comm.rank)}
    levels, expected = [], {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)
        with deeppart.Checkpointer(config(directory, keep={"persistent": 0}, capture="lazy"), comm) as ck:
            for step in (1, 2, 3):
                net(torch.full((4, 500), float(step))).square().sum().backward()
                optimizer.step()
                expected[step] = copy.deepcopy([net.state_dict(), optimizer.state_dict()])
                slow = Slow(copies_before=0) if step == 2 and comm.rank == 2 else None
                pending = ck.checkpoint(state, step)
                if slow is not None:
                    _scale(optimizer, 2.0)
                    slow.end()
                    ck._pipeline._capturer._job.deferred.wait()  # type: ignore[union-attr]
                    _scale(optimizer, 0.5)
                optimizer.step()  # at once
                try:
                    pending.wait(timeout=200)
                    pending.wait("local", timeout=200)
                    levels.append("done")
                except CheckpointError as error:
                    levels.append(str(error))
            found = []
            for step in (1, 3):
                assert ck.restore(state, step) == step
                found.append(difference(expected[step], [net.state_dict(), optimizer.state_dict()]))
                found.append(None if bool((state["rank"] == comm.rank).all()) else "own leaf")
    return levels, found


def test_a_bad_capture_on_one_rank_fails_the_checkpoint_on_all_and_what_comes_back_is_the_step(
    run_on: Any, shared_path: Path
) -> None:
    for levels, found in run_on(4, training, shared_path):
        assert levels[0] == levels[2] == "done"
        assert "rank 2" in levels[1] and "written to while it was being captured" in levels[1]
        assert found == [None] * 4


def interrupted(comm: Any, directory: Path, by: str) -> tuple[int, int]:
    """One element of a trained embedding differs on the last rank, and not all calls are steps of a training.

    Returns:
        The checkpoints that were made from then on until it was found, and how often ``by`` came in between.
    """
    torch.manual_seed(0)
    table = nn.Embedding(2000, 16)
    optimizer = torch.optim.SGD(table.parameters(), lr=1e-3)
    state = {"table": table, "optimizer": optimizer}
    busy: dict[str, Any] = {"on_busy": "skip", "flush_bandwidth": 60e6} if by == "skipping" else {}
    busy["capture"] = "lazy" if by == "skipping" else "eager"
    settings = config(directory, local_dir=None, keep={"persistent": 3}, timeout=60.0, **busy)

    def differ() -> None:
        if comm.rank == comm.size - 1:
            with torch.no_grad():
                table.weight[1321, 5] += 1.0

    made, between = 0, 0
    with warnings.catch_warnings(), deeppart.Checkpointer(settings, comm) as ck:
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)
        for step in itertools.count(1):
            if made > SLICES + 1:
                break
            if step == 3:
                differ()
            pending = ck.checkpoint(state, step)
            made += step >= 3 and not pending.skipped
            if pending.report is not None and pending.report.diverged:
                return made, between
            between += by == "skipping" and pending.skipped
            optimizer.zero_grad()
            table.weight.square().sum().backward()
            optimizer.step()
            if by != "skipping":
                pending.wait(timeout=200)
            if by == "restoring" and step in (4, 5, 9):
                ck.restore(state)
                differ()
                made, between = 0, between + 1
    return 0, between


@pytest.mark.timeout(240)
@pytest.mark.parametrize("by", ["skipping", "restoring"])
def test_a_difference_is_found_within_64_checkpoints_whatever_comes_in_between(
    run_on: Any, shared_path: Path, by: str
) -> None:
    for made, between in run_on(2, interrupted, shared_path, by):
        assert 0 < made <= SLICES + 1, "the stated bound counts checkpoints that were made"
        assert between >= 2, "what the test is about did not happen"
