"""A live state that does not match is refused by name, nothing of it touched; what can be brought back is."""

from __future__ import annotations

import copy
import itertools
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import deeppart
from deeppart.errors import LeafMismatchError, StateError, StructureMismatchError
from deeppart.state.restore.pairing import can_cast
from deeppart.state.tensors.leaves import TORCH_DTYPES, LeafType, leaf_type
from deeppart.state.tree.ties import address, assign
from tests.states import Box, array_bytes, arrays, difference
from tests.unit.sharded_groups import one_rank
from tests.unit.state.rows import NESTED
from tests.unit.trained import network, save_and_restore, train

Point = namedtuple("Point", "x y")
Other = namedtuple("Other", "x z")
HUGE = 7**20000
#: What was saved, what is live, the error, the path that it names, and texts that must be in its message.
Case = tuple[Any, Any, type[StateError], str, list[str]]


def ones(*shape: Any, **kwargs: Any) -> torch.Tensor:
    return torch.ones(*shape, **kwargs)


def zeros(*shape: int, **kwargs: Any) -> torch.Tensor:
    return torch.zeros(*shape, **kwargs)


def snapshot(state: Any) -> Any:
    """All bytes and values, and where they lie (state_dict() makes new tensors over the same memory)."""
    data = [(address(array), array_bytes(array)) for array in arrays(state)]
    return data, copy.deepcopy({key: item for key, item in state.items() if not isinstance(item, torch.nn.Module)})


def check_refused(ck: deeppart.Checkpointer, case: Case) -> None:
    """The live part is refused among good ones, of which none is touched; what was saved fits in its place."""
    bad, live_bad, kind, path, texts = case
    state = {"after": ones(5), "bad": bad, "a": np.arange(3), "value": 1, "model": torch.nn.Linear(2, 2)}
    live = {"after": zeros(5), "bad": live_bad, "a": np.zeros(3, int), "value": 0, "model": torch.nn.Linear(2, 2)}
    ck.checkpoint(state, step=7).wait(timeout=200)
    before = snapshot(live)
    with pytest.raises(kind) as caught:
        ck.restore(live)
    text = str(caught.value)
    assert type(caught.value) is kind or kind is StateError
    assert f"path {path}" in text.replace("paths ", "path ") and not [t for t in texts if t not in text], text
    assert "to do:" in text
    after = snapshot(live)
    assert before[0] == after[0] and difference(before[1], after[1]) is None
    good = {**live, "bad": copy.deepcopy(bad)}
    assert ck.restore(good) == 7, "and the checkpointer is none the worse"
    assert difference(state, good) is None


