"""States whose structure differs between ranks, where that is allowed: each rank gets its own back."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import PerRankError
from tests.mpi.state.apart_states import restore, save
from tests.states import difference

pytestmark = pytest.mark.mpi(min_size=4)

RULES = {"replay/*": "none", "best/*": "rank0", "trusted": "all"}


def ragged_state(rank: int) -> dict[str, Any]:
    """What "auto" allows: lists of other lengths, None where others have something, runs that differ."""
    pair = [("x", torch.ones(70_000)), ("y", torch.zeros(3))]
    return {
        "weights": torch.arange(6000.0).view(3, 2000),
        "metric": 0.5 if rank == 0 else None,
        "history": [0.5 * step for step in range(20 + rank)],  # a run on every rank
        "few": list(range(5 + 10 * rank)),  # a run on some ranks
        "buffers": [torch.full((4 + rank,), float(rank)) for _ in range(2 + rank)],
        "cache": None if rank == 0 else {"x": torch.ones(3) * rank, "names": ["a"] * rank},
        "moment": torch.ones(7) * rank if rank < 2 else None,
        "items": ["fixed", None if rank else [torch.zeros(2), 1], 3],
        "table": {f"word {place} of {rank}": place for place in range(300)},
        "same": dict.fromkeys(range(300) if rank % 2 else reversed(range(300)), "x"),
        "turned": dict(pair if rank % 2 else reversed(pair)),
        "step": 7,
    }


def ruled_state(rank: int) -> dict[str, Any]:
    """What rules allow besides."""
    base = torch.arange(10.0) + rank
    replay = OrderedDict([("first", rank), (f"only {rank}", {"rows": base, "tail": base[5:]}), ("last", "x")])
    state: dict[str, Any] = {
        "weights": torch.arange(6000.0).view(3, 2000),
        "trusted": torch.full((9,), 2.0),
        "replay": replay if rank != 1 else None,
        "step": 7,
    }
    if rank == 0:
        state["best"] = {"loss": 0.25, "weights": torch.full((2000,), 3.0), "curve": [0.1] * 30}
    elif rank == 1:
        state["best"] = None
    elif rank == 2:
        state["best"] = {"loss": 9.0, "weights": torch.zeros(3), "other": 1}
    return state


def test_what_auto_allows(run_on: Any, shared_path: Path) -> None:
    notices = run_on(3, save, shared_path, ragged_state)
    paths = ("metric", "history", "few", "buffers", "cache", "items/1", "table")
    assert all(path in notices[0][0] for path in paths) and not any(notices[1:])
    assert "same" not in notices[0][0] and "turned" not in notices[0][0], (
        "the order of a dict's entries is no difference"
    )
    for rank, (step, found) in enumerate(run_on(3, restore, shared_path, ragged_state)):
        assert step == 2
        assert difference(ragged_state(rank), found, ordered=False) is None
        loaded = deeppart.load(shared_path / "ckpt", rank=rank)
        assert difference(ragged_state(rank), loaded, ordered=False) is None


def ruled_for_another_world(rank: int) -> dict[str, Any]:
    return ruled_state(0) | {"replay": None}


def test_what_rules_allow(run_on: Any, shared_path: Path) -> None:
    notices = run_on(3, save, shared_path, ruled_state, RULES)
    assert not any(notices), "what the user says himself is not told him"
    best = ruled_state(0)["best"]
    for step, found in run_on(4, restore, shared_path, ruled_for_another_world, "rank0", False):
        assert step == 2, found
        assert difference(ruled_state(0) | {"best": best}, found, ordered=False) is None
    for rank, (step, found) in enumerate(run_on(3, restore, shared_path, ruled_state)):
        assert step == 2
        expected = ruled_state(rank) | {"best": best}
        assert difference(expected, found, ordered=False) is None
        loaded = deeppart.load(shared_path / "ckpt", rank=rank)
        assert difference(expected, loaded, ordered=False) is None
        if expected["replay"] is not None:
            assert list(loaded["replay"]) == list(expected["replay"])
            own = loaded["replay"][f"only {rank}"]
            assert own["tail"].data_ptr() == own["rows"][5:].data_ptr(), "tied again"


def first(path: str, old: list[Any], rank: int, size: int) -> Any:
    """What the first rank that had anything had there."""
    return next(item for item in old if item is not None)


def live_for_another_world(rank: int) -> dict[str, Any]:
    return ragged_state(1)


def live_for_the_function(rank: int) -> dict[str, Any]:
    return ragged_state(1) | {"buffers": [], "cache": None, "items": ["fixed", None, 3]}


@pytest.mark.parametrize("ranks", [1, 4])
def test_another_number_of_ranks(run_on: Any, new_shared_path: Any, ranks: int) -> None:
    directory = new_shared_path()
    run_on(2, save, directory, ragged_state)
    for kind, text in run_on(ranks, restore, directory, live_for_another_world):
        assert kind is PerRankError or "PerRankError" in text or "refused by" in text
        assert "cache" in text and "items/1" in text
    for step, found in run_on(ranks, restore, directory, live_for_another_world, "drop", False):
        assert step == 2
        assert difference(ragged_state(1), found, ordered=False) is None, "live ones are left alone"
    for step, found in run_on(ranks, restore, directory, live_for_the_function, "rank0", False):
        assert step == 2, found
        assert difference(ragged_state(0), found, ordered=False) is None
    for step, found in run_on(ranks, restore, directory, live_for_the_function, first, False):
        assert step == 2, found
        assert found["cache"]["x"].tolist() == [1.0] * 3
        assert [len(item) for item in found["buffers"]] == [4, 4]


def test_patterns_that_match_nothing_are_told_once(run_on: Any, shared_path: Path) -> None:
    rules = {"replay/*": "none", "best/*": "rank0", "tpyo/*": "none"}
    notices = run_on(2, save, shared_path, ruled_state, rules)
    assert [len(each) for each in notices] == [1, 0] and "tpyo" in notices[0][0] and "replay" not in notices[0][0]
