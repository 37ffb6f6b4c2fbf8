"""What cannot be stored exactly is refused by name, before any file appears."""

from __future__ import annotations

import collections
import io
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import UnsupportedLeafError
from deeppart.state.tree.flattening import flatten
from tests.states import Box


class Tagged(torch.Tensor):
    pass


class Words(str):
    pass


class Celsius(np.float64):
    pass


def quietly(make: Callable[[], Any]) -> Callable[[], Any]:
    def made() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make()

    return made


def fake_tensor() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(3)


def masked() -> Any:
    return np.ma.masked_array([1, 2], mask=[True, False])


TENSORS: dict[str, Callable[[], Any]] = {
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
    "ChainMap": lambda: collections.ChainMap({}),
    "generator": lambda: (i for i in list[int]()),
    "type": lambda: dict,
    "Celsius": lambda: Celsius(3.0),
    "Words": lambda: Words("a"),
    "module": lambda: sys,
}


@pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:FutureWarning", "ignore:.*:DeprecationWarning")
@pytest.mark.parametrize(("name", "make"), [*TENSORS.items(), *ARRAYS.items(), *OTHERS.items()])
def test_what_cannot_be_stored_is_named(name: str, make: Callable[[], Any]) -> None:
    item = make()
    for state in ({"x": torch.ones(3), "a/b": [0, {"bad": item}]}, {"a/b": [0, Box({"bad": item})]}):
        with pytest.raises(UnsupportedLeafError, match="path a~1b/1/bad") as caught:
            flatten(state)
        assert name in str(caught.value)


def test_what_is_refused_leaves_no_file_and_the_checkpointer_goes_on(tmp_path: Path) -> None:
    """Before the structure is known, and afterwards; what is in values is seen when they are encoded."""
    good = {"x": torch.ones(3)}
    items = {"builtins.object": {1, object()}, "builtins.type": frozenset([int]), "numpy.void": np.zeros(1, "V3")[0]}
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path), timeout=10.0)) as ck:
        for step, (name, item) in enumerate(items.items()):
            for bad in ({**good, "bad": item}, {**good, "bad": Box([item])}):
                with pytest.raises(UnsupportedLeafError, match="path bad") as caught:
                    ck.checkpoint(bad, step)
                assert name in str(caught.value)
            with pytest.raises(deeppart.StateError, match="bad"):
                ck.restore({**good, "bad": item})
            assert len(list(tmp_path.glob("step-*"))) == step
            ck.checkpoint(good, step).wait(timeout=200)
        assert ck.restore(good) == 2


def test_an_object_whose_state_dict_fails_is_named(tmp_path: Path) -> None:
    class Failing(Box):
        fails = False

        def state_dict(self) -> Any:
            if self.fails:
                raise KeyError("foo")
            return super().state_dict()

    state = {"a": Box({"x": 1}), "b": {"c": Failing({"x": 1})}}
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:
        ck.checkpoint(state, step=1).wait(timeout=200)
        Failing.fails = True
        for call in (lambda: flatten(state), lambda: ck.checkpoint(state, step=2), lambda: ck.restore(state)):
            with pytest.raises(deeppart.StateError, match=r"state_dict.. of a .*Failing in the state") as caught:
                call()
            text = str(caught.value)
            assert "KeyError: 'foo'" in text and "path b/c" in text and "to do: see what" in text


KEYS: dict[str, Any] = {
    "Words": Words("a"),
    "object": object(),
    "BytesIO": io.BytesIO(),
    "type": (1, (frozenset([object]),)),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_that_cannot_be_stored_are_named(name: str) -> None:
    for others in ({}, {"z": 1}, {5: torch.ones(2)}):
        with pytest.raises(UnsupportedLeafError, match="path outer") as caught:
            flatten({"outer": {**others, KEYS[name]: 1}})
        assert name in str(caught.value)


def test_a_state_that_contains_itself() -> None:
    loop: dict[str, Any] = {"x": [torch.ones(1)]}
    loop["x"].append(loop)
    through_object = Box({})
    through_object.content["me"] = through_object
    tail: list[Any] = []
    tail.append((tail,))
    for state, path in ((loop, "x/1"), ({"b": through_object}, "b/me"), (tail, "0/0")):
        with pytest.raises(UnsupportedLeafError, match="contains itself") as caught:
            flatten(state)
        assert f"path {path}" in str(caught.value)
    twice = [torch.ones(2)]
    assert len(flatten({"a": twice, "b": twice, "c": (twice, [twice])}).arrays) == 4


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
            except UnsupportedLeafError as error:
                assert "too deeply" in str(error)
                refused.append(depth)
            else:
                deeppart.load(tmp_path, depth)
                assert ck.restore(state, depth) == depth
    assert refused and refused == depths[-len(refused) :] and 100 not in refused


def test_namedtuples_with_names_no_class_can_have() -> None:
    kind = collections.namedtuple("Fine", "x")  # type: ignore[name-match]
    kind.__name__ = "not a name"
    with pytest.raises(UnsupportedLeafError, match="not a name") as caught:
        flatten({"here": kind(1)})
    assert "path here" in str(caught.value)
