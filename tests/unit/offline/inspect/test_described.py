"""How many bytes a leaf takes in a checkpoint, however ranks had it."""

from __future__ import annotations

from deeppart.model.boxes import Box
from deeppart.offline.inspect.described import Leaf
from deeppart.state.tree.leaves import LeafType

KIND = LeafType("torch", "float32", (4, 10))
ROWS = Box((0, 0), (2, 10)), Box((2, 0), (2, 10))


def test_one_copy_of_what_is_replicated_and_none_of_an_alias() -> None:
    assert (Leaf("w", KIND, None, None, ()).nbytes, Leaf("w", KIND, None, None, ()).stored_bytes) == (160, 160)
    assert Leaf("w", KIND, None, "v", ()).stored_bytes == 0


def test_each_ranks_own() -> None:
    kinds = {0: KIND, 3: LeafType("torch", "float32", (5,))}
    assert Leaf("w", KIND, kinds, None, ()).stored_bytes == 180


def test_shards_count_once_and_those_that_differ_for_each_rank() -> None:
    assert Leaf("w", KIND, None, None, (), shards=ROWS).stored_bytes == 160
    differing = tuple((rank, ROWS[1]) for rank in (1, 3, 5))
    leaf = Leaf("w", KIND, None, None, (), shards=ROWS, differing=differing)
    assert leaf.stored_bytes == 160 + 2 * 80
    assert leaf.boxes_that_differ == {ROWS[1]}
