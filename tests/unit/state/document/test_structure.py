"""Containers and keys: loaded and restored as they were."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, namedtuple
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import NewerFormatError
from deeppart.state.document.decoding import decode_structure
from deeppart.state.document.encoding import STRUCTURE_VERSION
from deeppart.testing.states import difference
from tests.unit.round_trip import both_ways, config, restore, save, wrapped

Point = namedtuple("Point", "x y")
HUGE = 7**20000  # 16,903 digits; str() of an int refuses beyond 4,300


class Typed(NamedTuple):
    weight: Any
    name: str = "w"


# --- containers and keys ----------------------------------------------------------------------------------------------

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
    "renamed fields": namedtuple("R", "a class def", rename=True)(1, 2, torch.ones(1)),
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


SQUARE, CUBE, ARRAY = torch.randn(8, 8), torch.randn(4, 4, 4), np.random.default_rng(1).random((8, 8))
#: Other elements of the same memory: address, dtype and shape are alike, and both are not contiguous.
VIEWS: list[tuple[Any, Any]] = [
    ({"all": SQUARE, "x": SQUARE[:4, :4]}, {"all": SQUARE, "x": SQUARE[:4, :4].t()}),
    ({"x": SQUARE[:4, :4], "y": SQUARE[:4, :4]}, {"x": SQUARE[:4, :4], "y": SQUARE[:4, :4].t()}),
    ({"all": ARRAY, "x": ARRAY[:4, :4]}, {"all": ARRAY, "x": ARRAY[:4, :4].T}),
    ({"x": ARRAY[:4, :4], "y": ARRAY[:4, :4]}, {"x": ARRAY[:4, :4], "y": ARRAY[:4, :4].T}),
    ({"all": CUBE, "x": CUBE.permute(0, 2, 1)}, {"all": CUBE, "x": CUBE.permute(2, 1, 0)}),
]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({1: 0}, {True: 0}),
        ({(1, "a"): 0}, {(True, "a"): 0}),
        ({0.0: 0}, {-0.0: 0}),
        ({1: 0}, {1.0: 0}),
        ({"x": Point(1, 2)}, {"x": namedtuple("Point", "y x")(1, 2)}),
        ({"x": (1, 2)}, {"x": [1, 2]}),
        ({"x": {}}, {"x": OrderedDict()}),
        ({"x": Counter()}, {"x": {}}),
        ({"x": torch.ones(2)}, {"x": np.ones(2)}),
        ({"x": torch.ones(4)}, {"x": torch.ones(2, 2)}),
        ({"x": torch.ones(4)}, {"x": torch.ones(4).to(torch.int32)}),
        ({"list": "dict"}, {"list": ["dict"]}),
        ({"x": []}, {"x": [[]]}),
        ({"x": torch.ones(4, 4)}, {"x": torch.ones(4, 4).T}),
        *VIEWS,
    ],
)
def test_a_structure_that_looks_alike_is_not_taken_for_the_cached_one(tmp_path: Path, first: Any, second: Any) -> None:
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        for step, state in enumerate((first, second, first)):
            ck.checkpoint(wrapped(state), step=step).wait(timeout=200)
        for step, state in enumerate((first, second, first)):
            assert difference(wrapped(state), deeppart.load(tmp_path / "ckpt", step)) is None


def test_a_later_version_is_told() -> None:
    with pytest.raises(NewerFormatError):
        decode_structure({"version": STRUCTURE_VERSION + 1}, "here")
