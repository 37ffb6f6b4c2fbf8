"""Shards of all parts brought together: whole tensors in the structure, wherever ranks had what of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import CorruptFileError
from deeppart.model.boxes import Box
from deeppart.state.document.structure import Alias, SavedShard, Structure
from deeppart.state.document.whole import Wholes, gather_wholes, with_wholes
from deeppart.state.tree.paths import exact, readable
from tests.unit.part_documents import decoded, read_metas
from tests.unit.sharded_states import rows, save

WHOLE = torch.arange(7 * 4).view(7, 4)


def structures(root: Path, states: Sequence[Any]) -> tuple[list[Structure], Structure, Wholes]:
    """Of each rank; and as one rank restores it; and the whole tensors."""
    save(root, states)
    documents, of_ranks = decoded(read_metas(root))
    wholes = gather_wholes(of_ranks, [(each.trees, each.values) for each in documents], "here")
    return of_ranks, with_wholes(of_ranks[0], wholes), wholes


def names(structure: Structure) -> list[str]:
    return [readable(path) for path in structure.array_paths()]


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
