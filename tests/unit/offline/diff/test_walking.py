"""Two trees side by side, each as one rank saved it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from deeppart.offline.diff.records import Held
from deeppart.offline.diff.walking import Container, Pair, Side, Small, Tensor, Walk
from deeppart.offline.find import find_step
from deeppart.offline.load import OpenCheckpoint
from deeppart.state.tree.leaves import LeafType
from tests.unit.cli_support import forge, save_states

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
