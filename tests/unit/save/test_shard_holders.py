"""Ranks find out who has the same shards, and are told together what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deeppart.comm.base import Comm
from deeppart.errors import RemoteRankError, StructureMismatchError
from deeppart.model.boxes import Box
from deeppart.save.shard_holders import Holders, find_holders
from deeppart.state.compare.state_layout import derive
from deeppart.state.tree.flatten import flatten
from deeppart.state.tree.globs import Replication
from deeppart.state.tree.paths import readable
from tests.unit.comm.worlds import on_all, world
from tests.unit.sharded_states import piece, rows

WITHIN = ("checkpoint(step=1)", 60.0)
WHOLE = torch.arange(8.0 * 3).view(8, 3)


def found(states: list[Any]) -> list[Any]:
    """The holders as each rank is told, or its error."""

    def find(comm: Comm) -> Holders:
        flat = flatten(states[comm.rank])
        return find_holders(comm, flat, derive(flat, Replication("auto")), WITHIN)

    with world(len(states)) as comms:
        return on_all(len(states), lambda rank: find(comms[rank]))


def by_path(state: Any, holders: Holders) -> dict[str, tuple[int, ...]]:
    flat = flatten(state)
    return {readable(flat.arrays[number].path): ranks for number, ranks in holders.ranks.items()}


def test_each_is_told_who_else_has_it() -> None:
    states: list[dict[str, Any]] = [
        {
            "pairs": rows(WHOLE, rank // 2, 2),
            "copies": piece(WHOLE, Box.whole((8, 3))),
            "rows": rows(WHOLE, rank, 4),
            "one": piece(WHOLE, Box.whole((8, 3)) if rank == 2 else None),
            "plain": torch.ones(3),
        }
        for rank in range(4)
    ]
    for rank, holders in enumerate(found(states)):
        pair = (0, 1) if rank < 2 else (2, 3)
        expected: dict[str, tuple[int, ...]] = {"pairs": pair, "copies": (0, 1, 2, 3), "rows": (rank,)}
        assert by_path(states[rank], holders) == expected | ({"one": (2,)} if rank == 2 else {})
        assert holders.untied == ()


def test_what_some_ranks_do_not_know_of_is_no_fault() -> None:
    """Pipeline stages have other tensors in their states."""
    states: list[dict[str, Any]] = [{"first": rows(WHOLE, rank, 2)} for rank in range(2)]
    states += [{"second": rows(WHOLE, 0, 1)}, {}]
    told = found(states)
    assert [by_path(*pair) for pair in zip(states, told, strict=True)] == [
        {"first": (0,)}, {"first": (1,)}, {"second": (2,)}, {},
    ]  # fmt: skip


def test_ties_that_not_all_have_are_told() -> None:
    def state(tied: bool) -> dict[str, Any]:
        w = piece(WHOLE, Box.whole((8, 3)))
        return {"embed": w, "head": w if tied else piece(WHOLE, Box.whole((8, 3)))}

    assert [len(each.untied) for each in found([state(True), state(True)])] == [0, 0]
    assert [len(each.untied) for each in found([state(True), state(False)])] == [1, 0]


def box(*numbers: int) -> Any:
    begin, stop = numbers
    return piece(WHOLE, Box((begin, 0), (stop - begin, 3)))


WRONG: dict[str, tuple[list[Any], str]] = {
    "a gap": ([box(0, 3), box(4, 8)], "of 24 elements, 21 are in a shard"),
    "an overlap": ([box(0, 4), box(3, 8)], r"\[0:4, 0:3\] and \[3:8, 0:3\] overlap"),
    "another dtype": ([box(0, 4), rows(WHOLE.double(), 1, 2)], "float32.* on rank 0, float64.* on rank 1"),
    "another shape": ([box(0, 4), rows(WHOLE[:, :2], 1, 2)], r"\[8, 3\] on rank 0, float32\[8, 2\] on rank 1"),
    "other dimensions": ([box(0, 4), rows(WHOLE[:, :, None], 1, 2)], r"\[8, 3\] on rank 0, float32\[8, 3, 1\]"),
    "none has any": ([piece(WHOLE, None), piece(WHOLE, None)], "no rank has any"),
}


@pytest.mark.parametrize("name", WRONG)
def test_shards_that_are_not_the_tensor_are_an_error_on_every_rank(name: str) -> None:
    pieces, text = WRONG[name]
    told = found([{"layer": {"w": each}, "sound": rows(WHOLE, rank, 2)} for rank, each in enumerate(pieces)])
    assert sorted(type(error).__name__ for error in told) == ["RemoteRankError", "StructureMismatchError"]
    (error,) = [each for each in told if isinstance(each, StructureMismatchError)]
    with pytest.raises(StructureMismatchError, match=text) as caught:
        raise error
    assert "layer/w" in str(caught.value) and "nothing was saved" in str(caught.value)
    assert "sound" not in str(caught.value)


def test_of_many_tensors_that_are_wrong_some_are_named() -> None:
    told = found([{f"w{number}": box(0, 3) for number in range(30)}])
    assert str(told[0]).count("of 24 elements") == 4 and "(30 in all)" in str(told[0])
    assert not isinstance(told[0], RemoteRankError)
