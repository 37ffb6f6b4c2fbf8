"""Statistics of the leaves of a checkpoint: which leaf and which rank they are of, and what damage leaves of them."""

from __future__ import annotations

from pathlib import Path

from deeppart.offline import Contents, Leaf, read_contents
from tests.unit.cli_support import forge, make_state, save


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
