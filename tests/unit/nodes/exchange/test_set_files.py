"""Which blocks of a parity set's files are good: damage in one leaves the others of use, and ends no rebuild."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from deeppart.comm import SingleComm, finish
from deeppart.nodes.exchange.set_files import ParitySetFiles, SetFiles, find_good_blocks
from deeppart.plan.restart import BlockFile, Rebuild
from tests.golden.make import PROTECTED as PARTS
from tests.unit.cli_support import flip
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


# --- what there is ----------------------------------------------------------------------------------------------------


def test_blocks_behind_the_end_are_nobodys(rebuild: Rebuild) -> None:
    entry = entry_of(rebuild)
    for place, part in enumerate(PARTS):
        for row in range(STRIPES.rows):
            for index in range(K):
                is_behind = STRIPES.start(row, index) >= len(part)
                assert entry.is_empty("data", place, row, index) is is_behind
                assert not entry.is_empty("parity", place, row, index)
    assert entry.is_empty("data", 2, 0, 0) and not entry.is_empty("data", 0, 0, 0)


# --- looking ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1])
def test_damage_in_a_part_costs_one_block(rebuild: Rebuild, tmp_path: Path, place: int) -> None:
    for offset in (0, 1023, 1024, 3000, len(PARTS[place]) - 1):
        flip(tmp_path / f"part-{place}", offset)
        (where,) = [
            (row, index)
            for row in range(STRIPES.rows)
            for index in range(K)
            if STRIPES.start(row, index) <= offset < STRIPES.start(row, index) + STRIPES.length(row)
        ]
        assert bad_blocks(looked_at(rebuild)) == {("data", place, 0, *where)}
        flip(tmp_path / f"part-{place}", offset)


def test_damage_in_parity_costs_one_block(rebuild: Rebuild, tmp_path: Path) -> None:
    for row in range(STRIPES.rows):
        for index in range(STRIPES.tolerate):
            flip(tmp_path / "parity-3", 4096 + STRIPES.parity_start(row, index) + 5)
            assert bad_blocks(looked_at(rebuild)) == {("parity", 3, 0, row, index)}
            flip(tmp_path / "parity-3", 4096 + STRIPES.parity_start(row, index) + 5)


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


def test_a_stripe_whose_parity_nobody_has_takes_no_part(rebuild: Rebuild) -> None:
    only = Rebuild(rebuild.identity, rebuild.data, rebuild.parity[2:3])
    entry = looked_at(only)
    kept = {STRIPES.kept_stripe(2, index) for index in range(STRIPES.tolerate)}
    assert entry.digests.keys() == kept and bits_of(entry, "parity", 2).all()
    for place in (0, 1):
        known = [STRIPES.stripe_of(place, index) in kept for index in range(K)]
        assert (bits_of(entry, "data", place) == known).all()


# --- choosing ---------------------------------------------------------------------------------------------------------


def test_of_several_copies_one_that_is_good_there(rebuild: Rebuild, tmp_path: Path) -> None:
    (tmp_path / "copy").write_bytes(PARTS[0])
    copies = Rebuild(rebuild.identity, (BlockFile(0, str(tmp_path / "copy"), (0,)),), ())
    flip(tmp_path / "part-0", 10)
    flip(tmp_path / "copy", 1024)
    flip(tmp_path / "part-0", STRIPES.start(1, 0))
    flip(tmp_path / "copy", STRIPES.start(1, 0))
    entry = looked_at(rebuild, copies)
    entry.doubtful.add(("data", 0))
    assert entry.which_is_good("data", 0, 0, 0) == 1 and entry.which_is_good("data", 0, 0, 1) == 0
    assert entry.which_is_good("data", 0, 1, 0) is None, "both are damaged there"
    assert entry.which_is_good("data", 0, 1, 1) == 0, "a doubtful file has been looked at"
    assert entry.which_is_good("data", 3, 0, 0) is None and entry.which_is_good("parity", 1, 0, 0) == 0
