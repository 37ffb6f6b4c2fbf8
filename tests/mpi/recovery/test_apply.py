"""From a recovered step to the live state: an error on one rank ends it on all, and leaves every state as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from tests.mpi.suspect_training import checkpointer
from tests.states import Box

pytestmark = [
    pytest.mark.mpi(min_size=4),
    pytest.mark.filterwarnings("ignore::deeppart.errors.DeeppartWarning"),
]

State = dict[str, Any]


def saved(rank: int) -> State:
    return {
        "a": torch.full((20_000,), 1.0),
        "b": torch.full((20_000,), 2.0),
        "own": torch.full((10,), float(rank)),
        "box": Box({"x": torch.full((5,), 3.0)}),
        "n": 7,
    }


def live(_: int) -> State:
    blank = {name: torch.zeros(size) for name, size in (("a", 20_000), ("b", 20_000), ("own", 10))}
    return {**blank, "box": Box({"x": torch.zeros(5)}), "n": 0}


def another_shape(rank: int) -> State:
    return live(rank) | {"a": torch.zeros(20_001)}


def one_leaf_more(rank: int) -> State:
    return live(rank) | {"more": torch.zeros(1)}


def expanded(rank: int) -> State:
    return live(rank) | {"b": torch.zeros(1).expand(20_000)}


def overlapping(rank: int) -> State:
    buffer = torch.zeros(30_000)
    return live(rank) | {"a": buffer[:20_000], "b": buffer[10_000:]}


class Failing(Box):
    @property
    def state_dict(self) -> Any:
        raise ZeroDivisionError("the user's own")


def failing(rank: int) -> State:
    return live(rank) | {"box": Failing()}


def save(comm: Any, directory: Path) -> None:
    with checkpointer(comm, directory, replicated={"own": "none", "*": "all"}) as ck:
        ck.checkpoint(saved(comm.rank), 1).wait(timeout=200)


def tensors(state: State) -> list[torch.Tensor]:
    found = [item for item in state.values() if isinstance(item, torch.Tensor)]
    return [*found, state["box"].content["x"]] if state["box"].content else found


def spoiled(comm: Any, directory: Path, make: Callable[[int], State], last: bool, per_rank: Any) -> Any:
    """One rank has another state; then all have good ones."""
    spoiler = comm.size - 1 if last else 0
    state = make(comm.rank) if comm.rank == spoiler else live(comm.rank)
    with checkpointer(comm, directory) as ck:
        with pytest.raises(deeppart.DeeppartError) as caught:
            ck.restore(state, per_rank=per_rank)
        untouched = not any(item.any() for item in tensors(state)) and state["n"] == 0
        good = live(comm.rank)
        assert ck.restore(good, per_rank=per_rank) == 1
        rank = comm.rank if per_rank == "strict" else 0
        assert all(map(torch.equal, tensors(good), tensors(saved(rank)))) and good["n"] == 7
    return type(caught.value).__name__, str(caught.value), untouched


SPOILED: dict[Callable[[int], State], tuple[str, str]] = {
    another_shape: ("LeafMismatchError", "float32[20001]"),
    one_leaf_more: ("StructureMismatchError", "more"),
    expanded: ("StateError", "several elements at one address"),
    overlapping: ("StructureMismatchError", "a would be overwritten by b"),
    failing: ("StateError", "the user's own"),
}


@pytest.mark.sweep(2, kinds=("make",))
@pytest.mark.parametrize(("ranks", "per_rank", "last"), [(2, "strict", True), (3, "rank0", False)])
@pytest.mark.parametrize("make", SPOILED, ids=lambda make: make.__name__)
def test_an_error_on_one_rank_leaves_all_states_as_they_were(
    run_on: Any, shared_path: Path, make: Callable[[int], State], ranks: int, per_rank: str, last: bool
) -> None:
    run_on(2, save, shared_path)
    kind, text = SPOILED[make]
    spoiler = ranks - 1 if last else 0
    for rank, (found, told, untouched) in enumerate(run_on(ranks, spoiled, shared_path, make, last, per_rank)):
        assert untouched, rank
        assert found == (kind if rank == spoiler else "RemoteRankError"), told
        assert text in told
        assert rank == spoiler or "no rank has saved or changed anything" in told
