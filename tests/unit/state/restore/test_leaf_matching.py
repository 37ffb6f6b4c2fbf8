"""A live state that does not match is refused by name, nothing of it touched; what can be brought back is."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import LeafMismatchError, StateError, StructureMismatchError
from deeppart.testing.states import Box, arrays, difference
from tests.unit.state.restore.mismatches import Case, check_brought_back, check_refused, config, ones, zeros

Point = namedtuple("Point", "x y")
Other = namedtuple("Other", "x z")
HUGE = 7**20000

CASES: dict[str, Callable[[], Case]] = {
    "shape": lambda: (ones(3), zeros(4), LeafMismatchError, "bad", ["float32[3]", "float32[4]"]),
    "0-dim": lambda: (ones(()), zeros(1), LeafMismatchError, "bad", ["float32[]", "float32[1]"]),
    "rank": lambda: (ones(2, 3), zeros(3, 2), LeafMismatchError, "bad", ["[2, 3]", "[3, 2]"]),
    "empty shape": lambda: (ones(0, 3), zeros(0), LeafMismatchError, "bad", ["[0, 3]", "[0]"]),
    "dtype": lambda: (ones(3), zeros(3).bfloat16(), LeafMismatchError, "bad", ["float32", "bfloat16"]),
    "dtype of a size": lambda: (ones(3), zeros(3).int(), LeafMismatchError, "bad", ["float32", "int32"]),
    "byte order": lambda: (np.ones(3, ">f4"), np.zeros(3, "<f4"), LeafMismatchError, "bad", [">f4", "<f4"]),
    "text width": lambda: (np.array(["ab"]), np.array(["a"]), LeafMismatchError, "bad", ["<U2", "<U1"]),
    "numpy for torch": lambda: (ones(3), np.zeros(3, "f4"), LeafMismatchError, "bad", ["float32[3]", "numpy <f4[3]"]),
    "torch for numpy": lambda: (np.ones(3), zeros(3).double(), LeafMismatchError, "bad", ["numpy <f8", "float64"]),
    "number for two elements": lambda: (ones(2), 5.0, LeafMismatchError, "bad", ["an array", "type float"]),
    "text for an element": lambda: (ones(()), "5", LeafMismatchError, "bad", ["an array", "type str"]),
    "value for array": lambda: (ones(3), 5, LeafMismatchError, "bad", ["an array", "type int"]),
    "array for value": lambda: (5, zeros(3), LeafMismatchError, "bad", ["type int", "an array"]),
    "array for none": lambda: (None, zeros(3), LeafMismatchError, "bad", ["None", "an array"]),
    "container for array": lambda: (ones(3), [zeros(3)], StructureMismatchError, "bad", ["an array", "a list of 1"]),
    "array for container": lambda: ([ones(3)], zeros(3), StructureMismatchError, "bad", ["a list of 1", "an array"]),
    "container for value": lambda: (5, {"a": 5}, StructureMismatchError, "bad", ["type int", "a dict of 1"]),
    "value for container": lambda: ({"a": 5}, 5, StructureMismatchError, "bad", ["a dict of 1", "type int"]),
    "list for dict": lambda: ({0: ones(1)}, [zeros(1)], StructureMismatchError, "bad", ["dict of 1", "list of 1"]),
    "tuple for list": lambda: ([ones(1)], (zeros(1),), StructureMismatchError, "bad", ["list of 1", "tuple of 1"]),
    "list for tuple": lambda: ((ones(1),), [zeros(1)], StructureMismatchError, "bad", ["tuple of 1", "list of 1"]),
    "tuple for namedtuple": lambda: (Point(1, 2), (1, 2), StructureMismatchError, "bad", ["namedtuple", "tuple"]),
    "other fields": lambda: (Point(1, 2), Other(1, 2), StructureMismatchError, "bad", ["'y'", "'z'"]),
    "longer tuple": lambda: ((1,), (1, 2), StructureMismatchError, "bad", ["1"]),
    "shorter tuple": lambda: ((1, 2), (1,), StructureMismatchError, "bad", ["tuple of 2", "tuple of 1"]),
    "array among values": lambda: ([*range(9)], [*range(8), zeros(1)], StructureMismatchError, "bad",
                                   ["list of 9, with small values alone", "list of 9, with an array at 8"]),
    "array in a row": lambda: ([[1, 2]] * 300, [[1, 2]] * 299 + [[1, zeros(1)]], StructureMismatchError, "bad",
                               ["list of 300, with small values alone", "list of 300, with an array at 299/1"]),
    "field it lacks": lambda: (SimpleNamespace(a=1), SimpleNamespace(a=1, b=2), StructureMismatchError, "bad",
                               ["'a'", "'b'"]),
    "array it lacks": lambda: ({"a": 1}, {"a": 1, "b": zeros(2)}, StructureMismatchError, "bad", ["'a'", "'b'"]),
    "key type": lambda: ({1: ones(1)}, {"1": zeros(1)}, StructureMismatchError, "bad", ["keys 1 (", "'1'"]),
    "bool key": lambda: ({1: ones(1)}, {True: zeros(1)}, StructureMismatchError, "bad", ["keys 1 (", "True"]),
    "float key": lambda: ({1: ones(1)}, {1.0: zeros(1)}, StructureMismatchError, "bad", ["keys 1 (", "1.0"]),
    "longer list of objects": lambda: ([1], [1, Box(2)], StructureMismatchError, "bad", ["1"]),
    "deep": lambda: ({"a": [0, (1, {"b/c": ones(2)})]}, {"a": [0, (1, {"b/c": zeros(3)})]}, LeafMismatchError,
                     "bad/a/1/1/b~1c", ["float32[2]", "float32[3]"]),
    "module lacks": lambda: (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, bias=False), StructureMismatchError, "bad",
                             ["bias", "Linear"]),
    "checkpoint lacks": lambda: (torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2), StructureMismatchError,
                                 "bad", ["bias"]),
    "module shape": lambda: (torch.nn.Linear(2, 3), torch.nn.Linear(3, 2), LeafMismatchError, "bad/", ["[3", "[2"]),
    "module renamed": lambda: (torch.nn.Sequential(torch.nn.Linear(1, 1)), torch.nn.ModuleDict(
        {"x": torch.nn.Linear(1, 1)}), StructureMismatchError, "bad", ["0.", "x."]),
    "object for array": lambda: (ones(2), torch.nn.Linear(2, 2), StateError, "bad", []),
    "array for object": lambda: (torch.nn.Linear(2, 2), zeros(2), StateError, "bad", []),
    "none for object": lambda: (Box({"a": ones(1)}), None, StateError, "bad", []),
    "optimizer groups": lambda: (optimizer([3]), optimizer([2]), StructureMismatchError, "bad", ["[3]", "[2]"]),
    "optimizer more groups": lambda: (optimizer([1, 2]), optimizer([3]), StructureMismatchError, "bad",
                                      ["[1, 2]", "[3]"]),
    "optimizer fewer groups": lambda: (optimizer([3]), optimizer([1, 2]), StructureMismatchError, "bad",
                                       ["[3]", "[1, 2]"]),
    "one list twice": lambda: one_container_twice([0], [1], [2]),
    "one dict twice": lambda: one_container_twice({"a": 0}, {"a": 1}, {"a": True}),
    "one object twice": lambda: one_container_twice(Box({"a": 0.5}), Box({"a": 0.0}), Box({"a": -0.0})),
}  # fmt: skip


def optimizer(sizes: list[int]) -> torch.optim.Optimizer:
    groups = [{"params": [torch.nn.Parameter(torch.ones(2)) for _ in range(size)]} for size in sizes]
    return torch.optim.SGD(groups, lr=0.5)


def one_container_twice(live: Any, first: Any, second: Any) -> Case:
    return [first, second], [live, live], StructureMismatchError, "bad/1", ["bad/1"]


@pytest.mark.parametrize("name", CASES)
def test_a_mismatch_is_named_and_touches_nothing(tmp_path: Path, name: str) -> None:
    check_refused(tmp_path, CASES[name]())


ROOTS: dict[str, tuple[Any, Any, list[str]]] = {
    "value": ((1, ones(2)), (2, zeros(2)), ["2 here, 1 in", "path 0"]),
    "bool for int": ((1, ones(2)), (True, zeros(2)), ["True here, 1 in"]),
    "zero's sign": ((0.0,), (-0.0,), ["-0.0 here, 0.0 in"]),
    "deep": (((ones(1), Point(1, (2,))),), ((zeros(1), Point(1, (3,))),), ["path 0/1/y/0"]),
    "huge": ((HUGE,), (HUGE + 1,), ["an int of "]),
    "none for array": ((ones(2),), (None,), ["an array", "None"]),
    "root value": (42, 43, ["43 here, 42 in"]),
    "root none": (ones(2), None, ["an array"]),
}


@pytest.mark.parametrize("name", ROOTS)
def test_what_nothing_mutable_holds_cannot_be_replaced(tmp_path: Path, name: str) -> None:
    saved, live, texts = ROOTS[name]
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        ck.checkpoint(saved, step=1).wait(timeout=200)
        with pytest.raises(StateError) as caught:
            ck.restore(live)
        assert not [t for t in texts if t not in str(caught.value)], str(caught.value)
        same = copy.deepcopy(saved)
        for array in arrays(same):
            array.zero_()
        assert ck.restore(same) == 1
        assert difference(saved, same) is None


GOOD: dict[str, Callable[[], tuple[Any, Any]]] = {
    "missing keys are created": lambda: ({"a": ones(2), "b": {"c": [1]}}, {}),
    "missing items are created": lambda: ([ones(2), 5, [ones(1)]], [zeros(2)]),
    "values of any type": lambda: ([1, "a", None, 2.5], ["x", 0, b"", True]),
    "dict and odict": lambda: (OrderedDict(a=1, b=ones(1)), {"b": zeros(1), "a": 0}),
    "odict and dict": lambda: ({"a": 1}, OrderedDict(a=0)),
    "counter": lambda: (Counter(a=1, b=2), Counter(a=5)),
    "one list twice": lambda: shared_list(),
    "one object twice": lambda: shared_object(),
}  # fmt: skip


def shared_list() -> tuple[Any, Any]:
    live = [0, zeros(2)]
    data = ones(2)
    return {"a": [1, data], "b": [1, data]}, {"a": live, "b": live}


def shared_object() -> tuple[Any, Any]:
    saved, live = Box({"a": 1, "t": ones(2)}), Box({"a": 0, "t": zeros(2)})
    return [saved, saved], [live, live]


@pytest.mark.parametrize("name", GOOD)
def test_what_can_be_brought_back_is(tmp_path: Path, name: str) -> None:
    check_brought_back(tmp_path, *GOOD[name]())


def test_restoring_needs_the_structure_of_that_step(tmp_path: Path) -> None:
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        ck.checkpoint({"a": ones(2)}, step=1).wait(timeout=200)
        ck.checkpoint({"a": ones(3)}, step=2).wait(timeout=200)
        with pytest.raises(LeafMismatchError):
            ck.restore({"a": zeros(2)})
        live = {"a": zeros(2)}
        with pytest.warns(deeppart.DeeppartWarning, match="step 2 is in the directory too"):
            assert ck.restore(live, step=1) == 1
        assert live["a"].tolist() == [1, 1]


def test_all_leaves_that_do_not_match_are_named(tmp_path: Path) -> None:
    """Ten of them, and how many there are; the others are looked at with the rules of their own place."""

    def state(width: int) -> dict[str, Any]:
        layers = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(11)])
        return {"model": layers, "list": [torch.zeros(width), 1], "same": torch.zeros(2), "value": (1, 2)}

    with deeppart.Checkpointer(config(tmp_path)) as ck:
        ck.checkpoint(state(3), step=1).wait("persistent")
        with pytest.raises(LeafMismatchError) as caught:
            ck.restore(state(4))
        names = [f"model/{number}.weight" for number in range(10)]
        assert caught.value.where == f"paths {', '.join(names)}, ... (12 in all)"
        with pytest.raises(LeafMismatchError, match=r"paths model/3.weight, list/0\n"):
            live = state(3) | {"list": [[0], 1]}
            live["model"][3] = torch.nn.Linear(4, 4, bias=False)
            ck.restore(live)
