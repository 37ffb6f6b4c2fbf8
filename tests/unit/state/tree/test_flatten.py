"""What cannot be stored exactly is refused by name, before any file appears."""

from __future__ import annotations

import collections
import io
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.testing.states import Box


class Tagged(torch.Tensor):
    pass


class Words(str):
    pass


class Celsius(np.float64):
    pass


class MyDict(dict):  # type: ignore[type-arg]
    pass


def quietly(make: Callable[[], Any]) -> Callable[[], Any]:
    def made() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make()

    return made


def partial_sums() -> Any:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return DTensor.from_local(torch.ones(4, 2), init_device_mesh("cpu", (1,)), [Partial()])
    finally:
        dist.destroy_process_group()


def fake_tensor() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(3)


def masked() -> Any:
    return np.ma.masked_array([1, 2], mask=[True, False])


TENSORS: dict[str, Callable[[], Any]] = {
    "DTensor": partial_sums,
    "quint4x2": quietly(lambda: torch.quantize_per_channel(
        torch.ones(2, 4), torch.ones(2), torch.zeros(2), 0, torch.quint4x2
    )),
    "meta device": lambda: torch.ones(3, device="meta"),
    "Tagged": lambda: torch.ones(3).as_subclass(Tagged),
    "FakeTensor": fake_tensor,
    "UninitializedParameter": lambda: torch.nn.UninitializedParameter(),
    "nested": quietly(lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
    "bits8": lambda: torch.empty(3, dtype=torch.bits8),
    "bits16": lambda: torch.empty(0, dtype=torch.bits16),
    "uint4": lambda: torch.empty(2, dtype=torch.uint4),  # type: ignore[attr-defined]
}  # fmt: skip

ARRAYS: dict[str, Callable[[], Any]] = {
    "object": lambda: np.array([1, "a"], dtype=object),
    "('a'": lambda: np.zeros(2, dtype=[("a", "i4")]),
    "|V4": lambda: np.zeros(2, dtype="V4"),
    "MaskedArray": masked,
    "matrix": quietly(lambda: np.asmatrix([[1]])),
    "recarray": lambda: np.zeros(2).view(np.recarray),
    "|S0": lambda: np.zeros(2, dtype=[("a", "S0"), ("b", "S2")])["a"],
    "S67108865": lambda: np.empty(1, dtype="S67108865"),
}

OTHERS: dict[str, Callable[[], Any]] = {
    "builtins.object": lambda: {1, object()},
    "builtins.type": lambda: frozenset([int]),
    "MyDict": lambda: MyDict(a=1),
    "ChainMap": lambda: collections.ChainMap({}),
    "mappingproxy": lambda: types.MappingProxyType({}),
    "generator": lambda: (i for i in list[int]()),
    "function": lambda: masked,
    "type": lambda: dict,
    "torch.nn.modules.linear.Linear": lambda: object(),  # replaced below: a class, not an object
    "Celsius": lambda: Celsius(3.0),
    "Words": lambda: Words("a"),
    "memoryview": lambda: memoryview(b"a"),
    "numpy.void": lambda: np.zeros(1, dtype="V3")[0],
    "return_types": lambda: torch.ones(2, 2).max(dim=0),
    "object": lambda: object(),
    "module": lambda: sys,
}
del OTHERS["torch.nn.modules.linear.Linear"]

KINDS = [("tensor", name, TENSORS[name]) for name in TENSORS]
KINDS += [("array", name, ARRAYS[name]) for name in ARRAYS]
KINDS += [("value", name, OTHERS[name]) for name in OTHERS]


@pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:FutureWarning", "ignore:.*:DeprecationWarning")
@pytest.mark.parametrize(("sort", "name", "make"), KINDS, ids=[f"{sort} {name}" for sort, name, _ in KINDS])
def test_what_cannot_be_stored_is_named(tmp_path: Path, sort: str, name: str, make: Callable[[], Any]) -> None:
    item = make()
    good = {"x": torch.ones(3)}
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path), timeout=10.0)) as ck:
        for state in ({**good, "a/b": [0, {"bad": item}]}, {**good, "a/b": [0, Box({"bad": item})]}):
            with pytest.raises(deeppart.errors.UnsupportedLeafError) as caught:
                ck.checkpoint(state, step=1)
            assert "path a~1b/1/bad" in str(caught.value) and name in str(caught.value)
        assert not list(tmp_path.glob("step-*")), "never a file"
        ck.checkpoint(good, step=1).wait(timeout=200)
        ck.checkpoint(good, step=2).wait(timeout=200)
        with pytest.raises(deeppart.errors.UnsupportedLeafError, match="bad"):
            ck.checkpoint({**good, "bad": item}, step=3)
        with pytest.raises(deeppart.StateError, match="bad"):
            ck.restore({**good, "bad": item})
        ck.checkpoint(good, step=3).wait(timeout=200)
        assert ck.restore(good) == 3