CASES: dict[str, Callable[[], Case]] = {
    "shape": lambda: (ones(3), zeros(4), LeafMismatchError, "bad",
                      ["float32[3]", "float32[4]", "build the state as it was"]),
    "dtype": lambda: (ones(3), zeros(3).bfloat16(), LeafMismatchError, "bad", ["float32", "bfloat16"]),
    "byte order": lambda: (np.ones(3, ">f4"), np.zeros(3, "<f4"), LeafMismatchError, "bad", [">f4", "<f4"]),
    "numpy for torch": lambda: (ones(3), np.zeros(3, "f4"), LeafMismatchError, "bad", ["float32[3]", "numpy <f4[3]"]),
    "number for two elements": lambda: (ones(2), 5.0, LeafMismatchError, "bad", ["an array", "type float"]),
    "value for array": lambda: (ones(3), 5, LeafMismatchError, "bad", ["an array", "type int"]),
    "array for value": lambda: (5, zeros(3), LeafMismatchError, "bad", ["type int", "an array"]),
    "array for none": lambda: (None, zeros(3), LeafMismatchError, "bad", ["None", "an array"]),
    "container for array": lambda: (ones(3), [zeros(3)], StructureMismatchError, "bad", ["an array", "a list of 1"]),
    "array for container": lambda: ([ones(3)], zeros(3), StructureMismatchError, "bad", ["a list of 1", "an array"]),
    "container for value": lambda: (5, {"a": 5}, StructureMismatchError, "bad", ["type int", "a dict of 1"]),
    "value for container": lambda: ({"a": 5}, 5, StructureMismatchError, "bad", ["a dict of 1", "type int"]),
    "list for dict": lambda: ({0: ones(1)}, [zeros(1)], StructureMismatchError, "bad", ["dict of 1", "list of 1"]),
    "tuple for list": lambda: ([ones(1)], (zeros(1),), StructureMismatchError, "bad", ["list of 1", "tuple of 1"]),
    "tuple for namedtuple": lambda: (Point(1, 2), (1, 2), StructureMismatchError, "bad", ["namedtuple", "tuple"]),
    "other fields": lambda: (Point(1, 2), Other(1, 2), StructureMismatchError, "bad", ["'y'", "'z'"]),
    "longer tuple": lambda: ((1,), (1, 2), StructureMismatchError, "bad", ["1"]),
    "shorter tuple": lambda: ((1, 2), (1,), StructureMismatchError, "bad", ["tuple of 2", "tuple of 1"]),
    "array among values": lambda: ([*range(9)], [*range(8), zeros(1)], StructureMismatchError, "bad",
                                   ["list of 9, with small values alone", "list of 9, with tensors or objects"]),
    "array in a row": lambda: ([[1, 2]] * 300, [[1, 2]] * 299 + [[1, zeros(1)]], StructureMismatchError, "bad",
                               ["list of 300, with small values alone", "list of 300, with tensors or objects"]),
    "field it lacks": lambda: (SimpleNamespace(a=1), SimpleNamespace(a=1, b=2), StructureMismatchError, "bad",
                               ["'a'", "'b'"]),
    "array it lacks": lambda: ({"a": 1}, {"a": 1, "b": zeros(2)}, StructureMismatchError, "bad",
                               ["'a'", "'b'", "remove them from the state"]),
    "key type": lambda: ({1: ones(1)}, {"1": zeros(1)}, StructureMismatchError, "bad", ["keys 1 (", "'1'"]),
    "bool key": lambda: ({1: ones(1)}, {True: zeros(1)}, StructureMismatchError, "bad", ["keys 1 (", "True"]),
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
    "a value for rows": lambda: (NESTED["lists"], 7, StateError, "bad", []),
    "a dict for rows": lambda: (NESTED["lists"], {"a": 1}, StateError, "bad", []),
    "a dict of rows for a list of rows": lambda: (NESTED["lists"], NESTED["table"], StateError, "bad", []),
    "tensors for rows": lambda: (NESTED["lists"], [zeros(1)] * 300, StateError, "bad", []),
    "rows for tensors": lambda: ([ones(1)] * 300, NESTED["lists"], StateError, "bad", []),
    "rows for rows with tensors": lambda: ([[ones(2)]] * 300, NESTED["lists"], StateError, "bad", []),
    "read-only numpy": lambda: (np.ones(3), frozen(np.zeros(3)), StateError, "bad", ["read-only"]),
    "expanded": lambda: (ones(3), zeros(1).expand(3), StateError, "bad", ["shape [3]"]),
    "overlapping": lambda: (ones(3, 2), zeros(4).as_strided((3, 2), (1, 1)), StateError, "bad", ["shape [3, 2]"]),
    "writable numpy overlap": lambda: (
        np.ones((3, 2)), np.lib.stride_tricks.as_strided(np.zeros(4), (3, 2), (8, 8)), StateError, "bad", ["[3, 2]"]),
    "one dict twice": lambda: (
        [{"a": 1}, {"a": True}], [{"a": 0}] * 2, StructureMismatchError, "bad/1", ["bad/1"]),
    "one object twice": lambda: (
        [Box({"a": 0.0}), Box({"a": -0.0})], [Box({"a": 0.5})] * 2, StructureMismatchError, "bad/1", ["bad/1"]),
}  # fmt: skip


def frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


def optimizer(sizes: list[int]) -> torch.optim.Optimizer:
    groups = [{"params": [torch.nn.Parameter(torch.ones(2)) for _ in range(size)]} for size in sizes]
    return torch.optim.SGD(groups, lr=0.5)


