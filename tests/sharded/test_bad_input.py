"""Shards that make no sense: an error on every rank in time, nothing is touched, and the next step works."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import deeppart
from deeppart.model import Box
from tests.sharded.layouts import (
    SPLITS_ALONE,
    DTensor,
    Partial,
    Placement,
    Shard,
    distribute_tensor,
)
from tests.sharded.ranks import run_job
from tests.unit.sharded_states import piece

pytestmark = [
    pytest.mark.timeout(220),
    pytest.mark.xdist_group("torchrun"),
    pytest.mark.skipif(not SPLITS_ALONE, reason="this torch splits tensors in a collective only"),
]

TIMEOUT_S = 20.0
WHOLE = torch.arange(30.0).view(6, 5)
State = dict[str, Any]
#: The directory of the job, and what its ranks told.
Found = tuple[Path, list[dict[str, Any]]]


class Job:
    """Three ranks, with meshes of all of them in two orders."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.mesh = DeviceMesh("cpu", [0, 1, 2])
        self.turned = DeviceMesh("cpu", [2, 1, 0])
        self.two = DeviceMesh("cpu", [0, 1])
        self.first_two = dist.new_group([0, 1])

    def split(self, whole: torch.Tensor, placement: Placement | None = None, mesh: DeviceMesh | None = None) -> Any:
        return distribute_tensor(whole, mesh or self.mesh, [placement or Shard(0)], src_data_rank=None)

    def state(self, fill: float, w: Any = None) -> State:
        w = self.split(WHOLE + fill) if w is None else w
        return {"plain": torch.full((4,), fill), "model": {"w": w}, "rows": self.split(WHOLE.int() + int(fill))}

    def lonely(self, rank: int, item: Callable[[], Any]) -> State:
        """A good state, but on one rank."""
        return self.state(9.0, item() if self.rank == rank else None)

    def partial(self) -> Any:
        return DTensor.from_local(torch.ones(6, 5), self.mesh, [Partial()], run_check=False)

    def without(self, rank: int) -> State:
        state = self.state(9.0)
        if self.rank == rank:
            del state["model"]["w"]
        return state

    def overlapping(self) -> Any:
        return piece(WHOLE, Box((max(0, 2 * self.rank - 1), 0), (min(6, 3), 5)))

    def cases(self) -> dict[str, Callable[[], State]]:
        """States of which one part is bad, and stays so on every call."""
        return {
            "split in another way": lambda: self.lonely(1, lambda: self.split(WHOLE, Shard(1))),
            "another order of the mesh": lambda: self.lonely(2, lambda: self.split(WHOLE, mesh=self.turned)),
            "another mesh": lambda: self.lonely(0, lambda: self.split(WHOLE, mesh=self.two)),
            "elements lack": lambda: self.without(2),
            "overlapping shards": lambda: self.state(9.0, self.overlapping()),
            "another shape": lambda: self.lonely(1, lambda: self.split(WHOLE[:, :4])),
            "another dtype": lambda: self.lonely(0, lambda: self.split(WHOLE.double())),
            "partial sums": lambda: self.state(9.0, self.partial()),
            "partial sums on one rank": lambda: self.lonely(2, self.partial),
            "a plain tensor on rank 0": lambda: self.lonely(0, lambda: WHOLE.clone()),
            "a plain tensor on rank 2": lambda: self.lonely(2, lambda: WHOLE.clone()),
            "a value": lambda: self.lonely(1, lambda: 5),
        }

    def unrestorable(self) -> dict[str, Callable[[], State]]:
        return {
            "another shape": lambda: self.lonely(1, lambda: self.split(WHOLE[:, :4])),
            "another dtype": lambda: self.lonely(0, lambda: self.split(WHOLE.double())),
            "partial sums": lambda: self.lonely(2, self.partial),
            "a value": lambda: self.lonely(1, lambda: 5),
            "memory of another shard": self._shared_memory,
        }

    def _shared_memory(self) -> State:
        state = self.state(9.0)
        state["plain"] = state["model"]["w"]._local_tensor.view(-1)[1:5]
        return state


def local_values(state: State) -> list[Any]:
    """What this rank's memory holds."""
    found = []
    for item in (state["plain"], state["model"].get("w"), state["rows"]):
        local = getattr(item, "_local_tensor", item)
        found.append(local.detach().as_subclass(torch.Tensor).tolist() if isinstance(local, torch.Tensor) else local)
    return found


