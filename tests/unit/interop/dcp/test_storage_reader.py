"""dcp.load with the library's reader, in one process; between ranks: tests/sharded/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException, DefaultLoadPlanner

import deeppart
from deeppart.errors import (
    ConfigError,
    CorruptFileError,
    RestoreError,
)
from deeppart.interop.dcp import StorageReader

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")
KINDS = ["session", "directory"]


def model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(700, 300), torch.nn.BatchNorm1d(300), torch.nn.Linear(300, 2))


def saved(directory: Path) -> dict[str, Any]:
    made = model(1)
    optimizer = torch.optim.Adam(made.parameters())
    made(torch.rand(4, 700)).sum().backward()
    optimizer.step()
    state = {"model": made, "optimizer": optimizer, "epoch": 3, "words": {"a": [1, 2]}}
    with deeppart.Checkpointer(persistent_dir=directory) as checkpointer:
        checkpointer.checkpoint(state, 7).wait()
    return state


@pytest.fixture(params=KINDS)
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "directory":
        yield lambda: StorageReader(tmp_path)
        return
    opened: list[deeppart.Checkpointer] = []

    def make() -> StorageReader:
        opened.append(deeppart.Checkpointer(persistent_dir=tmp_path, timeout=30))
        return StorageReader(opened[0])

    yield make
    for each in opened:
        each.close()


def equal(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    mine = one.state_dict()
    return all(torch.equal(mine[name], each) for name, each in other.state_dict().items())


def failure_of(error: BaseException) -> BaseException:
    assert isinstance(error, CheckpointException)
    failure: BaseException = error.failures[0][0]
    return failure


def test_what_the_library_has_saved_of_objects(tmp_path: Path, reader: Any) -> None:
    state = saved(tmp_path)
    live_model = model(2)
    optimizer = torch.optim.Adam(live_model.parameters(), lr=0.7)
    for parameter in live_model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    live = {"model": live_model, "optimizer": optimizer, "epoch": 0, "words": {"a": [0]}}
    dcp.load(live, storage_reader=reader())
    assert equal(live_model, state["model"]) and live["epoch"] == 3 and live["words"] == {"a": [1, 2]}
    mine, theirs = optimizer.state_dict(), state["optimizer"].state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    assert all(torch.equal(mine["state"][3][name], each) for name, each in theirs["state"][3].items())


def test_some_of_it(tmp_path: Path, reader: Any) -> None:
    state, source = saved(tmp_path), reader()
    assert source.newest() == 7
    live: dict[str, Any] = {"model": {"0.weight": torch.zeros(300, 700, dtype=torch.float64)}}
    dcp.load(live, storage_reader=source)  # of another dtype, as DCP does it
    assert torch.equal(live["model"]["0.weight"], state["model"][0].weight.double())
    live = {"epoch": 0, "more": torch.ones(2), "model": {"2.bias": torch.zeros(2)}}
    dcp.load(live, storage_reader=source, planner=DefaultLoadPlanner(allow_partial_load=True))
    assert live["epoch"] == 3 and live["more"].tolist() == [1, 1]
    assert torch.equal(live["model"]["2.bias"], state["model"][2].bias)
    transposed = torch.zeros(700, 300).T
    live = {"model": {"0.weight": transposed}}
    dcp.load(live, checkpoint_id="somewhere/step_7", storage_reader=source)
    assert torch.equal(transposed, state["model"][0].weight)


@pytest.mark.parametrize(
    ("live", "text"),
    [
        ({"model": {"0.weight": torch.ones(300, 700), "no": torch.ones(1)}}, "Missing key"),
        ({"model": {"0.weight": torch.ones(300, 700), "0.bias": torch.ones(301)}}, "Size mismatch"),
        ({"epoch": torch.ones(1), "model": {"0.weight": torch.ones(300, 700)}, "no": 1}, "Missing key"),
    ],
)
def test_what_does_not_fit_is_an_error_and_nothing_changes(
    tmp_path: Path, reader: Any, live: dict[str, Any], text: str
) -> None:
    state, source = saved(tmp_path), reader()
    with pytest.raises(CheckpointException, match=text):
        dcp.load(live, storage_reader=source)
    assert bool((live["model"]["0.weight"] == 1).all())
    found = {"model": {"0.weight": torch.zeros(300, 700)}}
    dcp.load(found, storage_reader=source)  # the next one works
    assert torch.equal(found["model"]["0.weight"], state["model"][0].weight)


def test_before_the_first_commit_there_is_no_newest(tmp_path: Path) -> None:
    for path in (tmp_path / "not" / "there", tmp_path):
        assert StorageReader(path).newest() is None
    with pytest.raises(ConfigError, match="is a URL"):
        StorageReader("s3://bucket/run").newest()
    saved(tmp_path)
    (manifest,) = tmp_path.glob("**/manifest")
    manifest.unlink()
    assert StorageReader(manifest.parents[1]).newest() is None


def test_no_checkpoint_and_no_such_step(tmp_path: Path, reader: Any) -> None:
    source = reader()
    assert source.newest() is None
    with pytest.raises(CheckpointException) as caught:
        dcp.load({"w": torch.ones(1)}, storage_reader=source)
    assert isinstance(failure_of(caught.value), RestoreError)
    with pytest.raises(ConfigError):
        dcp.load({"w": torch.ones(1)}, checkpoint_id="newest", storage_reader=source)


def part_of(directory: Path) -> Path:
    (found,) = [path for path in directory.glob("step-*/*") if path.name.startswith("part")]
    return found


def test_a_damaged_byte_is_noticed_and_nothing_changes(tmp_path: Path, reader: Any) -> None:
    state = saved(tmp_path)
    part, weight = part_of(tmp_path), state["model"][0].weight.detach().numpy().tobytes()
    data = bytearray(part.read_bytes())
    at = data.index(weight[1000:1064])
    data[at] ^= 1
    part.write_bytes(data)
    source = reader()
    live: dict[str, Any] = {"model": {"2.weight": torch.ones(2, 300), "0.weight": torch.ones(300, 700)}, "epoch": 0}
    with pytest.raises(CheckpointException) as caught:
        dcp.load(live, checkpoint_id=7, storage_reader=source)
    assert isinstance(failure_of(caught.value), (CorruptFileError, RestoreError))
    assert "chunk" in str(failure_of(caught.value))
    assert live["epoch"] == 0 and all(bool((each == 1).all()) for each in live["model"].values())


def test_a_directory_reads_only_what_is_asked_for(tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path, compression="none") as checkpointer:
        large = torch.arange(3 << 20)
        checkpointer.checkpoint({"a": large, "b": torch.ones(1 << 20), "c": 5}, 7).wait()
    part = part_of(tmp_path)
    data = bytearray(part.read_bytes())
    at = data.index((large[2 << 20 :][:8]).numpy().tobytes())
    data[at] ^= 1
    part.write_bytes(data)
    found: dict[str, Any] = {"b": torch.zeros(1 << 20), "c": 0}
    dcp.load(found, storage_reader=StorageReader(tmp_path))
    assert bool((found["b"] == 1).all()) and found["c"] == 5
    with pytest.raises(CheckpointException, match="chunk"):
        dcp.load({"a": torch.zeros(3 << 20, dtype=torch.int64)}, storage_reader=StorageReader(tmp_path))


def test_what_cannot_take_a_tensor_changes_no_other(tmp_path: Path, reader: Any) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path, compression="none") as checkpointer:
        checkpointer.checkpoint({"a": torch.ones(4), "b": torch.ones(4)}, 7).wait()
    source = reader()
    for bad in (torch.zeros(1).expand(4), torch.zeros(4).to_sparse(), torch.zeros(1, dtype=torch.half).expand(4)):
        live = {"a": torch.zeros(4), "b": bad}
        with pytest.raises(CheckpointException) as caught:
            dcp.load(live, storage_reader=source)
        assert "cannot be filled: b" in str(failure_of(caught.value)) and not live["a"].any()
