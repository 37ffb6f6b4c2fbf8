"""What a restore would restore, without its bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import deeppart
from deeppart.errors import CheckpointError, RestoreError
from deeppart.state.tree.leaves import LeafType
from deeppart.testing import StorageFaults


def test_the_documents_alone_are_read(tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path, compression="none") as checkpointer:
        assert checkpointer._look(None) is None and checkpointer._next_step() == 0
        for step in (3, 5):
            checkpointer.checkpoint({"w": torch.full((1 << 20,), step)}, step).wait()
        with StorageFaults(tmp_path) as counted:
            found = checkpointer._look(None)
            opened = [path for name, path in counted.log if name == "open" and "part" in path]
        assert found is not None and found.saved.attempt.step == 5 and checkpointer._next_step() == 6
        assert found.saved.structure.types == (LeafType("torch", "int64", (1 << 20,)),)
        assert len(set(opened)) <= 1
        earlier = checkpointer._look(3)
        assert earlier is not None and earlier.saved.attempt.step == 3
        with pytest.raises(RestoreError, match="step 4"):
            checkpointer._look(4)
    with pytest.raises(CheckpointError, match="closed"):
        checkpointer._look(None)


def test_a_damaged_part_gives_way_to_the_step_before(tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path) as checkpointer:
        for step in (3, 5):
            checkpointer.checkpoint({"w": torch.full((100,), step)}, step).wait()
        (newest,) = [path for path in tmp_path.glob("step-000000000005-*/*") if "part" in path.name]
        with newest.open("r+b") as file:
            file.truncate(newest.stat().st_size - 10)
        found = checkpointer._look(None)
    assert found is not None and found.saved.attempt.step == 3
