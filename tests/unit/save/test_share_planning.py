"""Shares of ranks that hold shards of tensors: who holds what, every byte of a shard once, equal ones shared out."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest
import torch

from deeppart.comm import Comm, SingleComm
from deeppart.model import Box
from deeppart.save import share_planning
from deeppart.save.share_planning import find_holders, plan_share
from deeppart.state.capture.layout import SHARED, ShareLayout
from deeppart.state.compare import derive
from deeppart.state.paths.globs import Replication
from deeppart.state.paths.keys import readable
from deeppart.state.tree.flat import FlatState, Holder
from deeppart.state.tree.flattening import flatten
from tests.unit.comm.worlds import on_all, world
from tests.unit.plan.shard_partitions import halves
from tests.unit.sharded_states import piece

WITHIN = ("checkpoint(step=1)", 60.0)
Share = tuple[FlatState, ShareLayout]


def planned(states: list[Any], kappa: float | None = None) -> list[Share]:
    def plan(comm: Comm) -> Any:
        flat = flatten(states[comm.rank])
        layout = derive(flat, Replication("auto"))
        holders = find_holders(comm, flat, layout, WITHIN)
        layout.untie(holders.untied(flat))
        share = plan_share(comm, layout, flat, kappa, WITHIN, all_tell=True, holders=holders)
        return flat, share

    with world(len(states)) as comms:
        found = on_all(len(states), lambda rank: plan(comms[rank]))
    for _, share in found:
        assert isinstance(share, ShareLayout), share
    return found


def bytes_of_boxes(found: list[Share]) -> dict[tuple[str, Box], list[tuple[int, int, int]]]:
    """(first byte, end, rank) of what ranks save of each box, in order."""
    spans = defaultdict(list)
    for rank, (flat, share) in enumerate(found):
        boxes = {number: box for leaf in flat.sharded for number, box in zip(leaf.numbers, leaf.boxes, strict=True)}
        for row in share.spans:
            assert row["table"] == SHARED, "nobody has other bytes"
            number, start = int(row["leaf"]), int(row["start"])
            if number in boxes:
                key = readable(flat.arrays[number].path), boxes[number]
                spans[key].append((start, start + int(row["length"]), rank))
    return {key: sorted(each) for key, each in spans.items()}


@pytest.mark.parametrize("seed", range(10))
def test_every_byte_of_every_box_is_saved_once_by_one_that_has_it(seed: int) -> None:
    draw = random.Random(seed)
    ranks = draw.choice([2, 3, 5])
    states: list[dict[str, Any]] = [{"plain": torch.ones(5000)} for _ in range(ranks)]
    expected: dict[tuple[str, Box], set[int]] = {}
    for number in range(6):
        whole = torch.zeros(draw.randint(1, 60), draw.randint(1, 40), dtype=draw.choice([torch.float32, torch.int8]))
        parts = halves(Box.whole(tuple(whole.shape)), draw.randint(0, 1), draw.randint(0, 60))
        for rank in range(ranks):
            box = parts[rank % len(parts)]
            states[rank][f"w{number}"] = piece(whole, box)
            expected.setdefault((f"w{number}", box), set()).add(rank)
    found = planned(states, kappa=draw.choice([None, 0.0, 100.0, 1e6]))
    spans = bytes_of_boxes(found)
    assert spans.keys() == expected.keys()
    for (name, box), pieces in spans.items():
        itemsize = states[0][name].element_size()
        at = 0
        for begin, end, rank in pieces:
            assert begin == at and end > begin and rank in expected[name, box] and begin % itemsize == 0
            at = end
        assert at == box.elements * itemsize
    shared = sorted(
        (int(row["start"]), int(row["length"]))
        for flat, share in found
        for row in share.spans
        if flat.holders[row["leaf"]] != Holder.SOME
    )
    assert sum(length for _, length in shared) == 20_000


def test_a_plan_that_fails_is_told_instead_of_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other ranks go on; they hear of it in the commit rounds."""

    def no_memory(*_: Any, **__: Any) -> Any:
        raise MemoryError("none left")

    monkeypatch.setattr(share_planning, "share_set", no_memory)
    flat = flatten({"a": torch.zeros(10)})
    share = share_planning.plan_share(
        SingleComm(), derive(flat, Replication("auto")), flat, 1e5, WITHIN, all_tell=False
    )
    assert share == "MemoryError: none left"