@pytest.mark.parametrize("name", CASES)
def test_a_mismatch_is_named_and_touches_nothing(ck: deeppart.Checkpointer, name: str) -> None:
    check_refused(ck, CASES[name]())


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
def test_what_nothing_mutable_holds_cannot_be_replaced(ck: deeppart.Checkpointer, name: str) -> None:
    saved, live, texts = ROOTS[name]
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
    "one object twice": lambda: ([Box({"a": 1, "t": ones(2)})] * 2, [Box({"a": 0, "t": zeros(2)})] * 2),
    "strided live": lambda: (torch.arange(6.0).view(2, 3), zeros(4, 6)[::2, ::2]),
    "transposed live": lambda: (torch.arange(6.0).view(2, 3), zeros(3, 2).T),
    "reversed live": lambda: (np.arange(6).reshape(2, 3), np.zeros((2, 3), int)[::-1, ::-1]),
    "negative live": lambda: (np.arange(6.0), np.zeros(12)[::-2]),
    "another byte order, strided": lambda: (np.arange(12, dtype=">i4").reshape(3, 4), np.zeros((3, 8), ">i4")[:, ::2]),
    "odd address": lambda: (np.arange(3, dtype="i4"), np.frombuffer(bytearray(13), "u1")[1:].view("i4")),
    "strided text": lambda: (np.array([b"abc", b"d"]), np.zeros(4, "S3")[::2]),
    "channels last": lambda: (
        torch.arange(48.0).view(2, 3, 2, 4), zeros(2, 3, 2, 4).to(memory_format=torch.channels_last)),
    "a number is nothing yet": lambda: ({"best": ones(()), "b": [ones(1, 1)], "n": np.float32(2.0) * np.ones(1)},
                                        {"best": 1e9, "b": [0], "n": True}),
    "none is nothing yet": lambda: ({"a": ones(2), "b": [1, {}], "c": (ones(1),)}, dict.fromkeys("abc")),
    "none in a tuple": lambda: ((ones(2), Point(1, ones(1))), (None, Point(0, None))),
    "none in an object": lambda: (Box({"a": [ones(2)], "b": None}), Box({"a": None, "b": 3})),
    "extra values at the end of a list go": lambda: ([1, 2], [9, 9, 9, 9]),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_what_can_be_brought_back_is(ck: deeppart.Checkpointer, name: str) -> None:
    """Its arrays and dicts stay the objects that they are."""
    saved, live = GOOD[name]()
    before = [id(array) for array in arrays(live)]
    ck.checkpoint({"x": saved}, step=1).wait(timeout=200)
    state = {"x": live}
    ck.restore(state)
    found, expected = state["x"], saved
    if {type(found), type(expected)} == {dict, OrderedDict}:
        assert type(found) is type(live), "the live container stays"
        found, expected = dict(found), dict(expected)
    assert difference(expected, found, ordered=False) is None
    assert [id(array) for array in arrays(state["x"])][: len(before)] == before or not before


def test_all_leaves_that_do_not_match_are_named(ck: deeppart.Checkpointer) -> None:
    """Ten of them, and how many there are; the others are looked at with the rules of their own place."""

    def state(width: int) -> dict[str, Any]:
        layers = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(11)])
        return {"model": layers, "list": [torch.zeros(width), 1], "same": torch.zeros(2), "value": (1, 2)}

    ck.checkpoint(state(3), step=1).wait("persistent")
    with pytest.raises(LeafMismatchError) as caught:
        ck.restore(state(4))
    names = [f"model/{number}.weight" for number in range(10)]
    assert caught.value.where == f"paths {', '.join(names)}, ... (12 in all)"
    with pytest.raises(LeafMismatchError, match=r"paths model/3.weight, list/0\n"):
        live = state(3) | {"list": [[0], 1]}
        live["model"][3] = torch.nn.Linear(4, 4, bias=False)
        ck.restore(live)


ALIASED: dict[str, tuple[dict[str, Any], Callable[[list[Any]], dict[str, Any]]]] = {
    "rows of one run": ({"x": [[1]] * 300}, lambda row: {"x": [row] * 300}),
    "a row and a run": (
        {"x": [[1] * 9] * 300, "y": [1] * 9},
        lambda row: {"x": [[0] * 9 for _ in range(299)] + [row], "y": row},
    ),
    "a row and a short list": (
        {"x": [[1]] * 300, "y": [1]},
        lambda row: {"x": [[0] for _ in range(299)] + [row], "y": row},
    ),
    "rows of two runs": (
        {"x": [[1]] * 300, "y": [[1]] * 300},
        lambda row: {"x": [[0] for _ in range(299)] + [row], "y": [row] + [[0] for _ in range(299)]},
    ),
}


@pytest.mark.parametrize("name", ALIASED)
@pytest.mark.parametrize("same", [True, False])
def test_one_live_row_at_several_places(ck: deeppart.Checkpointer, name: str, same: bool) -> None:
    saved, make = ALIASED[name]
    if not same:
        saved = saved | {"x": [*saved["x"][:-1], [2]]}
    ck.checkpoint(saved, step=1).wait()
    live = make([0])
    if same:
        ck.restore(live)
        assert difference(saved, live) is None
        return
    with pytest.raises(StructureMismatchError, match="several places"):
        ck.restore(live)


def test_a_state_that_is_a_tuple_of_rows(ck: deeppart.Checkpointer) -> None:
    ck.checkpoint(tuple([place] for place in range(300)), step=1).wait()
    live = tuple([0] for _ in range(300))
    ck.restore(live)
    assert live == tuple([place] for place in range(300))
    with pytest.raises(StructureMismatchError, match="all tuples"):
        ck.restore(tuple((0,) for _ in range(300)))


def test_an_optimizer_that_has_stepped_cannot_unlearn_it(tmp_path: Path) -> None:
    model, live = network(1), network(2)
    optimizer, other = torch.optim.Adam(model.parameters()), torch.optim.Adam(live.parameters())
    train(live, other, 1)
    before = copy.deepcopy((live.state_dict(), other.state_dict()))
    with pytest.raises(
        StructureMismatchError, match="had not stepped when it was saved, and the live one has"
    ) as caught:
        save_and_restore(tmp_path, {"m": model, "o": optimizer}, {"m": live, "o": other})
    assert "o/state/0" in str(caught.value)
    assert difference(before, (live.state_dict(), other.state_dict())) is None


@pytest.mark.parametrize(("last", "named"), [("b", True), ("c", True), ("b", False)])
def test_parameters_in_another_order(tmp_path: Path, last: str, named: bool) -> None:
    """torch numbers them; with their names, it is seen that one would get the state of another."""

    def made(names: str, wrapper: str = "") -> Any:
        parameters = [(wrapper + name, torch.nn.Parameter(torch.full((2,), float(ord(name))))) for name in names]
        optimizer = torch.optim.AdamW(parameters if named else [parameter for _, parameter in parameters])
        torch.stack([parameter for _, parameter in parameters]).square().sum().backward()
        optimizer.step()
        return optimizer

    saved, live, alike = made("ab"), made(f"{last}a"), made("ab", "module.")
    before = copy.deepcopy(live.state_dict())
    if named:
        with pytest.raises(deeppart.errors.StructureMismatchError, match=r"'a', 'b' .*\n.*'[bc]', 'a' .*\n.*path o"):
            save_and_restore(tmp_path, {"o": saved}, {"o": live})
        assert difference(before, live.state_dict()) is None
    else:
        save_and_restore(tmp_path, {"o": saved}, {"o": live})
        assert difference(saved.state_dict(), live.state_dict()) is None
    save_and_restore(tmp_path / "alike", {"o": saved}, {"o": alike})
    assert difference(saved.state_dict()["state"], alike.state_dict()["state"]) is None


def test_texts_for_the_numbers_of_parameters_are_not_lost_without_a_word(tmp_path: Path) -> None:
    """As DCP saves a state dict: the optimizer would take it, and find none of its moments."""
    model, live = network(1), network(2)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, 1)
    saved = optimizer.state_dict()
    saved["state"] = {str(number): state for number, state in saved["state"].items()}
    with pytest.raises(deeppart.errors.StructureMismatchError, match="texts as parameter numbers: o"):
        save_and_restore(tmp_path, {"o": saved}, {"o": torch.optim.Adam(live.parameters())})


