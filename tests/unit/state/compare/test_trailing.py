"""What trails is what would have been read at once, or nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from deeppart.state.compare.optimizers import OwnedTensors
from deeppart.state.compare.turns import TrailingSlices, Turns
from deeppart.state.tree.fingerprint import SMALL_LEAF_BYTES
from deeppart.state.tree.flat import FlatState
from deeppart.state.tree.flatten import flatten
from deeppart.state.tree.leaves import leaf_type


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer, FlatState]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(300, 501), torch.nn.Linear(501, 1200))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    net(torch.ones(2, 300)).sum().backward()
    optimizer.step()
    return net, optimizer, flatten({"net": net, "optimizer": optimizer})


def slices(flat: FlatState, turn: int) -> tuple[Turns, TrailingSlices]:
    types = [leaf_type(data) for data in flat.data]
    turns = Turns([each for each, kind in enumerate(types) if kind.nbytes > SMALL_LEAF_BYTES], types)
    return turns, TrailingSlices(turns, turn, flat, OwnedTensors(SMALL_LEAF_BYTES).of(flat))


@pytest.mark.parametrize("turn", [0, 7, 62, 63, 1000])
def test_the_digests_are_those_of_the_slices_read_at_once(turn: int) -> None:
    _, _, flat = trained()
    turns, trailing = slices(flat, turn)
    assert len(turns.numbers) == 6
    assert trailing.lacks
    for part in trailing.work():
        part()
    assert trailing.lacks, "until it is known that nobody has written to it"
    trailing.check()
    assert not trailing.lacks
    assert trailing.digests.tolist() == turns.digests(flat.pointers, turn).tolist()


def write(weight: torch.Tensor) -> None:
    with torch.no_grad():
        weight.mul_(2)


def free(weight: torch.Tensor) -> None:
    weight.untyped_storage().resize_(0)


def replace_and_write(weight: torch.Tensor) -> None:
    weight.data = torch.zeros_like(weight)
    write(weight)


WAYS: dict[str, tuple[Callable[[torch.Tensor], None], int]] = {
    "written": (write, 1),
    "freed": (free, 0),
    "replaced and written": (replace_and_write, 1),
}


@pytest.mark.parametrize("moment", ["before", "between", "after"])
@pytest.mark.parametrize("way", WAYS)
def test_leaves_that_change_before_the_step_give_no_outcome(way: str, moment: str) -> None:
    net, _, flat = trained()
    change, spoiled = WAYS[way]
    _, trailing = slices(flat, 5)
    parts = trailing.work()
    assert len(parts) >= 1
    if moment == "before":
        change(net[1].weight)  # type: ignore[index]
    for part in parts:
        part()
    if moment == "between":
        change(net[1].weight)  # type: ignore[index]
    trailing.check()
    if moment == "after" and spoiled:
        change(net[1].weight)  # type: ignore[index]  # by an operation that had begun before
    elif moment == "after":
        trailing.drop()  # too late
        assert not trailing.lacks
        return
    assert trailing.lacks
    assert len(trailing.spoiled) >= spoiled


def test_what_is_dropped_has_no_outcome_and_holds_nothing() -> None:
    _, _, flat = trained()
    _, trailing = slices(flat, 5)
    parts = trailing.work()
    trailing.drop()
    for part in parts:
        part()
    trailing.check()
    assert trailing.lacks


def test_a_part_that_was_not_done_leaves_no_outcome() -> None:
    _, _, flat = trained()
    _, trailing = slices(flat, 5)
    trailing.work()
    trailing.check()
    assert trailing.lacks
