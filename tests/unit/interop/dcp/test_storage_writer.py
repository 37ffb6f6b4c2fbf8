"""dcp.save and dcp.async_save with the library's writer, in one process; between ranks: tests/sharded/."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException, DefaultSavePlanner, FileSystemWriter

import deeppart
from deeppart.errors import (
    BackgroundFailureWarning,
    CheckpointError,
    ConfigError,
    DeeppartError,
    StateError,
    StepExistsError,
    StructureMismatchError,
)
from deeppart.interop.dcp import BalancedSavePlanner, StorageReader, StorageWriter
from tests.storage_faults import StorageFaults

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning"),
    pytest.mark.filterwarnings("ignore:status. cannot:deeppart.DeeppartWarning"),
    pytest.mark.filterwarnings("ignore:restored step .*is in the directory too:deeppart.DeeppartWarning"),
]
#: It takes numbers for steps, too, which its annotations do not have.
async_save: Any = dcp.async_save


def state(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    w = torch.nn.Parameter(torch.rand(300, 70, generator=generator))
    optimizer = torch.optim.AdamW([w], lr=seed)
    w.grad = torch.ones_like(w)
    optimizer.step()
    return {
        "model": {"w": w.detach(), "half": torch.rand(5, generator=generator).bfloat16(), "none": torch.zeros(0, 3)},
        "optimizer": optimizer.state_dict(),
        "layers": [torch.full((3,), seed), {"n": seed}],
        "rng": ("MT19937", np.arange(5) + seed, torch.full((2,), seed)),
        "epoch": seed,
        "note": {"text": f"step {seed}", "flags": [True, None], "path": Path("a/b")},
    }


def cleared() -> dict[str, Any]:
    found = state(0)
    for each in (*found["model"].values(), *found["optimizer"]["state"][0].values(), found["layers"][0]):
        each.zero_()
    return found


def check(found: Any, seed: int) -> None:
    expected = state(seed)
    planners = [DefaultSavePlanner(), DefaultSavePlanner()]
    for planner, each in zip(planners, (found, expected), strict=True):
        planner.set_up_planner(each, None, True)
    one, other = (planner.state_dict for planner in planners)
    assert one.keys() == other.keys()
    for name, value in other.items():
        assert type(one[name]) is type(value), name
        if isinstance(value, torch.Tensor):
            assert torch.equal(one[name], value) and one[name].dtype == value.dtype, name
        elif isinstance(value, tuple) and name == "rng":
            assert value[0] == one[name][0] and all(
                (a == b).all() for a, b in zip(value[1:], one[name][1:], strict=True)
            )
        else:
            assert one[name] == value, name


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[StorageWriter]:
    with StorageWriter(tmp_path / "ckpt", tmp_path / "local", timeout=30) as made:
        yield made


def failure_of(error: BaseException) -> BaseException:
    """What went wrong on rank 0."""
    assert isinstance(error, CheckpointException)
    failure: BaseException = error.failures[0][0]
    return failure


@pytest.mark.parametrize("kind", ["save", "async_save"])
@pytest.mark.parametrize("planner", [None, BalancedSavePlanner, "cached"])
def test_saved_and_loaded(writer: StorageWriter, tmp_path: Path, kind: str, planner: Any) -> None:
    if planner == "cached" and not hasattr(dcp.planner.SavePlanner, "_cached_save_plan"):
        pytest.skip("this torch keeps no plans")
    for step in (3, 6):
        live = state(step)
        how = {"enable_plan_caching": True} if planner == "cached" else {}
        made = DefaultSavePlanner(**how) if planner == "cached" else planner and planner()
        saved: Any = getattr(dcp, kind)(live, checkpoint_id=f"step_{step}", storage_writer=writer, planner=made)
        for each in (live["model"]["w"], live["rng"][1]):
            each[:] = -1  # what was saved is what it was at the call
        saved = saved.result(60) if kind == "async_save" else saved
        # It says what DCP's own would.
        expected = dcp.save(state(step), storage_writer=FileSystemWriter(tmp_path / f"dcp-{step}"))
        assert saved.state_dict_metadata.keys() == expected.state_dict_metadata.keys()
        for name, stored in expected.state_dict_metadata.items():
            mine = saved.state_dict_metadata[name]
            assert type(mine) is type(stored) and getattr(mine, "size", 0) == getattr(stored, "size", 0), name
        assert saved.planner_data == expected.planner_data
        check_from(tmp_path / f"dcp-{step}", step)
    for reader in (StorageReader(writer), StorageReader(tmp_path / "ckpt")):
        for wanted in (None, 3):
            found = cleared()
            pointers = found["model"]["w"].data_ptr(), found["layers"][0].data_ptr()
            dcp.load(found, checkpoint_id=wanted, storage_reader=reader)
            check(found, wanted or 6)
            assert pointers == (found["model"]["w"].data_ptr(), found["layers"][0].data_ptr())
    # It is a checkpoint like others.
    loaded = deeppart.load(tmp_path / "ckpt", step=3)
    check(loaded, 3)
    assert list(loaded["optimizer"]["state"]) == [0]


def check_from(path: Path, step: int) -> None:
    found = cleared()
    dcp.load(found, checkpoint_id=path)
    check(found, step)


def test_no_file_has_a_pickle(writer: StorageWriter, tmp_path: Path) -> None:
    dcp.save(state(1), checkpoint_id=1, storage_writer=writer)
    for path in (tmp_path / "ckpt").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert b"PK\x03\x04" not in data and b"torch._utils" not in data and b"ctorch" not in data


def test_steps(writer: StorageWriter) -> None:
    dcp.save(state(1), storage_writer=writer)
    async_save(state(1), storage_writer=writer).result(60)
    dcp.save(state(1), checkpoint_id=10, storage_writer=writer)
    async_save(state(7), checkpoint_id=10, storage_writer=writer).result(60)  # again
    async_save(state(1), storage_writer=writer).result(60)
    assert writer.checkpointer.next_step() == 12
    found = cleared()
    dcp.load(found, checkpoint_id=10, storage_reader=StorageReader(writer))
    check(found, 7)
    with pytest.raises(CheckpointException) as caught:
        dcp.save(state(1), checkpoint_id=10, storage_writer=writer)
    assert isinstance(failure_of(caught.value), StepExistsError)
    with pytest.raises(StepExistsError):
        async_save(state(1), checkpoint_id="a/1", storage_writer=writer)
    for save in (dcp.save, dcp.async_save):
        with pytest.raises(ConfigError, match="impossible checkpoint_id"):
            save(state(1), checkpoint_id="newest", storage_writer=writer)
    assert StorageWriter.validate_checkpoint_id("a/b_5") and not StorageWriter.validate_checkpoint_id("newest")
    dcp.save(state(1), storage_writer=writer)
    assert writer.checkpointer.next_step() == 13


@pytest.mark.parametrize("save", [dcp.save, dcp.async_save])
def test_states_that_cannot_be_saved_and_the_next_that_can(writer: StorageWriter, save: Any, tmp_path: Path) -> None:
    bad: list[tuple[Any, type[DeeppartError], str]] = [
        ({"a": {"m": torch.nn.Linear(1, 1)}}, StateError, "a/m"),
        ({"a": {"f": lambda: 0}}, StateError, "f"),
    ]
    if save is dcp.async_save:  # DCP's planner refuses it otherwise
        bad.append(({"a.b": 1, "a": {"b": 2}}, StructureMismatchError, "a.b"))
    for given, kind, text in bad:
        with pytest.raises((CheckpointException, kind)) as caught:
            save(given, checkpoint_id=5, storage_writer=writer)
        error = caught.value if isinstance(caught.value, kind) else failure_of(caught.value)
        assert isinstance(error, kind) and text in str(error)
    saved = save(state(5), checkpoint_id=5, storage_writer=writer)
    if save is dcp.async_save:
        saved.result(60)
    check(deeppart.load(tmp_path / "ckpt"), 5)


def test_a_failure_in_the_background_is_noticed_even_if_nobody_looks_at_the_future(tmp_path: Path) -> None:
    with StorageFaults(tmp_path / "ckpt") as faults, StorageWriter(tmp_path / "ckpt") as writer:
        dcp.save(state(1), checkpoint_id=1, storage_writer=writer)
        faults.refuse(
            0, errno.ENOSPC, count=None, only=("pwrite", "pwritev", "write", "fsync", "mkdir", "link", "rename")
        )
        saving: Any = async_save(state(2), checkpoint_id=2, storage_writer=writer)
        error = saving.exception(60)
        faults.clear()
        assert isinstance(error, CheckpointException) and not isinstance(error, Exception)
        failure = failure_of(error)
        assert isinstance(failure, CheckpointError) and "No space left" in str(failure)
        with pytest.warns(BackgroundFailureWarning, match="No space left"):
            again: Any = async_save(state(3), checkpoint_id=3, storage_writer=writer)
        again.result(60)
        found = cleared()
        dcp.load(found, checkpoint_id=1, storage_reader=StorageReader(writer))
        check(found, 1)
    check(deeppart.load(tmp_path / "ckpt"), 3)


def test_until_a_level(tmp_path: Path) -> None:
    with StorageWriter(tmp_path / "ckpt", tmp_path / "local", until="local", flush_bandwidth=2e5) as writer:
        saving: Any = async_save({"w": torch.rand(100_000)}, checkpoint_id=1, storage_writer=writer)
        saving.result(60)
        (pending,) = writer.checkpointer._background.recent
        assert pending.done("local") and not pending.done("persistent")
    assert pending.done("persistent")
