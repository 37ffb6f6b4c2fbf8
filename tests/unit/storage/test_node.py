"""A level on a node whose directory cannot be looked into, or is removed."""

from __future__ import annotations

import errno
import shutil
import warnings
from pathlib import Path

import pytest
import torch

import deeppart
from deeppart.errors import StorageError
from deeppart.model import Attempt
from deeppart.storage import NodeLevel, take_stock
from tests.golden import make


def test_a_part_that_refers_to_other_steps_is_none_on_a_node(tmp_path: Path) -> None:
    """It would be copied, encoded and removed without them."""
    lineage = make.LATER.lineage
    shutil.copytree(make.LATER_FILES.parent, tmp_path / lineage)
    found = take_stock(tmp_path, lineage, None)
    assert sorted((part.attempt.step, part.rank) for part in found.parts) == [(1200, 0), (1300, 1)]
    (note,) = found.notes
    assert "a part on a node refers to other steps" in note.text and note.kind == "damaged"
    assert note.path == tmp_path / lineage / make.LATER_FILES.name / "part-00000-of-00002.dpp"


def test_nothing_is_made_in_the_place_of_a_file_system_that_is_gone(tmp_path: Path, memory: Path) -> None:
    """Before, a directory on another one is in its place: that under the mount point."""
    if memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    lineage, disk = "0" * 32, tmp_path / "disk"
    disk.symlink_to(memory)
    level = NodeLevel(disk / "local", lineage, "local", "1" * 32)
    disk.unlink()
    disk.mkdir()
    with pytest.raises(StorageError, match="not there") as caught:
        level.open_part(Attempt(lineage, "1" * 32, 0, 5, 1), 0)
    assert caught.value.errno == errno.ENOENT and not any(disk.iterdir())


def test_a_job_whose_directory_is_removed_goes_on(tmp_path: Path) -> None:
    """Recycled files, and those of steps that are to be retired, have gone with it."""
    settings = deeppart.Config(persistent_dir=str(tmp_path / "ckpt"), local_dir=str(tmp_path / "local"))
    state = {"x": torch.zeros(100_000), "frozen": torch.ones(100_000)}
    with warnings.catch_warnings(), deeppart.Checkpointer(settings) as ck:
        warnings.simplefilter("error")
        ck.prepare(state)
        for step in range(1, 8):
            state["x"] += 1
            pending = ck.checkpoint(state, step)
            for level in ("local", "persistent"):
                pending.wait(level, timeout=200)
            assert pending.report.retire_error is None
            if step in (3, 5):
                (tmp_path / "local").rename(tmp_path / f"gone{step}")
    with deeppart.Checkpointer(settings) as ck:
        live = {"x": torch.zeros(100_000), "frozen": torch.zeros(100_000)}
        assert ck.restore(live) == 7 and "local" in ck.explanation[-1]
    assert torch.equal(live["x"], state["x"]) and torch.equal(live["frozen"], state["frozen"])
