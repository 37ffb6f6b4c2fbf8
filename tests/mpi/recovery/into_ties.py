"""What was saved as leaves of its own, restored where leaves share memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import deeppart
from tests.mpi.suspect_training import checkpointer


def same(found: dict[str, torch.Tensor], held: list[torch.Tensor]) -> bool:
    return all(torch.equal(*each) for each in zip(found.values(), held, strict=True))


def restored_into_ties(comm: Any, directory: Path, case: str) -> tuple[str, bool]:
    """Leaves that were saved apart; in the live state they share memory."""
    a = torch.zeros(100)
    b = torch.ones(100) if case == "other bytes on one rank" else torch.zeros(100)
    with checkpointer(comm, directory) as ck:
        ck.checkpoint({"a": a, "b": b}, 1).wait(timeout=200)
    buffer = torch.full((150,), 7.0)
    live = {"a": torch.full((100,), 7.0), "b": torch.full((100,), 7.0)}
    if case == "all ranks":
        live["b"] = live["a"]
    elif comm.rank == 0:
        live = {"a": buffer[:100], "b": buffer[50:]}
    before = [leaf.clone() for leaf in live.values()]
    with checkpointer(comm, directory) as ck:
        try:
            ck.restore(live)
        except deeppart.DeeppartError as error:
            return type(error).__name__, same(live, before)
    return "", same(live, [a, b])
