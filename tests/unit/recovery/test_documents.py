"""The documents of a step's parts: one structure for all, what each rank had of its own, and damage in any of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deeppart.comm import Comm
from deeppart.errors import CorruptFileError
from tests.fuzz.images import PartImage
from tests.unit.cli_support import forge
from tests.unit.recovery.opened import edit_parts, open_step
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
        del part.meta["leaves"]["3"]


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
        open_step(root)
    text = str(caught.value)
    assert DAMAGE[edit] in text and "restore of step 4" in text


@pytest.mark.parametrize("part", [0, 1, 2])
def test_it_is_told_on_all_ranks(root: Path, part: int) -> None:
    """Also on those that have read other parts, or none."""

    def harm(rank: int, image: PartImage) -> None:
        if rank == part:
            image.meta["leaves"] = {}

    def told(comm: Comm) -> str:
        with pytest.raises(CorruptFileError) as caught:
            open_step(root, comm)
        return str(caught.value)

    edit_parts(root, harm)
    for text in on_ranks(4, told):
        assert f"part {part}" in text and "does not fit the structure document" in text