TIED: dict[str, Callable[[], Case]] = {
    "live tie": lambda: ([ones(3), ones(3) * 2], [zeros(3)] * 2, StructureMismatchError, "bad/0",
                           ["bad/1", "bad/0", "untie them"]),
    "live view": lambda: live_view(lambda base: base[2:5]),
    "live tie of modules": lambda: (tied(False), tied(True), StructureMismatchError, "bad/", ["1.weight", "0.weight"]),
    "tied otherwise": lambda: tied_otherwise(lambda base: base[::2], lambda base: base[:4]),
    "tied at another place": lambda: tied_otherwise(lambda base: base[1:5], lambda base: base[2:6]),
    "tied transposed": lambda: tied_otherwise(lambda base: base.view(2, 4).T, lambda base: base.view(4, 2)),
    "tied conjugate": lambda: tied_conjugate(),
    "tied, and conjugate here": lambda: conjugate_here(lambda base: (base, base), lambda base: (base, base.conj())),
    "tied, and negative here": lambda: conjugate_here(
        lambda base: (base.imag, base.imag), lambda base: (base.imag, base.conj().imag)),
    "tied, and overlapping here": lambda: overlapping_here(),
}  # fmt: skip


def tied(yes: bool) -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
    if yes:
        model[1].weight = model[0].weight
    return model


def live_view(view: Callable[[torch.Tensor], torch.Tensor]) -> Case:
    base = zeros(8)
    return [ones(8), view(ones(8) * 2).clone()], [base, view(base)], StructureMismatchError, "bad/0", ["bad/1", "bad/0"]


def tied_otherwise(saved: Callable[[Any], Any], live: Callable[[Any], Any]) -> Case:
    one, other = torch.arange(8.0), zeros(8)
    return [one, saved(one)], [other, live(other)], StructureMismatchError, "bad/1", ["in another way"]


def tied_conjugate() -> Case:
    base = zeros(3, dtype=torch.complex64)
    saved = [ones(3, dtype=torch.complex64), 2j * ones(3, dtype=torch.complex64)]
    return saved, [base, base.conj()], StructureMismatchError, "bad/0", ["bad/1"]


def conjugate_here(saved: Callable[[Any], tuple[Any, Any]], live: Callable[[Any], tuple[Any, Any]]) -> Case:
    base = torch.tensor([1 + 2j, 3 + 4j])
    return list(saved(base)), list(live(zeros(2, dtype=torch.complex64))), StructureMismatchError, "bad/1", ["bad/0"]


def overlapping_here() -> Case:
    saved, base = torch.tensor([1.0, 2.0]), zeros(3)
    return [saved, saved], [base[:2], base[1:]], StructureMismatchError, "bad/1", ["bad/0"]


@pytest.mark.parametrize("name", TIED)
def test_memory_that_is_shared_otherwise_is_named_and_nothing_touched(ck: deeppart.Checkpointer, name: str) -> None:
    check_refused(ck, TIED[name]())


FLOATS = ("float64", "float32", "float16", "bfloat16")


def test_floats_are_rounded_as_torch_does() -> None:
    for saved, live in itertools.product(FLOATS, repeat=2):
        values = torch.tensor([1.0, -0.1, 3e-5, float("inf"), float("nan")], dtype=TORCH_DTYPES[saved])
        target = torch.zeros(5, dtype=TORCH_DTYPES[live], requires_grad=True)
        assert can_cast(leaf_type(values), leaf_type(target))
        assign(target, values)
        assert torch.equal(target.detach().nan_to_num(), values.to(target.dtype).nan_to_num())
        assert target.isnan().tolist() == [False] * 4 + [True]


@pytest.mark.parametrize(
    ("kind", "saved", "live", "can"),
    [
        ("torch", "complex128", "complex64", True),
        ("torch", "int64", "int32", False),
        ("torch", "int64", "float32", False),
        ("torch", "float32", "int64", False),
        ("torch", "bool", "float32", False),
        ("torch", "complex64", "float32", False),
        ("torch", "float32", "complex64", False),
        ("torch", "float4_e2m1fn_x2", "float32", False),
        ("numpy", "<f8", "<f2", True),
        ("numpy", "<i8", "<f8", False),
    ],
)
def test_what_may_not_fit_is_not_converted(kind: Any, saved: str, live: str, can: bool) -> None:
    if kind == "numpy" or saved in TORCH_DTYPES:
        assert can_cast(LeafType(kind, saved, (4,)), LeafType(kind, live, (4,))) == can


def test_kind_and_shape_must_be_the_same() -> None:
    one = LeafType("torch", "float32", (4,))
    assert not can_cast(one, LeafType("torch", "bfloat16", (2, 2)))
    assert not can_cast(one, LeafType("numpy", "<f8", (4,)))


