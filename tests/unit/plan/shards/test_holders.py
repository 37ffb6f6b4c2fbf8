"""What the ranks say that they hold of a tensor: brought together, or refused with the reason."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deeppart.model.boxes import Box
from deeppart.plan.shards import Claim, Verdict, judge
from tests.unit.plan.shards.partitions import partitions

KIND, SHAPE = "float32[4, 2]", (4, 2)
TOP, BOTTOM = Box((0, 0), (2, 2)), Box((2, 0), (2, 2))


def claim(*boxes: Box, ties: tuple[str, ...] | None = None, kind: str = KIND) -> Claim:
    return Claim(kind, SHAPE, boxes, ("",) * len(boxes) if ties is None else ties)


def fault(claims: dict[int, Claim]) -> str:
    found = judge("model/w", claims)
    assert isinstance(found, str)
    return found


@given(partitions(), st.data())
def test_each_is_told_who_has_the_same(drawn: tuple[tuple[int, ...], list[Box]], data: st.DataObject) -> None:
    shape, boxes = drawn
    who = [data.draw(st.sets(st.integers(0, 6), min_size=1, max_size=4)) for _ in boxes]
    claims = {}
    for rank in range(7):
        mine = tuple(box for box, ranks in zip(boxes, who, strict=True) if rank in ranks)
        claims[rank] = Claim("k", shape, mine, ("",) * len(mine))
    found = judge("x", claims)
    assert isinstance(found, dict) and found.keys() == claims.keys()
    of_box = dict(zip(boxes, who, strict=True))
    for rank, verdict in found.items():
        assert verdict.holders == tuple(tuple(sorted(of_box[box])) for box in claims[rank].boxes)
        assert not any(verdict.tied) and len(verdict.tied) == len(verdict.holders)


def test_a_rank_that_has_nothing_of_it_is_told_nothing() -> None:
    found = judge("x", {3: claim(), 5: claim(BOTTOM, TOP)})
    assert found == {3: Verdict((), ()), 5: Verdict(((5,), (5,)), (False, False))}


def test_it_is_tied_if_it_is_so_on_all_that_have_it() -> None:
    here = claim(TOP, BOTTOM, ties=("head [0:2]", "head [2:4]"))
    there = claim(BOTTOM, ties=("head [2:4]",))
    alike = judge("x", {0: here, 1: there})
    assert isinstance(alike, dict) and alike[0].tied == (True, True) and alike[1].tied == (True,)
    for other in ("", "tail [2:4]"):
        apart = judge("x", {0: here, 1: claim(BOTTOM, ties=(other,))})
        assert isinstance(apart, dict) and apart[0].tied == (True, False) and apart[1].tied == (False,)


def test_what_is_wrong_is_said_with_who_has_it() -> None:
    assert fault({0: claim(TOP), 2: claim(BOTTOM, kind="float64[4, 2]")}) == (
        "model/w is float32[4, 2] on rank 0, float64[4, 2] on rank 2"
    )
    outside = fault({0: claim(TOP), 1: claim(Box((3, 0), (2, 2)))})
    assert outside == "model/w, float32[4, 2]: rank 1 has [3:5, 0:2] of it, which lies outside"
    assert fault({1: claim(TOP, TOP)}).endswith("rank 1 has one shard of it twice")
    gap = fault({0: claim(TOP), 1: claim(TOP), 4: claim()})
    assert gap == "model/w, float32[4, 2]: of 8 elements, 4 are in a shard ([0:2, 0:2] on rank 0)"
    overlap = fault({0: claim(TOP, BOTTOM), 1: claim(Box((1, 0), (2, 2)))})
    assert "overlap" in overlap and "[1:3, 0:2] on rank 1" in overlap
    assert fault({0: claim(), 1: claim()}).endswith("0 are in a shard (no rank has any)")


def test_of_many_shards_six_are_shown() -> None:
    rows = [Box((row, 0), (1, 1)) for row in range(9)]
    found = judge("x", {rank: Claim("k", (10, 1), (row,), ("",)) for rank, row in enumerate(rows)})
    assert isinstance(found, str) and found.count(" on rank ") == 6 and found.endswith(", ...)")
