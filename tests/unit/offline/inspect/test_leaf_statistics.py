"""Statistics of the leaves of a checkpoint: which leaf and which rank they are of, and what damage leaves of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from deeppart.offline.inspect.contents import Contents, Leaf
from deeppart.offline.inspect.leaf_statistics import Statistics, read_statistics
from tests.unit.cli_support import flip, forge, make_state, part_path, save, save_states
from tests.unit.sharded_states import rows
from tests.unit.sharded_states import save as save_ranks


def read(root: Path, *keys: str) -> tuple[dict[str, Leaf], Contents, Statistics]:
    contents, stats = read_statistics(root, None, keys, None, lambda done, total: None)
    return {leaf.path: leaf for leaf in contents.leaves() if isinstance(leaf, Leaf)}, contents, stats


def test_each_leaf_has_its_own(tmp_path: Path) -> None:
    save(tmp_path, 1)
    told: list[tuple[int, int]] = []
    contents, stats = read_statistics(tmp_path, None, (), None, lambda done, total: told.append((done, total)))
    state = make_state()
    live = {"model/bias": state["model"]["bias"], "moments/0": state["moments"][0], "ids": state["ids"]}
    live |= {"model/weight": state["model"]["weight"], "model/head": state["model"]["head"]}
    for leaf in contents.leaves():
        if isinstance(leaf, Leaf) and leaf.path in live:
            found = stats.of(leaf)
            assert found is not None and found.elements == live[leaf.path].numel()
            assert (found.min, found.max) == (live[leaf.path].min().item(), live[leaf.path].max().item())
    assert told[-1][0] == told[-1][1] and stats.problems == ()


def test_of_each_rank_and_of_all(tmp_path: Path) -> None:
    forge(tmp_path, 5)
    leaves, _, stats = read(tmp_path)
    found = [stats.of(leaves["rng"], rank) for rank in (0, 1, 2, None)]
    assert [(each.min, each.max, each.elements) for each in found if each] == [
        (0, 0, 16),
        (1, 1, 16),
        (2, 2, 16),
        (0, 2, 48),
    ]
    whole = stats.of(leaves["a"])
    assert whole is not None and (whole.elements, whole.max) == (900, 899.0)


def test_keys_that_look_alike(tmp_path: Path) -> None:
    save_states(tmp_path, {1: torch.ones(2), "1": torch.zeros(3)})
    contents, stats = read_statistics(tmp_path, None, (), None, lambda done, total: None)
    found = {leaf.type.shape: stats.of(leaf) for leaf in contents.leaves() if isinstance(leaf, Leaf)}
    assert {shape: each.mean for shape, each in found.items() if each} == {(2,): 1.0, (3,): 0.0}


def test_sharded_leaves_are_whole(tmp_path: Path) -> None:
    whole = torch.arange(60.0).reshape(6, 10)
    save_ranks(tmp_path, [{"w": rows(whole, rank, 3)} for rank in range(3)])
    leaves, _, stats = read(tmp_path)
    found = stats.of(leaves["w"])
    assert found is not None and (found.elements, found.min, found.max, found.mean) == (60, 0.0, 59.0, 29.5)


def test_ranks_with_other_types(tmp_path: Path) -> None:
    states: list[Any] = [{"x": torch.zeros(2)}, {"x": torch.zeros(2, dtype=torch.int64)}]
    save_ranks(tmp_path, states, replicated={"x": "none"})
    leaves, _, stats = read(tmp_path)
    assert stats.of(leaves["x"]) is None
    assert [each.min for rank in (0, 1) if (each := stats.of(leaves["x"], rank))] == [0.0, 0]


def test_damage_is_told_and_the_rest_is_there(tmp_path: Path) -> None:
    save(tmp_path, 1)
    flip(part_path(tmp_path, 1), 4096 + 1000)
    leaves, _, stats = read(tmp_path)
    lacking = {path for path, leaf in leaves.items() if stats.of(leaf) is None}
    assert 1 <= len(lacking) <= 2 and len(stats.problems) == 1 and "digest of a chunk" in stats.problems[0]
    part_path(tmp_path, 1).unlink()
    leaves, contents, stats = read(tmp_path)
    assert len(leaves) == 8 and stats.problems[0].startswith("no statistics: ") and contents.problems
