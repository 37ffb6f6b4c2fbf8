"""Containers and keys are written so that they can be loaded and restored as they were, and exactly as documented."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, namedtuple
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import deeppart
from deeppart.state.document.structure_json import (
    encode_tree,
)
from deeppart.state.tree.flat import ApartRules
from deeppart.state.tree.flatten import flatten
from deeppart.testing.states import difference
from tests.unit.round_trip import both_ways, config, restore, save, wrapped

Point = namedtuple("Point", "x y")
named: Any = namedtuple  # for types that are made in the middle of an expression, which mypy cannot follow
HUGE = 7**20000  # 16,903 digits; str() of an int refuses beyond 4,300


class Typed(NamedTuple):
    weight: Any
    name: str = "w"


CONTAINERS = {
    "empty dict": {},
    "empty list": [],
    "empty tuple": (),
    "empties": {"a": {}, "b": [], "c": (), "d": OrderedDict(), "e": Counter(), "f": [[], {}], "g": ((),)},
    "insertion order": {"z": 1, "a": torch.ones(2), "m": 3},
    "odict order": OrderedDict([("z", 1), ("a", 2)]),
    "counter": Counter({3: 2, 7: 1, "x": -4, (1, 2): 0}),
    "namedtuple": Point(torch.arange(3), Point(1, [2])),
    "typed namedtuple": Typed(torch.arange(3.0)),
    "renamed fields": named("R", "a class def", rename=True)(1, 2, torch.ones(1)),
    "tuple of tuples": (1, (2, (3, torch.ones(2)), ()), [(), ((),)]),
    "list of everything": [1, "a", None, 2.5, b"x", torch.ones(1), np.ones(1), [0], {"k": 0}, (0,)],
    "same key text": {1: "int", "1": "str", b"1": "bytes", 1.5: "float", "1.5": "text", (1,): "tuple"},
    "bool keys": {True: torch.ones(1), False: torch.zeros(1), 2: "two"},
    "separators": {"a.b": 1, "a/b": 2, "a": {"b": 3}, "a~1b": 4, "~": 5, "~0": 6, "": 7, "/": 8, ".": 9},
    "odd keys": {None: 1, -1: 2, (): 3, (1, (2, "x"), None): 4, b"\xff\x00": 5, "\0": 6, "ä": 7, "\ud800": 8},
    "float keys": {0.5: 1, math.inf: 2, -math.inf: 3, 5e-324: 4, -0.0: 5},
    "value keys": {torch.float32: 1, torch.device("cpu"): 2, torch.Size([2]): 3, np.int8(3): 4, 2j: 5},
    "huge keys": {HUGE: torch.ones(2), -HUGE: 1, (HUGE,): 2, "x": 3},
    "many int keys": {i: torch.full((1,), float(i)) for i in (10, 9, 100, 2, -5)},
    "numeric text": {"10": 1, "9": 2, "0" * 5000 + "1": 3},
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_and_keys(tmp_path: Path, name: str) -> None:
    both_ways(tmp_path, wrapped(CONTAINERS[name]))


@pytest.mark.parametrize("name", [n for n in CONTAINERS if n not in ("tuple of tuples", "typed namedtuple")])
def test_any_container_can_be_the_root(tmp_path: Path, name: str) -> None:
    state = CONTAINERS[name]
    save(tmp_path, state)
    assert difference(state, deeppart.load(tmp_path / "ckpt")) is None


def test_a_leaf_can_be_the_root(tmp_path: Path) -> None:
    save(tmp_path, torch.arange(5))
    assert difference(torch.arange(5), deeppart.load(tmp_path / "ckpt")) is None
    live = restore(tmp_path, torch.zeros(5, dtype=torch.int64))
    assert live.tolist() == [0, 1, 2, 3, 4]


def test_a_namedtuple_comes_back_from_load_with_its_name_and_fields(tmp_path: Path) -> None:
    loaded = both_ways(tmp_path, wrapped(Point(1, 2)))["item"]
    assert type(loaded).__name__ == "Point" and loaded._fields == ("x", "y") and type(loaded) is not Point


def test_a_live_namedtuple_keeps_its_class(tmp_path: Path) -> None:
    class Careful(namedtuple("Careful", "x y")):
        def __new__(cls, both: int) -> Careful:
            return super().__new__(cls, both, both)

    save(tmp_path, wrapped(Careful(3)))
    live = restore(tmp_path, wrapped(Careful(0)))["item"]
    assert type(live) is Careful and tuple(live) == (3, 3)


def test_deep_nesting(tmp_path: Path) -> None:
    state: Any = torch.ones(2)
    for depth in range(60):
        state = [{"d": (state,)}, Point(depth, OrderedDict(z=1))]
    both_ways(tmp_path, wrapped(state))


def test_order_of_dicts_is_that_of_each_checkpoint(tmp_path: Path) -> None:
    """The structure is cached between checkpoints; the order of an OrderedDict (an LRU cache, say) may change."""
    recent, plain = OrderedDict(a=torch.zeros(1), b=1, c=2), {"x": 1, "y": 2}
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        for step, key in enumerate("acb"):
            recent.move_to_end(key)
            plain["x"] = plain.pop("x")
            state = {"recent": recent, "plain": plain}
            ck.checkpoint(state, step=step).wait(timeout=200)
            assert difference(state, deeppart.load(tmp_path / "ckpt", step)) is None
        live = OrderedDict(c=0, b=0, a=torch.ones(1))
        ck.restore({"recent": live, "plain": {"y": 0, "x": 0}})
    assert list(live) == list(recent)


# --- the JSON that stands for them ------------------------------------------------------------------------------------


def tree_of(state: Any, first: tuple[int, int] = (0, 0), cuts: ApartRules | None = None) -> Any:
    """The tree as it stands in a file."""
    return json.loads(json.dumps(encode_tree(flatten(state, cuts=cuts).root, first)))


def test_names_of_versions_in_a_state_dict_are_kept_and_nothing_else_of_it() -> None:
    state = OrderedDict(w=1)
    state._metadata = OrderedDict(  # type: ignore[attr-defined]
        {"": {"version": 1}, "0.bn": {"version": 2, "kind": "x", "more": [1], 5: 6}}
    )
    assert tree_of(state)[3] == {"": {"version": 1}, "0.bn": {"version": 2, "kind": "x"}}


@pytest.mark.parametrize("metadata", [None, [1], {5: {}}, {"": 1}], ids=repr)
def test_what_is_no_metadata_of_torch_is_left_out(metadata: Any) -> None:
    state = OrderedDict(w=1)
    state._metadata = metadata  # type: ignore[attr-defined]
    assert tree_of(state) == ["o", ["w"], [["v", 0]], None]
