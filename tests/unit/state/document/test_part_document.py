"""Parts' documents: what they cannot mean is refused with one kind of error."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.errors import CorruptFileError
from deeppart.model import Box
from deeppart.state.document.global_state import gather_global_state, with_global_state
from deeppart.state.document.part_document import RankLocalTree, insert
from deeppart.state.tree import Branch, flatten
from tests.unit.part_documents import decoded, read_metas
from tests.unit.sharded_states import piece, rows, save

WHOLE = torch.arange(35.0).view(7, 5)


@pytest.fixture(scope="module")
def metas(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Of two ranks with tied tensors that are sharded, one that rank 1 alone has, and what is each rank's own."""
    states: list[dict[str, Any]] = []
    for rank in range(2):
        mine = rows(WHOLE, rank, 2)
        states.append({"w": mine, "head": mine, "p": torch.ones(4), "a": rows(WHOLE.int(), rank, 2)})
    states[1]["stage"] = {"q": piece(WHOLE, Box.whole((7, 5))), "n": [1, np.zeros(2, "<f4")]}
    root = tmp_path_factory.mktemp("sharded")
    save(root, states)
    return read_metas(root)


def read(metas: list[Any]) -> None:
    """All that is done with documents before any byte is read."""
    documents, of_ranks = decoded(metas)
    shared = documents[0].structure
    assert shared is not None
    global_state = gather_global_state(shared, documents, "here")
    global_state.check(shared, "here")
    for structure in of_ranks:
        joined = with_global_state(structure, global_state)
        joined.paths()


def divide(*encoded: Any, number: int = 0) -> Callable[[list[Any]], None]:
    """Says of a tensor, "a" unless another is named, that it is divided in another way."""
    return lambda metas: metas[0]["structure"]["boxes"].__setitem__(number, list(encoded))


def leaf(number: int) -> Callable[[list[Any]], list[Any]]:
    """The entry of a leaf: 0 is plain; "a", "head", "q" and "w", which is tied to "head", follow it."""

    def entry(metas: list[Any]) -> list[Any]:
        found: list[Any] = metas[0]["structure"]["leaves"][number]
        return found

    return entry


def tree(metas: list[Any]) -> list[Any]:
    """The nodes of what rank 1 alone has: the tensor "q", and a list of its own."""
    found: list[Any] = metas[1]["trees"][0][2][3]
    return found


WRONG: dict[str, Callable[[list[Any]], Any]] = {
    "intervals of none": divide(0, 5),
    "longer than the tensor": divide(8, 5),
    "below nothing": divide(-4, 5),
    "a huge interval": divide(1 << 80, 5),
    "no whole number": divide(4.0, 5),
    "true": divide(True, 5),
    "too few dimensions": divide(4),
    "too many": divide(4, 5, 1),
    "an object": lambda metas: metas[0]["structure"]["boxes"].__setitem__(0, {"0": 4}),
    "cuts that do not begin at 0": divide([1, 4], 5),
    "cuts that fall": divide([0, 4, 2], 5),
    "a cut twice": divide([0, 2, 2], 5),
    "a cut beyond the end": divide([0, 3, 7], 5),
    "a cut before the beginning": divide([0, -3], 5),
    "regular cuts one by one": divide([0, 4], 5),
    "all of it as a list": divide([0], 5),
    "no cuts": divide([], 5),
    "boxes that are a grid": divide("boxes", 0, 0, 4, 5, 4, 0, 3, 5),
    "a gap": divide("boxes", 0, 0, 4, 5, 4, 0, 3, 2, 4, 3, 3, 2),
    "an overlap": divide("boxes", 0, 0, 4, 5, 3, 0, 1, 5, 4, 0, 3, 5),
    "boxes that do not ascend": divide("boxes", 4, 0, 3, 2, 0, 0, 4, 5, 4, 2, 3, 3),
    "an empty box": divide("boxes", 0, 0, 4, 5, 4, 0, 0, 5, 4, 0, 3, 2, 4, 2, 3, 3),
    "a box beyond the end": divide("boxes", 0, 0, 4, 5, 4, 0, 4, 2, 4, 2, 3, 3),
    "half of a box": divide("boxes", 0, 0, 4, 5, 4, 0, 3),
    "no boxes": divide("boxes"),
    "other words": divide("box", 0, 0, 4, 5),
    "one tensor less than there are": lambda metas: metas[0]["structure"]["boxes"].pop(),
    "more tensors than leaves": lambda metas: metas[0]["structure"].update(boxes=[[4, 5]] * 9),
    "none at all": lambda metas: metas[0]["structure"].pop("boxes"),
    "no list": lambda metas: metas[0]["structure"].update(boxes={}),
    "a tensor that is each rank's own": lambda metas: metas[0]["structure"].update(per_rank=[1]),
    "a value in place of a tensor": lambda metas: leaf(1)(metas).__setitem__(slice(None), ["value", 1]),
    "an array of texts": lambda metas: leaf(1)(metas).__setitem__(slice(2), ["numpy", "<U3"]),
    "a tensor without its place": lambda metas: metas[0]["structure"].update(rank_local=False),
    "a tensor twice in a tree": lambda metas: tree(metas).__setitem__(1, 3),
    "a tree that names a shared tensor": lambda metas: tree(metas).__setitem__(0, 1),
    "a tree that names a plain leaf": lambda metas: tree(metas).__setitem__(0, 0),
    "a tree that names no leaf": lambda metas: tree(metas).__setitem__(0, 99),
    "a tensor in no tree": lambda metas: tree(metas).__setitem__(0, ["list", None, None, []]),
    "a placeholder in a tree": lambda metas: tree(metas).append(["r"]),
    "a huge place among the keys": lambda metas: metas[1]["trees"][0].__setitem__(1, 1 << 70),
    "a path where something stands": lambda metas: metas[1]["trees"][0].__setitem__(0, ["p"]),
    "a path below a tensor": lambda metas: metas[1]["trees"][0].__setitem__(0, ["w", "x"]),
    "a tie to a plain leaf": lambda metas: leaf(4)(metas)[3].__setitem__(0, 0),
    "a tie to a tensor of another dtype": lambda metas: leaf(4)(metas)[3].__setitem__(0, 1),
    "a tie to a tensor that is divided in another way": lambda metas: leaf(4)(metas)[3].__setitem__(0, 3),
    "a tie to half of a leaf": lambda metas: leaf(4)(metas)[3].__setitem__(1, 8),
    "a tie in another order": lambda metas: leaf(4)(metas)[3].__setitem__(2, [1, 7]),
    "a tie in steps of none": lambda metas: leaf(4)(metas)[3].__setitem__(2, [0, 0]),
    "a plain leaf that is tied to a tensor": lambda metas: leaf(0)(metas).append([2, 0, [1]]),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_is_refused(metas: list[Any], name: str) -> None:
    edited = copy.deepcopy(metas)
    WRONG[name](edited)
    with pytest.raises(CorruptFileError):
        read(edited)


@pytest.mark.parametrize("key", [True, 1.0])
def test_a_key_that_equals_another_one_is_refused(key: Any) -> None:
    root = flatten({1: torch.zeros(2), "y": torch.zeros(2)}).root
    assert isinstance(root, Branch)
    with pytest.raises(ValueError, match="repeated"):
        insert(root, [RankLocalTree((key,), 2, root.children[0])])
