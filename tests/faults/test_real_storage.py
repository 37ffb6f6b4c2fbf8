"""Real file systems that are full, read-only or gone."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import BackgroundFailureWarning, CheckpointError, StorageError
from deeppart.model import Attempt
from deeppart.part import part_file_name
from deeppart.storage import NodeLevel
from tests.faults.mounts import run
from tests.states import difference
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("no_pauses")


def config(persistent: Path, local: Path | None, **settings: Any) -> deeppart.Config:
    defaults: dict[str, Any] = {"timeout": 30.0, "compression": "none", "keep": {"persistent": 2}}
    return deeppart.Config(
        persistent_dir=str(persistent), local_dir=None if local is None else str(local), **(defaults | settings)
    )


def state(step: int, mebibytes: float = 1) -> dict[str, Any]:
    return {"x": torch.full((int(mebibytes * (1 << 20)),), step % 251, dtype=torch.uint8), "step": step}


def outcome(pending: deeppart.Pending) -> tuple[str, str]:
    wait_until(lambda: pending.finished, 30)
    levels = pending.report.levels
    return levels["local"].state, levels["persistent"].state


def used(directory: Path) -> int:
    """Bytes of a file system that are in use."""
    status = os.statvfs(directory)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def checkpoint(ck: deeppart.Checkpointer, step: int, *, warned: int = 0, mebibytes: float = 1) -> deeppart.Pending:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pending = ck.checkpoint(state(step, mebibytes), step)
    failures = [str(w.message) for w in caught if issubclass(w.category, BackgroundFailureWarning)]
    assert len(failures) == warned, failures
    return pending


# --- full -------------------------------------------------------------------------------------------------------------


def test_a_full_local_level_stops_neither_training_nor_the_persistent_level(
    mount_tmpfs: Callable[..., Path], tmp_path: Path
) -> None:
    local = mount_tmpfs("local", 8)
    with deeppart.Checkpointer(config(tmp_path / "p", local)) as ck:
        assert outcome(checkpoint(ck, 1)) == ("done", "done")
        for step in (2, 3):
            full = checkpoint(ck, step, mebibytes=9, warned=step - 2)
            assert outcome(full) == ("failed", "done")
            assert "errno 28" in str(full.report.levels["local"].error)
            wait_until(lambda: used(local) < 3 << 20)  # what was written of it is gone
            loaded = deeppart.load(tmp_path / "p")
            assert difference(state(step, 9), loaded) is None
        assert outcome(checkpoint(ck, 4, warned=1)) == ("done", "done")
    assert not list(local.rglob("*.tmp-*"))


def test_a_full_persistent_level_keeps_the_last_good_checkpoint(
    mount_tmpfs: Callable[..., Path], tmp_path: Path
) -> None:
    persistent = mount_tmpfs("persistent", 8)
    with deeppart.Checkpointer(config(persistent, tmp_path / "l")) as ck:
        assert outcome(checkpoint(ck, 1)) == ("done", "done")
        for step in (2, 3):
            full = checkpoint(ck, step, mebibytes=9, warned=step - 2)
            assert outcome(full) == ("done", "failed")
            assert deeppart.load(persistent)["step"] == 1
            wait_until(lambda: used(persistent) < 3 << 20)  # the failed one takes no space from the next
        with pytest.raises(CheckpointError, match="errno 28"):
            full.wait("persistent")
        assert outcome(checkpoint(ck, 4, warned=0)) == ("done", "done"), "told by wait already"
        live = state(0)
        assert ck.restore(live) == 4
    assert sorted(path.name[:17] for path in persistent.glob("step-*")) == [f"step-{s:012d}" for s in (1, 4)]


def test_space_that_is_short_for_the_manifest_alone(mount_tmpfs: Callable[..., Path], tmp_path: Path) -> None:
    """Whatever is missing when space runs out, a step is a checkpoint or it is not."""
    persistent = mount_tmpfs("persistent", 4)
    with deeppart.Checkpointer(config(persistent, None)) as ck:
        assert outcome(checkpoint(ck, 0)) == ("off", "done")
        failed = 0
        for step in range(1, 12):
            free = os.statvfs(persistent)
            filler = persistent / "filler"
            filler.write_bytes(b"x" * (free.f_bfree * free.f_frsize - (1 << 20) - 4096 * step))
            found = outcome(checkpoint(ck, step, warned=failed))[1]
            failed = int(found == "failed")
            filler.unlink()
            newest = deeppart.load(persistent)
            assert difference(state(newest["step"]), newest) is None
            assert (newest["step"] == step) == (found == "done")
        assert outcome(checkpoint(ck, 99, warned=failed)) == ("off", "done")


def test_recycled_files_leave_the_room_to_what_is_written(mount_tmpfs: Callable[..., Path]) -> None:
    """A tmpfs on which the parts of a node and copies find room, but not files to write over besides."""
    directory = mount_tmpfs("node", 16)
    local, partner = (NodeLevel(directory, "1" * 32, name, "2" * 32) for name in ("local", "partner"))
    local.recycled.folder.mkdir(parents=True)
    for rank in range(2):
        (local.recycled.folder / part_file_name(rank, 2)).write_bytes(bytes(6 << 20))
    for level, rank in ((local, 0), (partner, 1)):
        file = level.open_part(Attempt("1" * 32, "2" * 32, 0, 1, 2), rank)
        for _ in range(6):
            file.write(bytes(1 << 20))
        file.commit()
    assert shutil.disk_usage(directory).free < 5 << 20


# --- read-only --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["local", "persistent"])
def test_a_read_only_directory_at_the_start(mount_tmpfs: Callable[..., Path], tmp_path: Path, level: str) -> None:
    bad = mount_tmpfs(level, 4)
    run("mount", "-o", "remount,ro", str(bad))
    settings = (bad, tmp_path / "l") if level == "persistent" else (tmp_path / "p", bad)
    with pytest.raises(StorageError) as caught:
        deeppart.Checkpointer(config(*settings))
    assert str(bad) in str(caught.value) and "read-only" in str(caught.value).lower()
    run("mount", "-o", "remount,rw", str(bad))
    deeppart.Checkpointer(config(*settings)).close()


# --- gone -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["local", "persistent"])
def test_a_file_system_that_is_unmounted(mount_tmpfs: Callable[..., Path], level: str) -> None:
    """Nothing may be written into the mount point instead: it would hide behind the next mount, or fill the disk."""
    directories = {name: mount_tmpfs(name, 16) for name in ("local", "persistent")}
    with deeppart.Checkpointer(config(directories["persistent"], directories["local"])) as ck:
        assert outcome(checkpoint(ck, 1)) == ("done", "done")
        ck._pipeline.wait_until_idle(30)
        run("umount", "-l", str(directories[level]))
        pending = checkpoint(ck, 2)
        assert outcome(pending) == (("failed", "done") if level == "local" else ("done", "failed"))
        assert list(directories[level].rglob("*")) == [], "the mount point is left alone"
        live = state(0)
        assert ck.restore(live) == 2 and difference(state(2), live) is None
        run("mount", "-t", "tmpfs", "tmpfs", str(directories[level]))
        again = checkpoint(ck, 3, warned=1)
        local, persistent = outcome(again)
        if level == "persistent":  # another file system: its lock file is not ours, nothing is committed to it
            assert (local, persistent) == ("done", "failed")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ck.close()
