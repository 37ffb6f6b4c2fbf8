"""When snapshots are saved, where, and which one is the newest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import CheckpointException

from deeppart.errors import ConfigError
from deeppart.interop.dcp import Snapshots, load

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")


def state(step: int) -> dict[str, Any]:
    return {"w": torch.full((3000,), float(step)), "step": step}


@pytest.mark.parametrize("background", [False, True])
def test_every_so_many_steps(tmp_path: Path, background: bool) -> None:
    snapshots = Snapshots(f"{tmp_path}/ckpt/step-{{step}}", every=3, background=background)
    assert snapshots.load_latest(state(0)) is None and snapshots.steps() == []
    live = state(0)
    for step in range(1, 11):
        live["w"].fill_(step)
        live["step"] = step
        path = snapshots.save(live, step)
        assert path == (snapshots.path_of(step) if step % 3 == 0 else None)
    last = snapshots.save(live, 10, force=True)
    snapshots.wait()
    assert snapshots.steps() == [3, 6, 9, 10] and last == tmp_path / "ckpt" / "step-10"
    found = state(0)
    assert snapshots.load_latest(found) == 10
    assert found["step"] == 10 and found["w"].unique().tolist() == [10.0]
    # What was saved is what it was then.
    assert [float(load(snapshots.path_of(step))["w"].max()) for step in (3, 6, 9)] == [3.0, 6.0, 9.0]


def test_what_is_not_complete_does_not_count(tmp_path: Path) -> None:
    snapshots = Snapshots(f"{tmp_path}/{{step:06d}}.snapshot")
    for step in (7, 20, 100):
        snapshots.save(state(step), step)
    (snapshots.path_of(100) / ".metadata").unlink()
    for name in (
        "000030.snapshot",
        "000020.snapshot.old",
        "x000040.snapshot",
        "40.snapshot",
        "7.snapshot",
        "000041",
        "٠٠٠٠٤٢.snapshot",
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".metadata").write_bytes(b"")
    (tmp_path / "000050.snapshot").write_bytes(b"")
    (tmp_path / "000030.snapshot" / ".metadata").unlink()
    assert snapshots.steps() == [7, 20]
    found = state(0)
    assert snapshots.load_latest(found) == 20 and found["step"] == 20


def test_a_failure_in_the_background_is_not_lost(tmp_path: Path) -> None:
    snapshots = Snapshots(f"{tmp_path}/ckpt/{{step}}", background=True)
    (tmp_path / "ckpt").write_bytes(b"in the way")
    snapshots.save(state(1), 1)
    with pytest.raises(CheckpointException):
        snapshots.save(state(2), 2)
    (tmp_path / "ckpt").unlink()
    snapshots.save(state(3), 3)
    snapshots.wait()
    assert snapshots.steps() == [3]


def test_impossible_numbers(tmp_path: Path) -> None:
    for every in (0, -1, 1.5, True):
        with pytest.raises(ConfigError, match="every"):
            Snapshots("{step}", every=every)  # type: ignore[arg-type]
    snapshots = Snapshots(f"{tmp_path}/{{step}}")
    with pytest.raises(ValueError, match="step"):
        snapshots.save(state(1), -1)
    with pytest.raises(TypeError, match="step"):
        snapshots.save(state(1), 1.5)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []
