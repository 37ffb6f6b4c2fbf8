"""dcp.load with the library's reader, in one process; between ranks: tests/sharded/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException, DefaultLoadPlanner, state_dict_loader
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem
from torch.testing._internal.two_tensor import TwoTensor

import deeppart
from deeppart.errors import (
    ConfigError,
    CorruptFileError,
    DeeppartError,
    FormatError,
    FreedMemoryError,
    LeafMismatchError,
    RestoreError,
)
from deeppart.interop.dcp import StorageReader
from deeppart.interop.dcp.storage_reader import Destination, destinations, hand_over

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


def test_a_planner_that_gives_a_wrong_tensor(tmp_path: Path, reader: Any) -> None:
    class Wrong(DefaultLoadPlanner):
        def lookup_tensor(self, index: Any) -> torch.Tensor:
            return super().lookup_tensor(index)[:1]

    saved(tmp_path)
    source, live = reader(), {"epoch": 0, "model": {"2.bias": torch.ones(2)}}
    with pytest.raises(CheckpointException) as caught:
        dcp.load(live, storage_reader=source, planner=Wrong())
    assert isinstance(failure_of(caught.value), LeafMismatchError) and live["epoch"] == 0
    dcp.load(live, storage_reader=source)
    assert live["epoch"] == 3


def test_without_a_state_to_load_into(tmp_path: Path, reader: Any) -> None:
    state, source = saved(tmp_path), reader()
    found: dict[str, Any] = {}
    state_dict_loader._load_state_dict(found, source, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    assert torch.equal(found["model"]["0.weight"], state["model"][0].weight)
    assert found["epoch"] == 3 and found["optimizer"]["param_groups"][0]["lr"] == 0.001
    if hasattr(state_dict_loader, "_load_state_dict_from_keys"):
        some = state_dict_loader._load_state_dict_from_keys({"words", "model.2.bias"}, storage_reader=source)
        assert some.keys() == {"words", "model"} and some["model"].keys() == {"2.bias"}


def test_before_the_first_commit_there_is_no_newest(tmp_path: Path) -> None:
    for path in (tmp_path / "not" / "there", tmp_path):
        assert StorageReader(path).newest() is None
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


@pytest.mark.parametrize("name", ["manifest", "part"])
def test_files_that_are_no_longer_what_they_were(tmp_path: Path, name: str) -> None:
    saved(tmp_path)
    (path,) = [path for path in tmp_path.glob("step-*/*") if path.name.startswith(name)]
    # What a pickle that runs something begins with.
    path.write_bytes(b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR." + path.read_bytes()[40:])
    live = {"epoch": 0}
    with pytest.raises(CheckpointException) as caught:
        dcp.load(live, checkpoint_id=7, storage_reader=StorageReader(tmp_path))
    assert isinstance(failure_of(caught.value), (FormatError, RestoreError)) and live["epoch"] == 0


def test_impossible_sources() -> None:
    with pytest.raises(ConfigError, match="impossible source"):
        StorageReader(5)  # type: ignore[arg-type]
    assert StorageReader.validate_checkpoint_id("step_5") and not StorageReader.validate_checkpoint_id("five")


# --- loads that fail, or that planners make otherwise: what is not loaded is as it was ---


pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")
NUMBERS = np.arange(200_000.0) + 0.5


def save(directory: Path, state: Any) -> None:
    with deeppart.Checkpointer(persistent_dir=directory, compression="none") as checkpointer:
        checkpointer.checkpoint(state, 7).wait()


@pytest.fixture(params=KINDS)
def load(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def loads(live: dict[str, Any], **how: Any) -> None:
        if request.param == "directory":
            dcp.load(live, storage_reader=StorageReader(tmp_path), **how)
            return
        with deeppart.Checkpointer(persistent_dir=tmp_path, timeout=30) as checkpointer:
            try:
                dcp.load(live, storage_reader=StorageReader(checkpointer), **how)
            except CheckpointException as error:  # it is no Exception
                raise AssertionError(*[failure for failure, _ in error.failures.values()]) from error

    return loads


def failure_in(caught: pytest.ExceptionInfo[BaseException]) -> Any:
    error = caught.value
    return error.failures[0][0] if isinstance(error, CheckpointException) else error.args[0]


def test_damage_in_what_is_no_tensor_changes_no_tensor(tmp_path: Path, load: Any) -> None:
    save(tmp_path, {"w": torch.ones(200_000), "rng": ("MT", NUMBERS), "n": 5})
    (part,) = tmp_path.glob("step-*/part*")
    data = bytearray(part.read_bytes())
    data[data.index(NUMBERS[1000:1010].tobytes())] ^= 1
    part.write_bytes(data)
    live: dict[str, Any] = {"w": torch.zeros(200_000), "rng": None, "n": 0}
    with pytest.raises((CheckpointException, AssertionError)) as caught:
        load(live)
    assert isinstance(failure_in(caught), (CorruptFileError, RestoreError)) and "chunk" in str(failure_in(caught))
    assert not live["w"].any() and live["rng"] is None and live["n"] == 0
    load(live := {"w": torch.zeros(200_000), "n": 0})
    assert bool((live["w"] == 1).all()) and live["n"] == 5


class Unloved:
    """Cannot be pickled."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        raise TypeError("not by pickle")


deeppart.register(Unloved, lambda made: made.number, Unloved, name="tests.Unloved")


def test_what_cannot_be_pickled_changes_no_tensor(tmp_path: Path, load: Any) -> None:
    save(tmp_path, {"w": torch.ones(3), "of": (Unloved(3), torch.ones(1))})
    live: dict[str, Any] = {"w": torch.zeros(3), "of": None}
    with pytest.raises((CheckpointException, AssertionError)) as caught:
        load(live)
    assert "not by pickle" in str(failure_in(caught))
    assert live["w"].tolist() == [0, 0, 0] and live["of"] is None


