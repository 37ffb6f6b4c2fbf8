"""Templates of states with sharded tensors: the shorter way is taken where nothing has changed, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from deeppart.state.tree import template as template_module
from deeppart.state.tree.flat import ApartRules, FlatState
from deeppart.state.tree.flatten import flatten
from deeppart.state.tree.paths import exact
from deeppart.state.tree.template import Template
from tests.unit.sharded_groups import pretended, split, split_as

WHOLE = torch.arange(8.0 * 6).view(8, 6)


def state(middle: Any, add: float = 0.0) -> dict[str, Any]:
    """Sharded tensors between plain ones, whose order in the state is not that of their leaves."""
    return {
        "z": torch.full((3,), add),
        "m": [torch.ones(2) + add, middle, {"n": 5}],
        "a": torch.nn.Parameter(split(WHOLE + add, (2, 2), [Shard(0), Shard(1)])),
    }


def rows(add: float = 0.0) -> Any:
    return split(WHOLE + add, (4,), [Shard(0)])


def strided(add: float = 0.0, *, length: int = 9) -> Any:
    """Of which a rank has several boxes."""
    return split_as(torch.arange(length) + add, (4,), [_StridedShard(0, split_factor=2)])


def same(one: FlatState, other: FlatState) -> bool:
    """Equal descriptions, and the same memory."""
    kinds = (one.tokens, one.types, one.sizes(), one.before_shards) == (
        other.tokens, other.types, other.sizes(), other.before_shards
    )  # fmt: skip
    leaves = [(leaf.path, leaf.kind, leaf.boxes, leaf.first) for leaf in one.sharded] == [
        (leaf.path, leaf.kind, leaf.boxes, leaf.first) for leaf in other.sharded
    ]
    return kinds and leaves and list(one.pointers) == list(other.pointers)


@pytest.mark.parametrize("cuts", [None, ApartRules(mine=frozenset([exact(("m", 1)), exact(("z",))]))])
@pytest.mark.parametrize("make", [rows, strided])
def test_nothing_is_taken_apart_again(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[float], Any], cuts: ApartRules | None
) -> None:
    with pretended(0, 4):
        template = Template()
        template.cuts = cuts
        first = template.flatten(state(make(0.0)))
        monkeypatch.setattr(template_module, "flatten", lambda *_, **__: pytest.fail("taken apart from scratch"))
        following = state(make(1.0), 1.0)
        second = template.flatten(following)
        assert second.tokens is first.tokens
        assert same(second, flatten(following, cuts=cuts))
        assert [leaf.item is item for leaf, item in zip(second.sharded, items(following, second), strict=True)]


def items(live: Any, flat: FlatState) -> list[Any]:
    found = []
    for leaf in flat.sharded:
        item = live
        for key in leaf.path:
            item = item[key]
        found.append(item)
    return found


OTHERS: dict[str, Callable[[], Any]] = {
    "placement": lambda: split(WHOLE, (4,), [Shard(1)]),
    "a copy": lambda: split(WHOLE, (4,), [Replicate()]),
    "mesh": lambda: split(WHOLE, (2,), [Shard(0)]),
    "dtype": lambda: split(WHOLE.double(), (4,), [Shard(0)]),
    "shape": lambda: split(WHOLE[:, 1:], (4,), [Shard(0)]),
    "length that leaves fewer shards": lambda: split(WHOLE[:1], (4,), [Shard(0)]),
    "several shards": strided,
    "no tensor": lambda: 5,
    "a plain tensor of its whole shape": lambda: WHOLE.clone(),
    "a plain tensor of its local shape": lambda: torch.ones(2, 6),
    "a parameter": lambda: torch.nn.Parameter(rows()),
}


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_split_in_another_way_is_noticed(name: str, rank: int) -> None:
    with pretended(rank, 4):
        template = Template()
        template.flatten(state(rows()))
        for live in (state(OTHERS[name]()), state(rows()), state(OTHERS[name]())):
            assert same(template.flatten(live), flatten(live))


def test_another_number_of_boxes_on_this_rank_is_noticed() -> None:
    with pretended(3, 4):
        template = Template()
        for length in (9, 8, 12, 3):
            live = state(strided(length=length))
            assert same(template.flatten(live), flatten(live))


def test_a_local_tensor_in_another_order_is_noticed() -> None:
    with pretended(0, 4):
        mesh = DeviceMesh("cpu", torch.arange(4))

        def turned(local: torch.Tensor) -> Any:
            return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=torch.Size((8, 6)), stride=(6, 1))

        template = Template()
        for local in (torch.ones(2, 6), torch.ones(6, 2).T, torch.ones(2, 12)[:, ::2], torch.ones(2, 6)):
            live = state(turned(local))
            assert same(template.flatten(live), flatten(live))


def test_it_lets_go_of_the_live_tensors() -> None:
    with pretended(0, 4):
        template = Template()
        flat = template.flatten(state(rows()))
        template.clear()
        assert [leaf.item for leaf in flat.sharded] == [None, None] and not flat.data
        live = state(rows(2.0), 2.0)
        assert same(template.flatten(live), flatten(live))
