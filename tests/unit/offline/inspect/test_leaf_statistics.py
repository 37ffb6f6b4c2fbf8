"""Statistics of the leaves of a checkpoint: which leaf and which rank they are of, and what damage leaves of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from deeppart.offline import Contents, Leaf, read_contents
from tests.unit.cli_support import flip, forge, make_state, part_path, save, save_states
from tests.unit.sharded_states import rows
from tests.unit.sharded_states import save as save_ranks


def read(root: Path, *keys: str) -> tuple[dict[str, Leaf], Contents]:
    contents = read_contents(root, None, keys, None, lambda done, total: None)
    return {leaf.path: leaf for leaf in contents.leaves if isinstance(leaf, Leaf)}, contents


def test_each_leaf_has_its_own(tmp_path: Path) -> None:
    save(tmp_path, 1)
    told: list[tuple[int, int]] = []
    contents = read_contents(tmp_path, None, (), None, lambda done, total: told.append((done, total)))
    state = make_state()
    live = {"model/bias": state["model"]["bias"], "moments/0": state["moments"][0], "ids": state["ids"]}
    live |= {"model/weight": state["model"]["weight"], "model/head": state["model"]["head"]}
    for leaf in contents.leaves:
        if isinstance(leaf, Leaf) and leaf.path in live:
            found = leaf.stats
            assert found is not None and found.elements == live[leaf.path].numel()
            assert (found.min, found.max) == (live[leaf.path].min().item(), live[leaf.path].max().item())
    assert told[-1][0] == told[-1][1] and contents.problems == ()


def test_of_each_rank_and_of_all(tmp_path: Path) -> None:
    forge(tmp_path, 5)
    leaves, _ = read(tmp_path)
    assert leaves["rng"].stats_per_rank is not None
    found = [*leaves["rng"].stats_per_rank.values(), leaves["rng"].stats]
    assert [(each.min, each.max, each.elements) for each in found if each] == [
        (0, 0, 16),
        (1, 1, 16),
        (2, 2, 16),
        (0, 2, 48),
    ]
    whole = leaves["a"].stats
    assert whole is not None and (whole.elements, whole.max) == (900, 899.0)


def test_keys_that_look_alike(tmp_path: Path) -> None:
    save_states(tmp_path, {1: torch.ones(2), "1": torch.zeros(3)})
    contents = read_contents(tmp_path, None, (), None, lambda done, total: None)
    found = {leaf.type.shape: leaf.stats for leaf in contents.leaves if isinstance(leaf, Leaf)}
    assert {shape: each.mean for shape, each in found.items() if each} == {(2,): 1.0, (3,): 0.0}


def test_sharded_leaves_are_whole(tmp_path: Path) -> None:
    whole = torch.arange(60.0).reshape(6, 10)
    save_ranks(tmp_path, [{"w": rows(whole, rank, 3)} for rank in range(3)])
    leaves, _ = read(tmp_path)
    found = leaves["w"].stats
    assert found is not None and (found.elements, found.min, found.max, found.mean) == (60, 0.0, 59.0, 29.5)


def test_ranks_with_other_types(tmp_path: Path) -> None:
    states: list[Any] = [{"x": torch.zeros(2)}, {"x": torch.zeros(2, dtype=torch.int64)}]
    save_ranks(tmp_path, states, replicated={"x": "none"})
    leaves, _ = read(tmp_path)
    assert leaves["x"].stats is None and leaves["x"].stats_per_rank is not None
    assert [each.min for each in leaves["x"].stats_per_rank.values() if each] == [0.0, 0]


def test_damage_is_told_and_the_rest_is_there(tmp_path: Path) -> None:
    save(tmp_path, 1)
    flip(part_path(tmp_path, 1), 4096 + 1000)
    leaves, contents = read(tmp_path)
    lacking = {path for path, leaf in leaves.items() if leaf.stats is None}
    assert 1 <= len(lacking) <= 2 and len(contents.problems) == 1 and "digest of a chunk" in contents.problems[0]
    part_path(tmp_path, 1).unlink()
    leaves, contents = read(tmp_path)
    assert len(leaves) == 8 and contents.problems[-1].startswith("no statistics: ") and len(contents.problems) == 2