def saved(ck: deeppart.Checkpointer, state: State) -> None:
    ck.checkpoint(state, 1000).wait("persistent")


def attempt(call: Callable[[], Any], state: State) -> dict[str, Any]:
    """The error of a call, how long it took, and whether the live state is as before."""
    before, begin = local_values(state), time.monotonic()
    try:
        call()
        error: BaseException | None = None
    except Exception as raised:
        error = raised
    return {
        "error": type(error).__name__,
        "typed": isinstance(error, deeppart.DeeppartError),
        "text": str(error),
        "in_time": time.monotonic() - begin < TIMEOUT_S,
        "untouched": local_values(state) == before,
    }


def tried(directory: Path) -> dict[str, Any]:
    """Good checkpoints, and between them states that cannot be saved or restored."""
    job = Job()
    found: dict[str, Any] = {"save": {}, "restore": {}, "checked": []}
    root = directory / "ckpt"
    with deeppart.Checkpointer(persistent_dir=root, timeout=TIMEOUT_S) as ck:
        step = 0

        def good() -> None:
            """The next checkpoint works, and holds what it should."""
            nonlocal step
            step += 1
            ck.checkpoint(job.state(float(step)), step).wait("persistent", timeout=TIMEOUT_S)
            live = job.state(-1.0)
            assert ck.restore(live) == step and local_values(live) == local_values(job.state(float(step)))
            found["checked"].append(step)

        good()
        for name, make in job.cases().items():
            state = make()
            found["save"][name] = attempt(partial(saved, ck, state), state)
            if job.rank == 0:
                loaded = deeppart.load(root)
                assert torch.equal(loaded["model"]["w"], WHOLE + step), name
            good()
        for name, make in job.unrestorable().items():
            state = make()
            found["restore"][name] = attempt(partial(ck.restore, state), state)
            good()
    if job.rank < 2:  # a session of ranks that do not have all of the tensor
        with deeppart.Checkpointer(persistent_dir=directory / "two", timeout=TIMEOUT_S, comm=job.first_two) as ck:
            state = job.state(9.0)
            found["two"] = attempt(partial(saved, ck, state), state)
    return found


#: What the rank that has found it says of each.
SAVED = {
    "split in another way": "overlap",
    "another order of the mesh": "of 30 elements, 20 are in a shard",
    "another mesh": "overlap",
    "elements lack": "of 30 elements, 20 are in a shard",
    "overlapping shards": "overlap",
    "another shape": "float32[6, 4]",
    "another dtype": "float64[6, 5]",
    "partial sums": "partial sums",
    "partial sums on one rank": "partial sums",
    "a plain tensor on rank 0": "model/w",
    "a plain tensor on rank 2": "model/w",
    "a value": "model/w",
}
RESTORED = {
    "another shape": "float32[6, 4], of which this rank has 1 shards (live)",
    "another dtype": "float64[6, 5]",
    "partial sums": "partial sums",
    "a value": "int",
    "memory of another shard": "share memory",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """One job of three ranks that tries everything."""
    directory = tmp_path_factory.mktemp("bad")
    return directory, run_job(3, tried, directory)


def check(of_ranks: list[dict[str, Any]], text: str) -> None:
    for each in of_ranks:
        assert each["typed"] and each["in_time"] and each["untouched"], each
    assert any(text in each["text"] for each in of_ranks), of_ranks
    assert any(each["error"] not in ("RemoteRankError", "CheckpointError") for each in of_ranks), of_ranks


@pytest.mark.parametrize("name", SAVED)
def test_it_is_not_saved(found: Found, name: str) -> None:
    check([each["save"][name] for each in found[1]], SAVED[name])


@pytest.mark.parametrize("name", RESTORED)
def test_it_is_not_restored(found: Found, name: str) -> None:
    check([each["restore"][name] for each in found[1]], RESTORED[name])


def test_ranks_that_have_only_a_part_save_nothing(found: Found) -> None:
    directory, of_ranks = found
    check([each["two"] for each in of_ranks[:2]], "of 30 elements, 20 are in a shard")
    assert not list(directory.glob("two/step-*"))


def test_every_next_step_was_saved_and_restored(found: Found) -> None:
    _, of_ranks = found
    steps = list(range(1, len(SAVED) + len(RESTORED) + 2))
    assert [each["checked"] for each in of_ranks] == [steps] * 3
