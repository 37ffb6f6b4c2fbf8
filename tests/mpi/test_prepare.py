"""Getting ready for the first checkpoint, on several ranks: it says nothing of what that one holds."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.storage import PosixStore, read_steps
from tests.mpi.outcomes import LONG_S, config


def state(rank: int) -> dict[str, Any]:
    torch.manual_seed(5)
    return {
        "w": torch.randn(400_000),
        "b": torch.randn(300),
        "own": torch.full((150_000,), float(rank)),
        "n": 1,
    }


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def prepared_then_diverged(comm: Any, directory: Path) -> dict[str, Any]:
    """All ranks hold the same ``w`` when they prepare, and other bytes of it when they save."""
    rank = comm.rank
    live = state(rank)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(config(directory), comm) as ck:
            ck.prepare(live)
            live["w"][100 + rank] += 1.0
            live["b"][3] += rank
            ck.checkpoint(live, 1).wait(timeout=LONG_S)
            ck.checkpoint(live, 2).wait(timeout=LONG_S)
    wanted = {name: value.clone() for name, value in live.items() if name != "n"}
    again = state(7)
    with deeppart.Checkpointer(config(directory), comm) as ck:
        assert ck.restore(again) == 2
    return {
        "exact": all(torch.equal(again[name], value) for name, value in wanted.items()),
        "told": [str(each.message) for each in told if issubclass(each.category, deeppart.errors.PerRankNotice)],
    }


@pytest.mark.mpi(min_size=2)
def test_what_was_alike_when_it_was_prepared_may_differ_when_it_is_saved(run_on: Any, shared_path: Path) -> None:
    met = run_on(2, prepared_then_diverged, shared_path)
    assert [each["exact"] for each in met] == [True, True]
    assert len(met[0]["told"]) == 1, "only the checkpoint tells, of all that differs then"
    assert all(f" {name}" in met[0]["told"][0].replace(",", " ") for name in ("own", "w", "b"))
    assert met[1]["told"] == []


def prepared_and_saved(comm: Any, directory: Path) -> dict[str, Any]:
    rank = comm.rank
    live = state(rank)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.errors.PerRankNotice)
        with deeppart.Checkpointer(config(directory), comm) as ck:
            ck.prepare(live)
            wait_until(lambda: not ck.preparing)
            ready = ck._staging.nbytes
            pending = ck.checkpoint(live, 1)
            pending.wait(timeout=LONG_S)
            ck.prepare({"other": torch.ones(900_000)})  # whatever comes in between
            live["w"] += 1
            ck.checkpoint(live, 2).wait(timeout=LONG_S)
    again = state(7)
    with deeppart.Checkpointer(config(directory), comm) as ck:
        ck.restore(again)
    exact = all(torch.equal(again[name], live[name]) for name in ("w", "b", "own"))
    return {"exact": exact, "ready": ready, "raw": pending.report.raw_bytes}


@pytest.mark.mpi(min_size=2)
def test_what_is_ready_is_what_the_share_takes(run_on: Any, shared_path: Path) -> None:
    met = run_on(3, prepared_and_saved, shared_path)
    assert [each["exact"] for each in met] == [True] * 3
    assert [each["ready"] for each in met] == [each["raw"] for each in met]


def compared_at_the_first(comm: Any, directory: Path) -> None:
    weights = torch.nn.Parameter(torch.ones(400_000))
    optimizer = torch.optim.SGD([weights], lr=0.1, momentum=0.9)

    def train() -> None:
        weights.grad = torch.ones_like(weights)
        optimizer.step()

    train()
    with deeppart.Checkpointer(config(directory), comm) as ck:
        ck.prepare({"w": weights, "optimizer": optimizer})
        train()
        ck.checkpoint({"w": weights, "optimizer": optimizer}, 1).wait(timeout=LONG_S)
        train()
        ck.checkpoint({"w": weights, "optimizer": optimizer}, 2).wait(timeout=LONG_S)


@pytest.mark.mpi(min_size=2)
def test_the_first_checkpoint_is_compared_in_full_all_the_same(run_on: Any, shared_path: Path) -> None:
    """What was compared when it was prepared is not what is saved: the manifest must not count it."""
    run_on(2, compared_at_the_first, shared_path)
    found = read_steps(PosixStore(shared_path / "ckpt"), None)
    earlier = {each.key.step: each.manifest.compared for each in found.committed}
    assert earlier[1] == () and earlier[2] != ()


def ended_at_once(comm: Any, directory: Path) -> list[str]:
    """Rank 1 is late: rank 0, which tidies up for both, has closed by then."""
    where = {"local_dir": str(directory / "local"), "keep": {"local": 3}, "compression": "none"}
    for late in (0, 1):
        ck = deeppart.Checkpointer(config(directory, **where), comm)
        ck.prepare({"w": torch.zeros(3_000_000)})
        if comm.rank == late:
            while ck.preparing:
                time.sleep(0.01)
        ck.close()
    comm.Barrier()
    return [path.name for path in (directory / "local").rglob(".spare*")]


@pytest.mark.mpi(min_size=2)
def test_nothing_is_left_whoever_closes_last(run_on: Any, shared_path: Path) -> None:
    assert run_on(3, ended_at_once, shared_path) == [[]] * 3
