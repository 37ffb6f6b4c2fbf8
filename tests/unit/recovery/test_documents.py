"""The documents of a step's parts: one structure for all, what each rank had of its own, and damage in any of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.comm import Comm
from deeppart.errors import CorruptFileError
from deeppart.recovery.saved import content_at, rank_local_paths
from deeppart.state.document.global_state import GlobalState
from deeppart.state.paths.keys import Path as Keys
from deeppart.state.tensors.leaves import Array
from deeppart.testing.states import difference
from tests.fuzz.images import PartImage
from tests.unit.cli_support import forge
from tests.unit.recovery.opened import documents_of, edit_parts, open_step
from tests.unit.sharded_states import on_ranks


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A step of three ranks; ``rng`` and ``position`` are each rank's own."""
    forge(tmp_path / "ckpt", 4)
    return tmp_path / "ckpt"


def _without_structure(rank: int, part: PartImage) -> None:
    part.meta.pop("structure", None)


def _no_json(rank: int, part: PartImage) -> None:
    part.meta = b"{" if rank == 0 else part.meta


def _last_is_no_document(rank: int, part: PartImage) -> None:
    part.meta = part.meta if rank < 2 else []


def _last_lacks_a_leaf(rank: int, part: PartImage) -> None:
    if rank == 2:
        part.meta["leaves"] = {}


def _first_lacks_a_value(rank: int, part: PartImage) -> None:
    if rank == 0:
        part.meta["values"] = {}


def _another_leaf_is_its_own(rank: int, part: PartImage) -> None:
    if rank == 1:
        part.meta["leaves"]["0"] = part.meta["leaves"].pop("2")


DAMAGE = {
    _without_structure: "part 0 carries no structure",
    _no_json: "part 0",
    _last_is_no_document: "part 2",
    _last_lacks_a_leaf: "part 2",
    _first_lacks_a_value: "part 0",
    _another_leaf_is_its_own: "part 1",
}


@pytest.mark.parametrize("edit", DAMAGE, ids=lambda edit: edit.__name__)
def test_damage_is_named_by_step_and_part(root: Path, edit: Any) -> None:
    edit_parts(root, edit)
    with pytest.raises(CorruptFileError) as caught:
        open_step(root).documents()
    text = str(caught.value)
    assert DAMAGE[edit] in text and "restore of step 4" in text


@pytest.mark.parametrize("part", [0, 1, 2])
def test_it_is_told_on_all_ranks(root: Path, part: int) -> None:
    """Also on those that have read other parts, or none."""

    def harm(rank: int, image: PartImage) -> None:
        if rank == part:
            image.meta["leaves"] = {}

    def told(comm: Comm) -> str:
        opened = open_step(root, comm)
        with pytest.raises(CorruptFileError) as caught:
            opened.documents()
        return str(caught.value)

    edit_parts(root, harm)
    for text in on_ranks(4, told):
        assert f"part {part}" in text and "does not fit the structure document" in text


# --- what stands apart ------------------------------------------------------------------------------------------------

CACHE, ITEM = ("cache",), ("items", 1)
VECTOR = torch.arange(6.0)
STATES: list[dict[str, Any]] = [
    {"cache": {"x": VECTOR, "tail": VECTOR[4:], "names": ["a", ("b", 1)]}, "items": ["u", None], "w": torch.ones(2)},
    {"items": ["u", [np.arange(3), "mine"]], "w": torch.ones(2)},
    {"cache": 7, "items": ["u", {}], "w": torch.ones(2)},
]


def contents(path: Keys) -> list[Any]:
    """What each rank had there, built of arrays that hold its bytes."""
    documents = documents_of(STATES, [CACHE, ITEM])
    found = []
    for rank, document in enumerate(documents.own):
        structure = document.complete(documents.structure, "here")
        paths = structure.array_paths()
        arrays: dict[int, Array] = {}
        for index in np.flatnonzero(structure.per_rank).tolist():
            if index not in structure.aliases:
                arrays[index] = at(STATES[rank], paths[index])
        found.append(content_at(document, structure, arrays, path))
    return found


def at(state: Any, path: Keys) -> Any:
    for key in path:
        state = state[key]
    return state


def test_what_each_rank_had_where_it_stands_apart() -> None:
    expected = [STATES[0]["cache"], None, 7]
    found = contents(CACHE)
    assert difference(expected, found) is None
    assert found[0]["tail"].data_ptr() == found[0]["x"][4:].data_ptr(), "tied as it was"
    assert difference([None, STATES[1]["items"][1], {}], contents(ITEM)) is None


def test_paths_at_which_any_rank_has_something_are_named_once() -> None:
    documents = documents_of(STATES, [CACHE, ITEM])
    assert sorted((tree.path for tree in rank_local_paths(documents.own, GlobalState({}))), key=str) == [CACHE, ITEM]
    assert [tree.path for tree in rank_local_paths(documents.own[1:2], GlobalState({}))] == [ITEM]
    assert (
        rank_local_paths([], GlobalState({})) == rank_local_paths(documents_of([{"w": 1}]).own, GlobalState({})) == []
    )


def test_keys_of_other_types_are_other_paths() -> None:
    documents = documents_of([{1: "a", "w": 0}, {True: "b", "w": 0}], [(1,), (True,)])
    assert [list(map(type, tree.path)) for tree in rank_local_paths(documents.own, GlobalState({}))] == [[int], [bool]]
