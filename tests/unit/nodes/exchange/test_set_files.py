"""Which blocks of a parity set's files are good: damage in one leaves the others of use, and ends no rebuild."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from deeppart.comm import SingleComm, finish
from deeppart.nodes.exchange.set_files import ParitySetFiles, SetFiles, find_good_blocks
from deeppart.plan.restart import Rebuild
from tests.golden.make import PROTECTED as PARTS
from tests.unit.nodes.exchange.parity_files import NAME, STRIPES, write_all, write_parity

K = STRIPES.data_blocks


@pytest.fixture
def rebuild(tmp_path: Path) -> Rebuild:
    return write_all(tmp_path)


def entry_of(rebuild: Rebuild, *others: Rebuild) -> ParitySetFiles:
    entry = ParitySetFiles(rebuild.identity)
    for each in (rebuild, *others):
        entry.add(each)
    return entry


def looked_at(rebuild: Rebuild, *others: Rebuild) -> ParitySetFiles:
    """The set, when one rank that reads all has looked at every block."""
    entry, files = entry_of(rebuild, *others), SetFiles(0)
    try:
        finish(SingleComm(), find_good_blocks(SingleComm(), files, {NAME: entry}), "looking", 20.0)
    finally:
        files.close()
    return entry


def bad_blocks(entry: ParitySetFiles) -> set[tuple[str, int, int, int, int]]:
    """(kind, place, which file, row, index)."""
    assert entry.good is not None
    return {(*file, int(row), int(index)) for file, bits in entry.good.items() for row, index in np.argwhere(~bits)}


# --- looking ----------------------------------------------------------------------------------------------------------


def bits_of(entry: ParitySetFiles, kind: str, place: int, which: int = 0) -> npt.NDArray[np.bool_]:
    assert entry.good is not None
    return entry.good[kind, place, which]


@pytest.mark.parametrize("damage", ["missing", "cut", "a directory", "garbage"])
def test_parity_that_cannot_be_used_is_left_out(rebuild: Rebuild, tmp_path: Path, damage: str) -> None:
    """The rest goes on: nothing is raised, the other ranks wait to hear."""
    path = tmp_path / "parity-0"
    data = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(data[:-1])
    elif damage == "a directory":
        path.mkdir()
    elif damage == "garbage":
        path.write_bytes(os.urandom(len(data)))
    entry = looked_at(rebuild)
    assert not bits_of(entry, "parity", 0).any()
    assert bad_blocks(entry) == {("parity", 0, 0, row, index) for row in range(STRIPES.rows) for index in range(2)}
    assert entry.digests.keys() == set(range(4)), "others have it too"


@pytest.mark.parametrize("of", [{"place": 1}, {"sequence": 8}, {"step": 1201}], ids=["a share", "a save", "a step"])
def test_what_another_share_or_set_says_of_digests_is_not_believed(
    rebuild: Rebuild, tmp_path: Path, of: dict[str, int]
) -> None:
    write_parity(tmp_path / "parity-0", **{"place": 0, **of})
    only = Rebuild(rebuild.identity, rebuild.data, rebuild.parity[:1])
    entry = looked_at(only)
    assert entry.digests == {}
    assert not any(bits_of(entry, kind, piece.place).any() for kind, _, piece in entry.pieces())


def test_a_part_that_is_missing_or_shorter(rebuild: Rebuild, tmp_path: Path) -> None:
    (tmp_path / "part-0").unlink()
    (tmp_path / "part-1").write_bytes(PARTS[1][:2048])
    entry = looked_at(rebuild)
    empty = np.array([[entry.is_empty("data", 0, row, index) for index in range(K)] for row in range(STRIPES.rows)])
    assert (bits_of(entry, "data", 0) == empty).all(), "what nobody has to read is zeros"
    left = [[STRIPES.start(row, index) + STRIPES.length(row) <= 2048 for index in range(K)] for row in range(3)]
    beyond = [[entry.is_empty("data", 1, row, index) for index in range(K)] for row in range(STRIPES.rows)]
    assert (bits_of(entry, "data", 1) == (np.array(left) | np.array(beyond))).all()
