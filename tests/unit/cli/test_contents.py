"""The lines that ``deeppart show`` prints for a leaf."""

from __future__ import annotations

from deeppart.cli.contents import _description
from deeppart.offline.inspect.described import Leaf
from deeppart.state.tree.leaves import LeafType


def test_shapes_that_differ_between_ranks_are_shown() -> None:
    kinds = {0: LeafType("torch", "uint8", (4,)), 1: LeafType("torch", "uint8", (5,))}
    text = "".join(piece for piece, _ in _description(Leaf("x", kinds[0], kinds, None, ())))
    assert text == "uint8[4]  4 B  per rank (0-1)  differing: uint8[4], uint8[5]"