@pytest.mark.parametrize("after_one", [False, True])
def test_an_object_whose_state_dict_fails_is_named(tmp_path: Path, after_one: bool) -> None:
    class Failing(Box):
        fails = False

        def state_dict(self) -> Any:
            if self.fails:
                raise KeyError("foo")
            return super().state_dict()

    state = {"a": Box({"x": 1}), "b": {"c": Failing({"x": 1})}}
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:
        if after_one:
            ck.checkpoint(state, step=1).wait(timeout=200)
        Failing.fails = True
        calls: list[Callable[[], Any]] = [lambda: ck.checkpoint(state, step=2)]
        if after_one:
            calls.append(lambda: ck.restore(state))
        for call in calls:
            with pytest.raises(deeppart.StateError, match=r"state_dict.. of a .*Failing in the state") as caught:
                call()
            text = str(caught.value)
            assert "KeyError: 'foo'" in text and "path b/c" in text and "to do: see what" in text


KEYS: dict[str, Any] = {
    "Words": Words("a"),
    "type": int,
    "object": object(),
    "BytesIO": io.BytesIO(),
    "tuple with a bad item": (1, (frozenset([object]),)),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_that_cannot_be_stored_are_named(tmp_path: Path, name: str) -> None:
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path), timeout=10.0)) as ck:
        for others in ({}, {"z": 1}, {5: torch.ones(2)}):
            with pytest.raises(deeppart.errors.UnsupportedLeafError) as caught:
                ck.checkpoint({"outer": {**others, KEYS[name]: 1}}, step=1)
            text = str(caught.value)
            assert "path outer" in text and ("type" if "tuple" in name else name) in text
        assert not list(tmp_path.glob("step-*"))


def test_a_state_that_contains_itself(tmp_path: Path) -> None:
    loop: dict[str, Any] = {"x": [torch.ones(1)]}
    loop["x"].append(loop)
    through_object = Box({})
    through_object.content["me"] = through_object
    tail: list[Any] = []
    tail.append((tail,))
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path), timeout=10.0)) as ck:
        for state, path in ((loop, "x/1"), ({"b": through_object}, "b/me"), (tail, "0/0")):
            with pytest.raises(deeppart.errors.UnsupportedLeafError, match="contains itself") as caught:
                ck.checkpoint(state, step=1)
            assert f"path {path}" in str(caught.value)
        twice = [torch.ones(2)]
        ck.checkpoint({"a": twice, "b": twice, "c": (twice, [twice])}, step=1).wait(timeout=200)


def test_nesting_beyond_what_can_be_stored(tmp_path: Path) -> None:
    """At every depth: either it comes back, or it is refused by name; nothing in between."""
    depths = [100, 150, 180, 198, 199, 200, 201, 300, 400, 2000]
    refused = []
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path), timeout=10.0)) as ck:
        for depth in depths:
            state: Any = {"x": torch.ones(1)}
            for _ in range(depth):
                state = [state]
            try:
                ck.checkpoint(state, step=depth).wait(timeout=200)
            except deeppart.errors.UnsupportedLeafError as error:
                assert "too deeply" in str(error)
                refused.append(depth)
            else:
                deeppart.load(tmp_path, depth)
                assert ck.restore(state, depth) == depth
    assert refused and refused == depths[-len(refused) :] and 100 not in refused


def test_namedtuples_with_names_no_class_can_have(tmp_path: Path) -> None:
    kind = collections.namedtuple("Fine", "x")  # type: ignore[name-match]
    kind.__name__ = "not a name"
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path), timeout=10.0)) as ck:
        with pytest.raises(deeppart.errors.UnsupportedLeafError, match="not a name") as caught:
            ck.checkpoint({"here": kind(1)}, step=1)
        assert "path here" in str(caught.value)
