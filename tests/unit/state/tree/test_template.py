"""Templates: a state is taken apart again as the walk would do it, or not at all."""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import deeppart
from deeppart.state.compare.layout import outlines_of
from deeppart.state.paths.keys import exact
from deeppart.state.tree import template as template_module
from deeppart.state.tree.flat import FlatState, RankLocalRules
from deeppart.state.tree.flattening import flatten
from deeppart.state.tree.template import Template
from tests.states import Box, array_bytes, difference
from tests.unit.round_trip import config
from tests.unit.sharded_groups import pretended, split, split_as

Point = namedtuple("Point", "x y")
named: Any = namedtuple  # for types that are made in the middle of an expression, which mypy cannot follow


# --- the template that makes the steady state cheap -------------------------------------------------------------------


def variants() -> list[Any]:
    """Structures of which each differs from the next in one small thing."""
    tensor, array = torch.ones(2, 2), np.ones((2, 2))
    return [
        {"a": tensor, "b": [1, 2]},
        {"a": tensor, "b": (1, 2)},
        {"a": array, "b": (1, 2)},
        {"a": tensor, "b": (1, 2, 3)},
        {"b": (1, 2, 3), "a": tensor},
        OrderedDict(b=(1, 2, 3), a=tensor),
        OrderedDict(a=tensor, b=(1, 2, 3)),
        {"a": tensor.T.contiguous()[:, :1], "b": (1, 2, 3)},
        {"a": tensor.double(), "b": (1, 2, 3)},
        {"a": tensor.double(), "b": (1, tensor, 3)},
        {"a": tensor.double(), "b": (1, tensor.clone(), 3)},
        {"a": {1: 0}, "b": 0},
        {"a": {True: 0}, "b": 0},
        {"a": {1.0: 0}, "b": 0},
        {"a": {(1,): 0}, "b": 0},
        {"a": {(True,): 0}, "b": 0},
        {"a": Box({"x": 1}), "b": 0},
        {"a": {"x": 1}, "b": 0},
        {"a": Box([1]), "b": 0},
        {"a": Box(Box([1])), "b": 0},
        {"a": None, "b": {}},
        {"a": [None], "b": {}},
        [],
        (),
        {},
        5,
        tensor,
        torch.nn.Parameter(tensor),
        array,
        [tensor, tensor],
        [tensor, tensor.clone()],
        [tensor, tensor.T],
        [tensor, tensor.view(torch.int32)],
        [tensor, tensor[:1]],
        [tensor, tensor[1:]],
        [torch.view_as_complex(tensor), 1],
        [torch.view_as_complex(tensor).conj(), 1],
        [np.array(["a", "bc"])],
        [np.array(["a", "bcd"])],
        [np.array([1], ">i4")],
        [np.array([1], "<i4")],
        [{0.0: 0}, 0],
        [{-0.0: 0}, 0],
        [Point(1, 2)],
        [named("Point", "y x")(1, 2)],
        [Counter()],
        [{}],
        ["dict"],
        [["dict"]],
        [[], 0],
        [[[]], 0],
    ]


def test_the_template_gives_what_flattening_gives() -> None:
    template = Template()
    for first, second in itertools.permutations(variants(), 2):
        template.flatten(first)
        found = template.flatten(second)
        expected = flatten(second)
        assert (outlines_of(found), found.types, found.orders) == (
            outlines_of(expected), expected.types, expected.orders
        )  # fmt: skip
        if not any(data.is_conj() for data in found.data if isinstance(data, torch.Tensor)):
            complexes = [isinstance(data, torch.Tensor) and data.is_complex() for data in found.data]
            assert any(complexes) or found.pointers == expected.pointers
        for one, other in zip(found.arrays, expected.arrays, strict=True):
            assert one == other and array_bytes(found.data[one.index]) == array_bytes(expected.data[other.index])
        for mine, theirs in zip(found.values, expected.values, strict=True):
            assert repr(mine.path) == repr(theirs.path)
            assert type(mine.value) is type(theirs.value) and mine.value == theirs.value


def test_a_template_is_as_strict_as_flattening(memory: Path) -> None:
    """What may not be saved is refused too when the structure is known already."""
    good: dict[str, Any] = {"a": torch.ones(2), "b": np.ones(2), "c": 1, "d": Box([1])}
    bad: dict[str, list[Any]] = {
        "a": [torch.ones(2).to_mkldnn(), torch.ones(2, device="meta"), torch.empty(2, dtype=torch.bits8)],
        "b": [np.array([{}], dtype=object), np.ma.masked_array([1.0, 2.0])],
        "c": [{object()}, object(), lambda: 0, np.void(b"x")],
        "d": [Box([{object()}]), Box(object())],
    }
    with deeppart.Checkpointer(config(memory, keep={"persistent": 0})) as ck:
        ck.checkpoint(good, step=0).wait(timeout=200)
        for key, items in bad.items():
            for item in items:
                with pytest.raises(deeppart.errors.UnsupportedLeafError) as caught:
                    ck.checkpoint({**good, key: item}, step=1)
                assert f"path {key}" in str(caught.value)
        loop = dict(good)
        loop["c"] = loop
        with pytest.raises(deeppart.errors.UnsupportedLeafError, match="contains itself"):
            ck.checkpoint(loop, step=1)
        ck.checkpoint(good, step=1).wait(timeout=200)
    assert difference(good, deeppart.load(memory / "ckpt", 1)) is None


