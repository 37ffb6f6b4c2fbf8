"""Pipeline stages: each rank has some of the layers, and another number of ranks restores them as it likes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.comm import Comm
from deeppart.errors import PerRankError
from deeppart.model import Box
from deeppart.recovery.old_ranks import map_old_leaves, memory_for_old_leaves, wanted_of_old
from deeppart.state.paths.keys import readable
from deeppart.state.restore import Scatter
from tests.unit.recovery.opened import open_step
from tests.unit.sharded_states import on_ranks, piece, restore, save

NAMES = [
    "embed",
    "layers/0/w",
    "layers/0/b",
    "layers/1/w",
    "layers/1/b",
    "layers/2/w",
    "head/w",
    "head/inner/x",
    "last",
]


def whole(name: str) -> torch.Tensor:
    return torch.arange(12.0).view(4, 3) + 100 * NAMES.index(name)


def put(state: dict[str, Any], name: str, item: Any) -> None:
    *above, last = name.split("/")
    for key in above:
        state = state.setdefault(key, {})
    state[last] = item


def get(state: dict[str, Any], name: str) -> Any:
    for key in name.split("/"):
        state = state[key]
    return state


def stages(draw: random.Random, ranks: int, add: float = 0.0) -> tuple[list[dict[str, Any]], list[set[str]]]:
    """A state for each rank, and the names in it; each tensor is on one rank, or in halves or copies on two."""
    states: list[dict[str, Any]] = [{"plain": torch.ones(2) + add, "step": int(add)} for _ in range(ranks)]
    mine: list[set[str]] = [set() for _ in range(ranks)]
    for name in NAMES:
        tensor, everything = whole(name) + add, Box.whole((4, 3))
        halves = [Box((0, 0), (2, 3)), Box((2, 0), (2, 3))]
        way = draw.choice(["one", "copies", "halves"]) if ranks > 1 else "one"
        chosen = draw.sample(range(ranks), 1 if way == "one" else 2)
        for place, rank in enumerate(chosen):
            put(states[rank], name, piece(tensor, halves[place] if way == "halves" else everything))
            mine[rank].add(name)
    return states, mine


@pytest.mark.filterwarnings("ignore:.*:deeppart.DeeppartWarning")
@pytest.mark.sweep(3)
@pytest.mark.parametrize("seed", range(24))
def test_from_any_stages_into_any_others(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    saved, _ = stages(draw, draw.randint(1, 4))
    save(tmp_path, saved)
    for rank in range(len(saved)):
        loaded = deeppart.load(tmp_path, rank=rank)
        for name in NAMES:
            assert torch.equal(get(loaded, name), whole(name)), "whoever's state is asked for"
    live, mine = stages(draw, draw.randint(1, 4), add=-1000.0)
    restore(tmp_path, live, on_nodes=bool(seed % 2))
    for state, names in zip(live, mine, strict=True):
        assert state["step"] == 0 and torch.equal(state["plain"], torch.ones(2))
        for name in names:
            item = get(state, name)
            (offset,), (sizes,) = item.global_offsets, item.local_sizes
            assert torch.equal(item.as_subclass(torch.Tensor), whole(name)[Box(offset, sizes).slices()]), name
        assert all(name in names or not has(state, name) for name in NAMES), "what others have does not come here"


def has(state: dict[str, Any], name: str) -> bool:
    try:
        get(state, name)
    except KeyError:
        return False
    return True


def test_stages_are_nobodys_own(tmp_path: Path) -> None:
    """Another number of ranks need not say what becomes of them; of an array that is a rank's own it has to."""
    states: list[dict[str, Any]] = [{"x": torch.ones(2)} for _ in range(2)]
    states[1]["stage"] = {"w": piece(whole("last"), Box.whole((4, 3)))}
    save(tmp_path / "stages", states)
    live: list[dict[str, Any]] = [{"x": torch.zeros(2), "stage": {"w": torch.zeros(4, 3)}}]
    restore(tmp_path / "stages", live)
    assert torch.equal(live[0]["stage"]["w"], whole("last"))
    states[1]["stage"]["n"] = np.ones(3)
    save(tmp_path / "values", states)
    with pytest.raises(PerRankError, match="stage"):
        restore(tmp_path / "values", live)


def own_and_stages() -> list[dict[str, Any]]:
    """Of two ranks: a leaf of each one's own, and a stage."""
    everything = Box.whole((4, 3))
    states: list[dict[str, Any]] = [{"rng": torch.full((2,), rank)} for rank in range(2)]
    states[0]["first"] = {"w": piece(whole("embed"), everything)}
    states[1]["last"] = {"w": piece(whole("last"), everything)}
    return states


def last(path: str, old: list[Any], rank: int, size: int) -> Any:
    return next(each for each in reversed(old) if each is not None)


@pytest.mark.filterwarnings("ignore:.*:deeppart.errors.PerRankNotice")
@pytest.mark.parametrize("per_rank", ["drop", "rank0", last])
@pytest.mark.parametrize("rank_local", [False, True])
def test_no_rank_makes_memory_for_stages_of_others(tmp_path: Path, per_rank: Any, rank_local: bool) -> None:
    """Whole tensors of all stages would not fit into a node's memory."""
    saved = own_and_stages()
    if rank_local:
        saved[1]["more"] = {"n": 5, "k": torch.ones(3)}
    saved.append({"rng": torch.full((2,), 2)})
    save(tmp_path, saved, replicated={"more": "none"} if rank_local else "auto")

    def made(comm: Comm) -> list[str]:
        opened = open_step(tmp_path, comm)
        name = ("first", "last")[comm.rank]
        state = {"rng": torch.zeros(2, dtype=torch.int64), name: {"w": torch.zeros(4, 3)}}
        matched = opened.matched(state, per_rank)
        old = memory_for_old_leaves(matched)
        assert opened.delivery.bring(Scatter(wanted_of_old(old))) is None
        map_old_leaves(matched, old, comm.rank, comm.size)
        paths = matched.target.structure.paths()
        return [readable(paths[index]) for index in matched.target.numbers() if index not in matched.target.own]

    assert on_ranks(2, made) == [["first/w"], ["last/w"]]