class Nothing(NamedTuple):
    """A container without keys."""


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with one_rank() as found:
        yield found


def trained(mesh: DeviceMesh, *, step: bool, groups: bool = False) -> tuple[dict[str, Any], torch.optim.Optimizer]:
    torch.manual_seed(3)
    shapes = [((5, 3), Shard(0)), ((4,), Replicate()), ((2, 2), Shard(1))]
    parameters = [
        torch.nn.Parameter(distribute_tensor(torch.randn(shape), mesh, [placement])) for shape, placement in shapes
    ]
    plain = torch.nn.Parameter(torch.randn(3))
    every: list[Any] = [*parameters, plain]
    in_groups: list[Any] = [{"params": every[2:]}, {"params": every[:2], "lr": 0.5}]
    optimizer = torch.optim.AdamW(in_groups if groups else every)
    if step:
        for parameter in every:
            parameter.grad = torch.ones_like(parameter) * 2
        optimizer.step()
    return {"model": list(every), "optimizer": optimizer, "empty": Nothing()}, optimizer


@pytest.mark.parametrize("groups", [False, True])
def test_an_optimizer_that_has_not_stepped_gets_its_moments(
    ck: deeppart.Checkpointer, mesh: DeviceMesh, groups: bool
) -> None:
    state, before = trained(mesh, step=True, groups=groups)
    live, after = trained(mesh, step=False, groups=groups)
    ck.checkpoint(state, step=1).wait(timeout=60)
    assert ck.restore(live) == 1
    for old, new in zip(before.param_groups, after.param_groups, strict=True):
        for one, other in zip(old["params"], new["params"], strict=True):
            assert after.state[other].keys() == {"step", "exp_avg", "exp_avg_sq"}
            for name, value in after.state[other].items():
                expected = before.state[one][name]
                assert type(value) is type(expected)
                if isinstance(value, DTensor):
                    assert isinstance(other, DTensor) and value.placements == other.placements
                    value, expected = value._local_tensor, expected._local_tensor
                assert torch.equal(value, expected)
    after.step()  # without gradients: it can use what it was given


def test_what_belongs_to_a_parameter_that_is_not_sharded_here_is_made_whole(
    ck: deeppart.Checkpointer, mesh: DeviceMesh
) -> None:
    """As where FSDP sharded everything, and tensor parallelism shards a part of it."""
    state, before = trained(mesh, step=True)
    parameters = [torch.nn.Parameter(torch.zeros(5, 3)), *trained(mesh, step=False)[0]["model"][1:]]
    after = torch.optim.AdamW(parameters)
    ck.checkpoint(state, step=1).wait(timeout=60)
    assert ck.restore({"model": list(parameters), "optimizer": after, "empty": Nothing()}) == 1
    for one, other in zip(before.param_groups[0]["params"], parameters, strict=True):
        assert torch.equal(_whole(one), _whole(other))
        for name in ("exp_avg", "exp_avg_sq"):
            assert isinstance(after.state[other][name], DTensor) == isinstance(other, DTensor)
            assert torch.equal(_whole(before.state[one][name]), _whole(after.state[other][name]))


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def test_what_belongs_to_no_parameter_is_left_out_and_told(ck: deeppart.Checkpointer, mesh: DeviceMesh) -> None:
    whole = torch.arange(10.0)
    state = {"a": distribute_tensor(whole, mesh, [Shard(0)]), "b": {"c": distribute_tensor(whole, mesh, [Shard(0)])}}
    live: dict[str, Any] = {"a": distribute_tensor(torch.zeros(10), mesh, [Shard(0)]), "b": {}}
    ck.checkpoint(state, step=1).wait(timeout=60)
    with pytest.warns(deeppart.DeeppartWarning, match="nor says how they are split: b/c$"):
        assert ck.restore(live) == 1
    assert torch.equal(live["a"]._local_tensor, whole) and live["b"] == {}
    # Where nothing is sharded, it is created as a whole.
    plain: dict[str, Any] = {"a": torch.zeros(10), "b": {}}
    assert ck.restore(plain) == 1
    assert torch.equal(plain["b"]["c"], whole) and type(plain["b"]["c"]) is torch.Tensor
