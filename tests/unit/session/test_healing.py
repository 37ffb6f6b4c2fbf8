"""After a restore in a job of one node there is nothing to rebuild; the step is known to be complete on nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import DeeppartWarning


def settings(directory: Path, **others: Any) -> deeppart.Config:
    where: dict[str, Any] = {"persistent_dir": str(directory / "ckpt"), "local_dir": str(directory / "local")}
    return deeppart.Config(**(where | {"timeout": 30.0} | others))


@pytest.mark.parametrize("lost", [False, True])
def test_one_node_has_nothing_to_rebuild(tmp_path: Path, lost: bool) -> None:
    with deeppart.Checkpointer(settings(tmp_path)) as ck:
        ck.checkpoint({"x": torch.arange(1000)}, 1).wait(timeout=200)
        session = ck._session.session
    if lost:
        for path in (tmp_path / "local").rglob("*.dpp"):
            path.unlink()
    live = {"x": torch.zeros(1000, dtype=torch.int64)}
    with deeppart.Checkpointer(settings(tmp_path)) as ck:
        assert ck.restore(live) == 1 and live["x"][-1] == 999
        assert not [line for line in ck.explanation if "redundancy" in line or "parity" in line]
        (restored,) = ck._pipeline.ledger.complete().values()
        assert (restored.step, restored.session) == (1, session), "scrubbing looks after it from here on"


def test_nothing_restored_is_nothing_complete(tmp_path: Path) -> None:
    with deeppart.Checkpointer(settings(tmp_path)) as ck:
        assert ck.restore({"x": torch.zeros(3)}) is None
        assert ck._pipeline.ledger.complete() == {}


def test_asking_for_copies_on_one_node_changes_nothing_here(tmp_path: Path) -> None:
    both = settings(tmp_path, every={"partner": 1, "parity": 1})
    with pytest.warns(deeppart.ReducedProtectionWarning), deeppart.Checkpointer(both) as ck:
        ck.checkpoint({"x": torch.arange(10)}, 1).wait(timeout=200)
    with pytest.warns(DeeppartWarning), deeppart.Checkpointer(both) as ck:
        assert ck.restore({"x": torch.zeros(10, dtype=torch.int64)}) == 1
        assert not [line for line in ck.explanation if "redundancy" in line]
        assert [each.step for each in ck._pipeline.ledger.complete().values()] == [1]