class OneBuffer(DefaultLoadPlanner):
    """Gives the same memory for every item, and copies on what it gets."""

    def resolve_tensor(self, item: Any) -> torch.Tensor:
        found = super().resolve_tensor(item)
        self.buffer = getattr(self, "buffer", torch.empty(100))
        return self.buffer[: found.numel()].view(found.shape)

    def commit_tensor(self, item: Any, tensor: torch.Tensor) -> None:
        super().resolve_tensor(item).copy_(tensor)


def test_a_planner_with_one_buffer(tmp_path: Path, load: Any) -> None:
    state = {"a": torch.ones(10), "b": torch.full((4, 5), 2.0), "c": torch.full((5,), 3.0)}
    save(tmp_path, state)
    live = {name: torch.zeros_like(each) for name, each in state.items()}
    load(live, planner=OneBuffer())
    assert all(torch.equal(live[name], each) for name, each in state.items())


def test_what_cannot_take_a_tensor_changes_no_other(tmp_path: Path, load: Any) -> None:
    save(tmp_path, {"a": torch.ones(4), "b": torch.ones(4)})
    for bad in (torch.zeros(1).expand(4), torch.zeros(4).to_sparse(), torch.zeros(1, dtype=torch.half).expand(4)):
        live = {"a": torch.zeros(4), "b": bad}
        with pytest.raises((CheckpointException, AssertionError), match="cannot be filled: b"):
            load(live)
        assert not live["a"].any()


def test_tensors_of_subclasses(tmp_path: Path, load: Any) -> None:
    save(
        tmp_path,
        {"w": torch.ones(4), "two": TwoTensor(torch.ones(4), torch.ones(4)), "sparse": torch.eye(2).to_sparse()},
    )
    live: dict[str, Any] = {"w": TwoTensor(torch.zeros(4), torch.zeros(4))}
    load(live)  # from a plain one, as DCP does it
    assert live["w"].a.tolist() == live["w"].b.tolist() == [1] * 4
    live = {"w": torch.zeros(4), "two": TwoTensor(torch.zeros(4), torch.zeros(4))}
    with pytest.raises((CheckpointException, AssertionError), match="only its class could make it"):
        load(live)
    assert not live["w"].any() and not live["two"].a.any()
    load(live := {"sparse": None})  # and nothing else
    assert torch.equal(live["sparse"].to_dense(), torch.eye(2))


# --- where a planner puts tensors, looked at before anything is changed ---


class Planner(DefaultLoadPlanner):
    """Has a tensor for each item, by place."""

    def __init__(self, tensors: list[Any]) -> None:
        super().__init__()
        self.tensors = tensors

    def resolve_tensor(self, item: Any) -> Any:
        return self.tensors[int(item.storage_index.fqn)]


class Commits(Planner):
    """Copies on what it is given back."""

    def commit_tensor(self, item: Any, tensor: torch.Tensor) -> None:
        self.copies = [*getattr(self, "copies", []), tensor.clone()]


def asked(planner: Planner, *, may_refuse: bool = False, sizes: tuple[int, ...] = (4,)) -> list[Destination]:
    items = [
        ReadItem(
            LoadItemType.TENSOR,
            MetadataIndex(str(place)),
            torch.Size([0] * len(sizes)),
            MetadataIndex(str(place), torch.Size([0] * len(sizes))),
            torch.Size([1] * len(sizes)),
            torch.Size(sizes),
        )
        for place in range(len(planner.tensors))
    ]
    return destinations(planner, items, lambda name: torch.float32, may_refuse=may_refuse)


@pytest.mark.parametrize("columns", [False, True])
def test_one_buffer_for_all_items(columns: bool) -> None:
    buffer = torch.zeros(4, 2)
    tensors = [buffer[:, 0], buffer[:, 1], buffer[:, 0]] if columns else [buffer.view(-1)[at : at + 4] for at in (0, 3)]
    planner = Commits([*tensors, torch.zeros(4)])
    found = asked(planner, may_refuse=True)
    assert [each.is_beside for each in found] == [True] * len(tensors) + [False]
    for number, each in enumerate(found):
        each.memory.fill_(number)
    hand_over(planner, found)
    assert [each.tolist() for each in planner.copies] == [[float(number)] * 4 for number in range(len(found))]
    # What is the state itself is left to whoever compares what its names get.
    assert [each.is_beside for each in asked(Planner(tensors), may_refuse=True)] == [False] * len(tensors)
    assert any(each.is_beside for each in asked(Planner(tensors)))


def test_a_range_within_another_after_one_that_ends_before() -> None:
    memory = torch.zeros(100)
    planner = Commits([memory[20:24], memory.as_strided((4,), (30,)), memory[5:9], memory[95:99]])
    assert [each.is_beside for each in asked(planner)] == [True, True, True, False]


def freed() -> torch.Tensor:
    tensor = torch.zeros(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def of_inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.zeros(4, dtype=torch.float64)


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        (lambda: torch.zeros(5), LeafMismatchError),
        (lambda: torch.zeros(1).expand(4), LeafMismatchError),
        (lambda: torch.zeros(4).to_sparse(), LeafMismatchError),
        (of_inference, LeafMismatchError),
        (freed, FreedMemoryError),
    ],
)
def test_what_cannot_be_filled(tensor: Any, kind: type[DeeppartError]) -> None:
    with pytest.raises(kind, match="1"):
        asked(Planner([torch.zeros(4), tensor()]))
