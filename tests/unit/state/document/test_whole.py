"""Shards of all parts brought together: whole tensors in the structure, wherever ranks had what of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import CorruptFileError
from deeppart.model.boxes import Box
from deeppart.state.document.structure import Alias, SavedBranch, SavedShard, Structure
from deeppart.state.document.whole import Wholes, gather_wholes, with_wholes
from deeppart.state.tree.paths import exact, readable
from tests.unit.part_documents import decoded, read_metas
from tests.unit.sharded_states import piece, rows, save

WHOLE = torch.arange(7 * 4).view(7, 4)


def structures(root: Path, states: Sequence[Any]) -> tuple[list[Structure], Structure, Wholes]:
    """Of each rank; and as one rank restores it; and the whole tensors."""
    save(root, states)
    documents, of_ranks = decoded(read_metas(root))
    wholes = gather_wholes(of_ranks, [(each.trees, each.values) for each in documents], "here")
    return of_ranks, with_wholes(of_ranks[0], wholes), wholes


def names(structure: Structure) -> list[str]:
    return [readable(path) for path in structure.array_paths()]


def test_tensors_stand_where_their_shards_were_behind_all_leaves(tmp_path: Path) -> None:
    states = [{"m": [rows(WHOLE, rank, 3), 5], "a": torch.ones(3)} for rank in range(3)]
    of_ranks, structure, wholes = structures(tmp_path, states)
    assert names(structure) == ["a", "(root)", "m/0"], "the second is rank 0's shard, which is in no tree any more"
    assert names(of_ranks[0]) == ["a", "m/0"]
    assert [kind.shape for kind in structure.types] == [(3,), (3, 4), (7, 4)]
    assert structure.per_rank.tolist() == [False, True, False]
    assert [readable(path) for path, _ in structure.walk()] == ["m/0", "m/1", "a"], "in the order of the dict"
    (tensor,) = wholes.tensors.values()
    assert [(each.part, each.leaf, str(each.box)) for each in tensor.sources] == [
        (0, 1, "[0:3, 0:4]"), (1, 1, "[3:6, 0:4]"), (2, 1, "[6:7, 0:4]"),
    ]  # fmt: skip
    assert (tensor.name, tensor.known_to, tensor.tied_to) == ("m/0", 3, None)
    wholes.check("here")
    assert not structure.shards and not structure.sharded and len(of_ranks[2].shard_leaves()) == 1


def test_equal_shards_are_one_box_of_several_parts(tmp_path: Path) -> None:
    states = [{"w": rows(WHOLE, rank // 2, 2)} for rank in range(4)]
    _, _, wholes = structures(tmp_path, states)
    (tensor,) = wholes.tensors.values()
    assert len(tensor.sources) == 4 and [str(box) for box in tensor.boxes()] == ["[0:4, 0:4]", "[4:7, 0:4]"]
    wholes.check("here")


def test_what_only_other_ranks_have_is_part_of_it(tmp_path: Path) -> None:
    """Pipeline stages: under a key that rank 0 lacks, two ranks have other layers, and in one place the same key."""
    alone = [piece(WHOLE + step, Box.whole((7, 4))) for step in range(4)]
    states: list[dict[str, Any]] = [
        {"embed": alone[0], "state": {"n": 1}},
        {"layers": {"1": {"w": alone[1]}}, "state": {"n": 1}},
        {"layers": {"2": {"w": alone[2]}, "1": {"b": alone[3]}}, "state": {"n": 1}},
    ]
    of_ranks, structure, wholes = structures(tmp_path, states)
    paths = [("embed",), ("layers", "1", "w"), ("layers", "1", "b"), ("layers", "2", "w")]
    assert set(wholes.tensors) == set(map(exact, paths))
    assert {tensor.known_to for tensor in wholes.tensors.values()} == {1}
    numbered = {exact(path) for path in structure.array_paths()[len(of_ranks[0].types) :]}
    assert numbered == set(wholes.tensors), "each has its place in the tree"
    for rank in range(3):
        loaded = deeppart.load(tmp_path, rank=rank)
        assert loaded["layers"].keys() == {"1", "2"} and loaded["layers"]["1"].keys() == {"w", "b"}
        assert torch.equal(loaded["layers"]["1"]["b"], WHOLE + 3) and torch.equal(loaded["embed"], WHOLE)


def test_a_tree_with_anything_else_in_it_stays_its_ranks_own(tmp_path: Path) -> None:
    states: list[dict[str, Any]] = [{"x": rows(WHOLE, rank, 2)} for rank in range(2)]
    states[1]["more"] = {"w": piece(WHOLE, Box.whole((7, 4))), "steps": 3, "plain": np.ones(2)}
    _, structure, wholes = structures(tmp_path, states)
    assert set(wholes.tensors) == {exact(("x",)), exact(("more", "w"))}
    assert isinstance(structure.tree, SavedBranch) and structure.tree.keys == ("x",)
    assert deeppart.load(tmp_path, rank=0).keys() == {"x"}
    assert torch.equal(deeppart.load(tmp_path, rank=1)["more"]["w"], WHOLE)
    assert wholes.parts == ()


def test_tied_tensors_are_saved_once_and_stay_tied(tmp_path: Path) -> None:
    states = []
    for rank in range(2):
        mine = rows(WHOLE, rank, 2)
        states.append({"head": mine, "embed": mine})
    _, structure, wholes = structures(tmp_path, states)
    owner, tied = (wholes.tensors[exact((name,))] for name in ("embed", "head"))
    assert tied.tied_to == exact(("embed",)) and owner.tied_to is None
    assert [(each.part, each.leaf, each.box) for each in tied.sources] == [
        (each.part, each.leaf, each.box) for each in owner.sources
    ]
    assert list(structure.aliases.values())[-1] == Alias(names(structure).index("embed", 2), 0, (4, 1))
    loaded = deeppart.load(tmp_path)
    assert loaded["head"].data_ptr() == loaded["embed"].data_ptr() and torch.equal(loaded["head"], WHOLE)


def test_those_that_are_tied_on_some_ranks_only_are_saved_for_themselves(tmp_path: Path) -> None:
    first, second = rows(WHOLE, 0, 2), rows(WHOLE, 1, 2)
    states = [{"head": first, "embed": first}, {"head": second, "embed": rows(WHOLE + 1, 1, 2)}]
    _, _, wholes = structures(tmp_path, states)
    wholes.check("here")
    assert [tensor.tied_to for tensor in wholes.tensors.values()] == [None, None]
    loaded = deeppart.load(tmp_path)
    assert loaded["head"].data_ptr() != loaded["embed"].data_ptr()
    assert torch.equal(loaded["head"], WHOLE)
    assert torch.equal(loaded["embed"], torch.cat([WHOLE[:4], WHOLE[4:] + 1]))


def test_parts_that_call_other_tensors_by_one_path_are_refused(tmp_path: Path) -> None:
    of_ranks, _, _ = structures(tmp_path, [{"w": rows(WHOLE, rank, 2)} for rank in range(2)])
    other = replace(of_ranks[1].sharded[0], dtype="float64")
    with pytest.raises(CorruptFileError, match="different tensors at one path") as caught:
        gather_wholes([of_ranks[0], replace(of_ranks[1], sharded=(other,))], [], "step 1")
    assert "part 1, path w" in str(caught.value) and "int64[7, 4]" in str(caught.value)


@pytest.mark.parametrize("boxes", [[], [Box((4, 0), (2, 4))], [Box((3, 0), (3, 4)), Box((6, 0), (1, 4))]])
def test_shards_that_are_not_the_whole_are_refused(tmp_path: Path, boxes: list[Box]) -> None:
    of_ranks, _, _ = structures(tmp_path, [{"w": rows(WHOLE, rank, 2)} for rank in range(2)])
    shards = {0: tuple(SavedShard(number, box) for number, box in enumerate(boxes))}
    wholes = gather_wholes([of_ranks[0], replace(of_ranks[1], shards=shards)], [], "step 1")
    with pytest.raises(CorruptFileError, match="every element of a sharded tensor exactly once") as caught:
        wholes.check("step 1")
    assert "all of w, int64[7, 4]" in str(caught.value)


def test_without_sharded_tensors_nothing_changes(tmp_path: Path) -> None:
    of_ranks, structure, wholes = structures(tmp_path, [{"a": torch.ones(2)}] * 2)
    assert structure is of_ranks[0] and not wholes.tensors
