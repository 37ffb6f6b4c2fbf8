"""What spans hold of pieces, against counting byte by byte; and what is refused of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from deeppart.errors import CorruptFileError
from deeppart.model import Box, Division
from deeppart.part import RANK_TABLE, SPAN_DTYPE
from deeppart.part.format import SHARED_TABLE
from deeppart.state.document.structure import Structure
from deeppart.state.pieces import (
    ANY_PART,
    EXTRA,
    GAP,
    Expected,
    Held,
    Keepers,
    Source,
    find_faults,
    keys_of,
    own_faults,
    refuse,
)
from deeppart.state.tensors.leaves import LeafType
from deeppart.state.tree import ArrayLeaf, Branch

Row = tuple[int, int, int, int, int]
#: Five columns in a grid of three boxes; and a division that is no grid.
GRID = Division.of([Box((0,), (2,)), Box((2,), (2,)), Box((4,), (1,))], (5,))
ODD = Division.of([Box((0, 0), (2, 1)), Box((0, 1), (1, 2)), Box((1, 1), (1, 2))], (2, 3))


def spans(*rows: Row) -> npt.NDArray[np.void]:
    """(table, leaf, box, start, length)"""
    table = np.zeros(len(rows), dtype=SPAN_DTYPE)
    for place, name in enumerate(("table", "leaf", "box", "start", "length")):
        table[name] = [row[place] for row in rows]
    return table


@pytest.mark.parametrize("is_whole", [True, False])
def test_faults_are_what_counting_finds(is_whole: bool) -> None:
    """Random spans: gaps and extras are exactly the bytes held by none, or by one too many."""
    random = np.random.default_rng(1)
    for _ in range(400):
        sizes = random.integers(0, 12, size=4).astype(np.uint64)
        sizes[2:] = 0
        tensors = {leaf: (cut, 2, range(len(cut) * is_whole)) for leaf, cut in ((2, GRID), (3, ODD))}
        apart = {2: [0]} if random.random() < 0.3 else {}
        expected = Expected(sizes, tensors, apart)
        rows: list[Row] = [
            (0, *each) for each in random.integers([0, 0, 0, 1], [5, 4, 6, 6], (random.integers(0, 20), 4)).tolist()
        ]
        held = np.zeros((5, 4, 12), dtype=int)
        for _, leaf, box, start, length in rows:
            held[leaf, box, start : start + length] += 1
        wanted = np.zeros_like(held)
        for leaf in range(2):
            wanted[leaf, 0, : sizes[leaf]] = 1
        for leaf, (division, itemsize, _) in tensors.items():
            for box in range(len(division)):
                is_wanted = box not in apart.get(leaf, ()) and (is_whole or held[leaf, box].any())
                wanted[leaf, box, : division.box(box).elements * itemsize * is_wanted] = 1
        found = {GAP: np.zeros_like(held), EXTRA: np.zeros_like(held)}
        table = spans(*rows)
        for fault in find_faults(expected, [table[: len(table) // 2], table[len(table) // 2 :]]):
            found[fault.kind][fault.leaf, fault.box, fault.start : fault.stop] += 1
        assert np.array_equal(found[GAP], (wanted > 0) & (held == 0))
        assert np.array_equal(found[EXTRA] > 0, held > wanted)


def test_boxes_that_a_document_claims_cost_nothing() -> None:
    """Of 2^24 boxes that no part holds, some are named."""
    huge = Division((1 << 24,), (range(0, 1 << 24, 1),))
    faults = find_faults(
        Expected(np.zeros(1, dtype=np.uint64), {0: (huge, 4, range(1 << 24))}), [spans((0, 0, 7, 0, 4))]
    )
    assert 0 < len(faults) < 100 and {fault.kind for fault in faults} == {GAP}


TYPES = (LeafType("torch", "uint8", (40,)), LeafType("torch", "int32", (5,)), LeafType("torch", "int32", (2, 3)))
STRUCTURE = Structure(
    Branch("list", (0, 1, 2), (ArrayLeaf(0), ArrayLeaf(1), ArrayLeaf(2))),
    dict(enumerate(TYPES)),
    {},
    np.zeros(3, dtype=np.bool_),
    divisions={1: GRID, 2: ODD},
)
Parts = list[list[Row]]


def sound() -> Parts:
    """Two parts have half of each; of the first box of the odd tensor, each rank had other bytes."""
    first: list[Row] = [(0, 0, 0, 0, 40), (0, 1, 0, 4, 4), (0, 1, 1, 0, 8), (1, 2, 0, 0, 8), (0, 2, 1, 0, 8)]
    return [first, [(0, 1, 0, 0, 4), (0, 1, 2, 0, 4), (1, 2, 0, 4, 4), (1, 2, 0, 0, 4), (0, 2, 2, 0, 8)]]


def check(parts: Parts) -> Held:
    tables = {part: spans(*rows) for part, rows in enumerate(parts)}
    for part, table in tables.items():
        refuse(own_faults(STRUCTURE, {}, table), None, STRUCTURE, {}, f"step 4, part {part}")
    held = Held(STRUCTURE, tables)
    refuse(held.faults, None, STRUCTURE, {}, "step 4")
    return held


def test_sound_parts_and_where_a_rank_gets_its_bytes() -> None:
    held = check(sound())
    assert held.own == {2: {0: [0, 1]}}
    wanted = Box((0, 0), (2, 2))
    for rank, part in ((0, 0), (1, 1), (7, 0), (None, 0)):
        found = list(held.sources(2, wanted, rank))
        others = [Source(ANY_PART, 2, number, ODD.box(number)) for number in (1, 2)]
        assert found == [Source(part, 2, 0, ODD.box(0)), *others]
    assert [each.number for each in held.sources(1, Box((1,), (2,)))] == [0, 1]


WRONG: dict[str, tuple[Callable[[Parts], Any], str]] = {
    "a gap": (lambda parts: parts[0].pop(1), "bytes 0 to 8 of box 0, [0:2], of leaf 1"),
    "nothing of a box": (lambda parts: parts[1].pop(1), "bytes 0 to 4 of box 2, [4:5], of leaf 1"),
    "twice": (lambda parts: parts[1].append((SHARED_TABLE, 1, 0, 4, 4)), "once too often"),
    "an overlap": (lambda parts: parts[1].append((SHARED_TABLE, 0, 0, 30, 10)), "bytes 0 to 40 of leaf 0"),
    "beyond the end": (lambda parts: parts[1].append((SHARED_TABLE, 1, 2, 4, 4)), "bytes 4 to 8 once too often"),
    "a box that is not there": (lambda parts: parts[1].append((SHARED_TABLE, 1, 3, 0, 4)), "box 3"),
    "of all and of one": (lambda parts: parts[1].append((SHARED_TABLE, 2, 0, 0, 8)), "box 0, [0:2, 0:1], of leaf 2"),
    "half of its own": (lambda parts: parts[1].pop(2), "step 4, part 1"),
    "in the other table": (lambda parts: parts[1].__setitem__(0, (RANK_TABLE, 1, 0, 0, 4)), "part 1"),
    "no such leaf": (lambda parts: parts[1].append((SHARED_TABLE, 3, 0, 0, 4)), "document lacks"),
}


@pytest.mark.parametrize("name", WRONG)
def test_any_other_bytes_are_refused(name: str) -> None:
    edit, text = WRONG[name]
    parts = sound()
    edit(parts)
    with pytest.raises(CorruptFileError) as caught:
        check(parts)
    assert text in str(caught.value) and "step 4" in str(caught.value)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("name", ["sound", *WRONG])
def test_ranks_find_each_fault_once_between_them(name: str, ranks: int) -> None:
    """Each in the boxes that it keeps, and in its share of the other leaves."""
    parts = sound()
    WRONG.get(name, (list, ""))[0](parts)
    tables = {part: spans(*rows) for part, rows in enumerate(parts)}
    keepers = Keepers.of(STRUCTURE, ranks)
    kept = np.concatenate([table[keepers.are_kept(table)] for table in tables.values()])
    keeper = keepers.ranks_of(keys_of(kept))
    held = Held(STRUCTURE, {part: table[~keepers.are_kept(table)] for part, table in tables.items()})
    found = [fault for rank in range(ranks) for fault in held.faults_of(rank, keepers, [kept[keeper == rank]])]
    assert sorted(found) == Held(STRUCTURE, tables).faults


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8, 300])
def test_every_box_has_one_keeper(ranks: int) -> None:
    counts = np.array([0, 1, 2, 3, 7, 8, 100], dtype=np.int64)
    keepers = Keepers(ranks, counts)
    for leaf, count in enumerate(counts.tolist()):
        boxes = [[*keepers.kept_by(rank, leaf)] for rank in range(ranks)] if count else []
        assert sorted(box for mine in boxes for box in mine) == [*range(count)]
        assert max(map(len, boxes), default=0) <= -(-count // ranks)
        for rank, mine in enumerate(boxes):
            keys = np.array([(leaf << 32) + box for box in mine], dtype=np.uint64)
            assert keepers.are_boxes(keys).all() and keepers.ranks_of(keys).tolist() == [rank] * len(mine)
