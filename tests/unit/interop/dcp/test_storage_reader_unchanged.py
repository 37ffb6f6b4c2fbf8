"""Loads by the library's reader that fail, or that planners make otherwise: what is not loaded is as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException, DefaultLoadPlanner
from torch.testing._internal.two_tensor import TwoTensor

import deeppart
from deeppart.errors import CorruptFileError, RestoreError
from deeppart.interop.dcp import StorageReader

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")
NUMBERS = np.arange(200_000.0) + 0.5


def save(directory: Path, state: Any) -> None:
    with deeppart.Checkpointer(persistent_dir=directory, compression="none") as checkpointer:
        checkpointer.checkpoint(state, 7).wait()


@pytest.fixture(params=["session", "directory"])
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


def failure_of(caught: pytest.ExceptionInfo[BaseException]) -> Any:
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
    assert isinstance(failure_of(caught), (CorruptFileError, RestoreError)) and "chunk" in str(failure_of(caught))
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
    assert "not by pickle" in str(failure_of(caught))
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
