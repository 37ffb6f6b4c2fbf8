"""Boxes that some ranks have saved come to those who want others: each element, and no other is touched."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from deeppart.comm import Comm
from deeppart.errors import FreedMemoryError
from deeppart.model import Box
from deeppart.recovery.saved import check_spans
from deeppart.recovery.tables import fetch_spans
from deeppart.state.pieces import piece_keys
from deeppart.state.restore.scatter import LiveBox, Scatter, Wanted
from tests.unit.comm.worlds import on_all, world
from tests.unit.recovery.opened import open_step
from tests.unit.sharded_states import piece, restore, rows, save

WHOLE = torch.arange(9 * 6 * 5).view(9, 6, 5)


def cut(box: Box, pieces: int, draw: random.Random) -> list[Box]:
    """A box in so many boxes."""
    found = [box]
    while len(found) < pieces:
        each = found.pop(max(range(len(found)), key=lambda place: found[place].elements))
        dimension = draw.choice([d for d, length in enumerate(each.sizes) if length > 1])
        at = draw.randint(1, each.sizes[dimension] - 1)
        for begin, length in ((0, at), (at, each.sizes[dimension] - at)):
            offset, sizes = list(each.offset), list(each.sizes)
            offset[dimension] += begin
            sizes[dimension] = length
            found.append(Box(tuple(offset), tuple(sizes)))
    return found


def random_states(draw: random.Random, global_state: dict[str, torch.Tensor], ranks: int, *, zero: bool) -> list[Any]:
    """A state for each rank, of tensors that are cut into as many boxes, of which a rank may have another's too."""
    states: list[dict[str, Any]] = [{} for _ in range(ranks)]
    for name, whole in global_state.items():
        boxes = cut(Box.whole(tuple(whole.shape)), draw.randint(1, ranks), draw)
        filled = torch.full_like(whole, -1) if zero else whole
        owners = list(range(ranks))
        draw.shuffle(owners)
        for rank, owner in enumerate(owners):
            states[rank][name] = piece(filled, boxes[owner % len(boxes)])
    return states


@pytest.mark.parametrize("seed", range(8))
def test_from_any_boxes_into_any_others(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    global_state = {"a": WHOLE, "b": WHOLE[:, :, :1].to(torch.bfloat16), "c": torch.arange(100_000.0).view(500, 200)}
    save(tmp_path, random_states(draw, global_state, draw.randint(1, 4), zero=False))
    live = random_states(draw, global_state, draw.randint(1, 4), zero=True)
    restore(tmp_path, live, on_nodes=bool(seed % 2))
    for state in live:
        for name, x in state.items():
            (offset,), (sizes,) = x.global_offsets, x.local_sizes
            assert torch.equal(x.as_subclass(torch.Tensor), global_state[name][Box(offset, sizes).slices()])


def brought(root: Path, comm: Comm, *, lose: int = -1, free: int = -1) -> Any:
    """Each rank asks for a column of the tensor; what it got, and what went wrong on it."""
    opened = open_step(root, comm, on_nodes=True)
    saved, rank = opened.saved, comm.rank
    column = Box((0, rank, 0), (9, 1, 5))
    live = torch.full(column.sizes, -1)
    (leaf,) = saved.structure.divisions
    sources = list(check_spans(saved, opened.tables, opened.recovered, rank).sources(leaf, column))
    wanted = piece_keys((each.leaf, each.number) for each in sources)
    tables = fetch_spans(opened.ranks, opened.tables, wanted, "fetching")
    delivery = replace(opened, tables=tables).delivery
    if lose == rank:
        opened.recovered.mine.clear()
    scatter = Scatter(
        Wanted(each, LiveBox(live, column), saved.structure.types[leaf].itemsize, "w") for each in sources
    )
    if free == rank:
        live.untyped_storage().resize_(0)
    return live, delivery.bring(scatter)


def on_three(root: Path, **how: int) -> list[Any]:
    with world(3) as comms:
        return on_all(3, lambda rank: brought(root, comms[rank], **how))


@pytest.fixture
def in_rows(tmp_path: Path) -> Path:
    save(tmp_path, [{"w": rows(WHOLE, rank, 3)} for rank in range(3)])
    return tmp_path


def test_each_asks_for_what_it_wants_and_no_more(in_rows: Path) -> None:
    for rank, (live, failure) in enumerate(on_three(in_rows)):
        assert failure is None and torch.equal(live, WHOLE[:, rank : rank + 1])


def test_memory_that_was_freed_is_that_ranks_failure_alone(in_rows: Path) -> None:
    """What it sends from then on is of no use, and nobody waits for it: the restore ends with its error."""
    found = on_three(in_rows, free=1)
    assert isinstance(found[1][1].error, FreedMemoryError)
    for rank in (0, 2):
        live, failure = found[rank]
        wanted = WHOLE[:, rank : rank + 1]
        assert failure is None and torch.equal(live[:3], wanted[:3]) and torch.equal(live[6:], wanted[6:])


def test_a_rank_that_cannot_give_what_it_has_goes_on_to_the_end(in_rows: Path) -> None:
    """The others do not wait for ever; the rank itself says what happened."""
    found = on_three(in_rows, lose=0)
    assert not any(isinstance(each, Exception) for each in found)
    assert isinstance(found[0][1].error, KeyError)
    for rank in (1, 2):
        live, failure = found[rank]
        assert failure is None and torch.equal(live[3:], WHOLE[3:, rank : rank + 1])
