"""What is removed and what never is: the last complete checkpoint above all."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from tests.unit.cli_support import (
    call,
    call_json,
    flip,
    forge,
    four_steps,
    make_state,
    manifest_path,
    part_path,
    save,
    steps_on_disk,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return four_steps(tmp_path)


# --- what never goes --------------------------------------------------------------------------------------------------


def test_the_last_complete_checkpoint_stays(root: Path) -> None:
    for options in (("--after", "5"), ("--before", "50")):
        text = call("prune", root, *options, "--yes", code=2)
        assert "would remove the last complete checkpoint; nothing was removed" in text
        call("prune", root, *options, "--dry-run", code=2)
    os.truncate(part_path(root, 10, 0, 2), 100)  # what is left would not be complete
    assert "10" not in call_json("prune", root, "--after", "10", "--yes", code=2)["error"]["found"]
    assert steps_on_disk(root) == [10, 20, 30, 40]
    call("prune", root, "--after", "5", "--yes", "--allow-empty")
    assert steps_on_disk(root) == []


def test_damaged_steps_do_not_count_as_kept(root: Path) -> None:
    """40 and 20 are damaged: keeping two keeps 30 and 10, and 40, which was committed after them."""
    part_path(root, 40, 1, 2).unlink()
    part_path(root, 20, 1, 2).unlink()
    forge(root, 5)
    flip(manifest_path(root, 5), 200)  # nothing tells when it was committed
    call("prune", root, "--keep", "1", "--yes")
    assert [path.parent.name[15:17] for path in sorted(root.glob("step-*/manifest"))] == ["05", "30", "40"]
    assert steps_on_disk(root) == [5, 10, 20, 30, 40], "nothing tells to which parts 5 refers"
    call("prune", root, "--before", "30", "--incomplete", "--yes")
    assert steps_on_disk(root) == [30, 40]


def test_a_refused_removal_is_told_and_the_rest_goes_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.unlink

    def refuse(path: Any, **options: Any) -> None:
        if "step-000000000020" in os.readlink(f"/proc/self/fd/{options['dir_fd']}"):
            raise OSError(errno.EROFS, "Read-only file system")
        real(path, **options)

    monkeypatch.setattr(os, "unlink", refuse)
    document = call_json("prune", root, "--keep", "1", "--yes", code=1)
    assert [key["step"] for key in document["removed"]] == [10, 30]
    ((key, reason),) = document["failed"]
    assert key["step"] == 20 and "Read-only file system" in reason
    assert steps_on_disk(root) == [20, 40]


# --- going back -------------------------------------------------------------------------------------------------------


def restore(root: Path, local: Path | None) -> tuple[int | None, Any]:
    state = make_state(0.0)
    config = deeppart.Config(persistent_dir=str(root), local_dir=None if local is None else str(local))
    with deeppart.Checkpointer(config) as checkpointer:
        return checkpointer.restore(state), state


def test_going_back(tmp_path: Path) -> None:
    """Without node-local copies --after is enough; with them, --local is needed too, on every node."""
    root, local = tmp_path / "ckpt", tmp_path / "local"
    save(root, 10, 20, 30, local_dir=local)
    call("prune", root, "--after", "10", "--yes")
    assert steps_on_disk(root) == [10]
    assert restore(root, local)[0] == 30  # from node-local storage
    document = call_json("prune", root, "--after", "10", "--local", local, "--yes", "--json")
    assert [(entry["key"]["step"], entry["state"]) for entry in document["remove"]] == [(20, None), (30, None)]
    step, state = restore(root, local)
    assert step == 10
    assert torch.equal(state["moments"][0], make_state(10.0)["moments"][0])


def test_local_copies_go_with_their_steps(tmp_path: Path) -> None:
    root, local = tmp_path / "ckpt", tmp_path / "local"
    save(root, 10, 20, 30, local_dir=local)
    shutil.copytree(local, tmp_path / "other")
    stranger = local / ("0" * 32) / "step-000000000010"
    stranger.mkdir(parents=True)
    call("prune", root, "--keep", "1", "--local", local, "--local", tmp_path / "other", "--yes")
    left = sorted(path.relative_to(tmp_path).parts for path in tmp_path.glob("*/*/step-*"))
    assert [(parts[0], parts[-1].split("-")[1][-2:]) for parts in left] == [
        ("local", "10"),
        ("local", "30"),
        ("other", "30"),
    ]
    assert stranger.is_dir()


def test_local_needs_a_lineage(root: Path, tmp_path: Path) -> None:
    assert "no lineage record" in call("prune", root, "--keep", "1", "--local", tmp_path, "--yes", code=1)
    assert steps_on_disk(root) == [10, 20, 30, 40]
