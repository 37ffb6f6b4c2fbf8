"""A restore that reads only what is asked for, and one that is only prepared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import CheckpointError, RestoreError, StateError
from deeppart.state.capture import layout
from deeppart.state.tensors.leaves import LeafType
from tests.storage_faults import StorageFaults
from tests.unit.recovery.test_narrow_reading import leaf, reports
from tests.unit.sharded_states import save

pytestmark = [
    pytest.mark.usefixtures("working_directory"),
    pytest.mark.filterwarnings("ignore::deeppart.DeeppartWarning"),
]


def test_what_other_ranks_ask_for_by_other_names_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only part is read by rank 0, whose live state has none of the names that rank 1 asks for."""
    monkeypatch.setattr(layout, "CHUNK_BYTES", 64)  # a leaf in each
    save(tmp_path, [{"model": {"w": leaf("w"), "v": leaf("v")}, "more": leaf("more")}])
    live: list[dict[str, Any]] = [
        {"model": {"w": leaf("w", 0), "v": leaf("v", 0)}, "more": leaf("more", 0)},
        {"model": {"module.w": leaf("w", 0), "module.v": leaf("v", 0)}, "more": leaf("more", 0)},
    ]
    told = reports(tmp_path, live, keys=["model/module.*", "more"])
    assert torch.equal(live[1]["model"]["module.w"], leaf("w")) and torch.equal(live[1]["model"]["module.v"], leaf("v"))
    assert not live[0]["model"]["w"].any() and all(torch.equal(each["more"], leaf("more")) for each in live)
    assert all(report.loaded_bytes == report.saved_bytes for report, _ in told)


def test_where_there_is_nothing_to_restore_the_state_is_looked_at(tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:
        assert ck.restore({"x": torch.zeros(2)}) is None
        with pytest.raises(StateError):
            ck.restore({"x": torch.zeros(2, device="meta")})


def test_the_documents_alone_are_read(tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path, compression="none") as checkpointer:
        assert checkpointer._preview(None) is None and checkpointer.next_step() == 0
        for step in (3, 5):
            checkpointer.checkpoint({"w": torch.full((1 << 20,), step)}, step).wait()
        with StorageFaults(tmp_path) as counted:
            found = checkpointer._preview(None)
            opened = [path for name, path in counted.log if name == "open" and "part" in path]
        assert found is not None and found.attempt.step == 5 and checkpointer.next_step() == 6
        assert found.structure.types == {0: LeafType("torch", "int64", (1 << 20,))}
        assert len(set(opened)) <= 1
        earlier = checkpointer._preview(3)
        assert earlier is not None and earlier.attempt.step == 3
        with pytest.raises(RestoreError, match="step 4"):
            checkpointer._preview(4)
    with pytest.raises(CheckpointError, match="closed"):
        checkpointer._preview(None)


def test_a_damaged_part_gives_way_to_the_step_before(tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path) as checkpointer:
        for step in (3, 5):
            checkpointer.checkpoint({"w": torch.full((100,), step)}, step).wait()
        (newest,) = [path for path in tmp_path.glob("step-000000000005-*/*") if "part" in path.name]
        with newest.open("r+b") as file:
            file.truncate(newest.stat().st_size - 10)
        found = checkpointer._preview(None)
    assert found is not None and found.attempt.step == 3
