"""Two trees side by side, each as one rank saved it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from deeppart.offline.diff.records import Held
from deeppart.offline.diff.walking import Container, Pair, Side, Small, Tensor, Walk
from deeppart.offline.find import find_step
from deeppart.offline.load import OpenCheckpoint
from deeppart.state.tree.leaves import LeafType
from tests.unit.cli_support import forge, save_states
from tests.unit.sharded_states import save

FLOATS = LeafType("torch", "float32", (900,))


@pytest.fixture
def files() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def opened(files: ExitStack, root: Path, step: int | None = None) -> OpenCheckpoint:
    found, _ = find_step(root, step, None)
    return OpenCheckpoint(files, found.directory, found.manifest, signing=None)


def test_a_rank_that_there_was_not_has_nothing_of_its_own(tmp_path: Path, files: ExitStack) -> None:
    forge(tmp_path, 1, ranks=2)
    checkpoint = opened(files, tmp_path)
    for rank, position in ((0, 1000), (1, 1001), (2, None)):
        side = Side(checkpoint, rank)
        top = side.look(checkpoint.structure.tree)
        assert isinstance(top, Container)
        found = dict(zip(top.keys, map(side.look, top.children), strict=True))
        assert found["a"] == Tensor(0, FLOATS, False)
        assert found["position"] == (None if position is None else Small(position, True))
        assert (found["rng"] is None) == (position is None)


def test_what_is_no_ranks_own_is_compared_once(tmp_path: Path, files: ExitStack) -> None:
    forge(tmp_path, 1)
    walk, checkpoint = Walk(None), opened(files, tmp_path)
    found = []
    for rank in range(3):
        a, b = Side(checkpoint, rank), Side(checkpoint, rank)
        walk.walk(a, b, (a.checkpoint.structure.tree, b.checkpoint.structure.tree), rank)
        found += [(pair.path, pair.rank) for pair in walk.pairs]
    assert found == [("a", None), ("b", None), ("rng", 0), ("rng", 1), ("rng", 2)]
    assert walk.values == 3 and walk.differences == []


def test_a_list_that_becomes_a_run_is_compared_item_by_item(tmp_path: Path, files: ExitStack) -> None:
    """Lists of eight values are one value in the file, and shorter ones are not."""
    root = save_states(tmp_path, {"l": list(range(7)), "t": torch.zeros(1)}, {"l": list(range(8)), "t": torch.zeros(1)})
    a, b = Side(opened(files, root, 1), 0), Side(opened(files, root, 2), 0)
    walk = Walk(None)
    walk.walk(a, b, (a.checkpoint.structure.tree, b.checkpoint.structure.tree), 0)
    assert walk.pairs == [Pair("t", None, LeafType("torch", "float32", (1,)), 0, 0)]
    ((each,)) = walk.differences
    assert (each.path, each.kind, each.a, each.b) == ("l/7", "only_b", None, Held("int 7", 0, 1, 0))


def test_what_is_no_ranks_own_is_not_walked_again(tmp_path: Path, files: ExitStack) -> None:
    shared: dict[str, Any] = {
        "model": {f"w{n}": torch.full((2,), float(n)) for n in range(50)},
        "log": [{"x": 1.5}] * 40,
    }
    states = [
        {**shared, "mine": {"rng": torch.full((3,), rank), "at": rank}, "window": [0] * rank} for rank in range(4)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(tmp_path / "a", states)
        states[2]["mine"]["at"] = 7
        states[3]["window"] = [5]
        save(tmp_path / "b", states)
    one, other = opened(files, tmp_path / "a"), opened(files, tmp_path / "b")
    walk, looks, pairs = Walk(None), list[int](), list[tuple[str, int | None]]()
    for rank in range(4):
        a, b = Counting(one, rank), Counting(other, rank)
        walk.walk(a, b, (a.checkpoint.structure.tree, b.checkpoint.structure.tree), rank)
        pairs += [(pair.path, pair.rank) for pair in walk.pairs]
        looks.append(a.looks)
    assert {path for path, rank in pairs if rank is None} == {f"model/w{n}" for n in range(50)} and len(pairs) == 54
    assert {rank for path, rank in pairs if path == "mine/rng"} == {0, 1, 2, 3}
    found = {(each.path, each.rank, each.kind) for each in walk.differences}
    assert ("mine/at", 2, "value") in found and {path.partition("/")[0] for path, _, _ in found} == {"mine", "window"}
    assert looks[0] > 90 and max(looks[2:]) < 20, looks


class Counting(Side):
    """Counts what it is asked for, but for what is asked once to know what ranks share."""

    looks = 0

    def look(self, node: Any) -> Any:
        self.looks += 1
        return super().look(node)