SQUARE, CUBE, ARRAY = torch.randn(8, 8), torch.randn(4, 4, 4), np.random.default_rng(1).random((8, 8))
#: Other elements of the same memory: address, dtype and shape are alike, and both are not contiguous.
VIEWS: list[tuple[Any, Any]] = [
    ({"all": SQUARE, "x": SQUARE[:4, :4]}, {"all": SQUARE, "x": SQUARE[:4, :4].t()}),
    ({"x": SQUARE[:4, :4], "y": SQUARE[:4, :4]}, {"x": SQUARE[:4, :4], "y": SQUARE[:4, :4].t()}),
    ({"all": ARRAY, "x": ARRAY[:4, :4]}, {"all": ARRAY, "x": ARRAY[:4, :4].T}),
    ({"x": ARRAY[:4, :4], "y": ARRAY[:4, :4]}, {"x": ARRAY[:4, :4], "y": ARRAY[:4, :4].T}),
    ({"all": CUBE, "x": CUBE.permute(0, 2, 1)}, {"all": CUBE, "x": CUBE.permute(2, 1, 0)}),
]


def test_ties_that_come_and_go_are_noticed(memory: Path) -> None:
    one, other = torch.ones(64), torch.zeros(64)
    states: list[Any] = [[one, other], [one, one], [one, other], [one, one[32:]], [one, one[:32]], [other[:32], other]]
    states += [state for first, second in VIEWS for state in (first, second, first)]
    with deeppart.Checkpointer(config(memory, keep={"persistent": 0})) as ck:
        for step, state in enumerate(states):
            ck.checkpoint(state, step).wait(timeout=200)
            loaded = deeppart.load(memory / "ckpt", step)
            assert difference(state, loaded) is None
            if isinstance(state, list):
                tied = loaded[0].untyped_storage().data_ptr() == loaded[1].untyped_storage().data_ptr()
                assert tied == (state[0].untyped_storage().data_ptr() == state[1].untyped_storage().data_ptr())


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
    kinds = (outlines_of(one), one.types, one.holders.tolist()) == (
        outlines_of(other), other.types, other.holders.tolist()
    )  # fmt: skip
    leaves = [(leaf.path, leaf.kind, leaf.boxes, leaf.first) for leaf in one.sharded] == [
        (leaf.path, leaf.kind, leaf.boxes, leaf.first) for leaf in other.sharded
    ]
    return kinds and leaves and list(one.pointers) == list(other.pointers)


@pytest.mark.parametrize("cuts", [None, RankLocalRules(mine=frozenset([exact(("m", 1)), exact(("z",))]))])
@pytest.mark.parametrize("make", [rows, strided])
def test_nothing_is_taken_apart_again(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[float], Any], cuts: RankLocalRules | None
) -> None:
    with pretended(0, 4):
        template = Template()
        template.cuts = cuts
        first = template.flatten(state(make(0.0)))
        monkeypatch.setattr(template_module, "flatten", lambda *_, **__: pytest.fail("taken apart from scratch"))
        following = state(make(1.0), 1.0)
        second = template.flatten(following)
        assert second.root is first.root
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
    "shape of the mesh": lambda: split(WHOLE, (2, 2), [Shard(0), Replicate()]),
    "ranks of the mesh in another order": lambda: DTensor.from_local(
        WHOLE[:2].clone(), DeviceMesh("cpu", torch.arange(4).flip(0)), [Shard(0)], run_check=False,
        shape=WHOLE.shape, stride=(6, 1)),
    "dtype": lambda: split(WHOLE.double(), (4,), [Shard(0)]),
    "shape": lambda: split(WHOLE[:, 1:], (4,), [Shard(0)]),
    "length that leaves fewer shards": lambda: split(WHOLE[:1], (4,), [Shard(0)]),
    "several shards": strided,
    "no tensor": lambda: 5,
    "a plain tensor of its whole shape": lambda: WHOLE.clone(),
    "a plain tensor of its local shape": lambda: torch.ones(2, 6),
    "a parameter": lambda: torch.nn.Parameter(rows()),
}  # fmt: skip


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
