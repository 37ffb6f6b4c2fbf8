"""Values and objects of real scripts that do not fit, or would lose something: refused by name, nothing is changed."""

from __future__ import annotations

import collections
import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import LeafMismatchError, StructureMismatchError, UnsupportedLeafError
from tests.features.script_files import bits, config, restore, save
from tests.features.script_values import Phase, Plan, Settings

MISMATCHES: dict[str, tuple[Callable[[], Any], Callable[[], Any], type[Exception], str]] = {
    "a deque into a list": (lambda: collections.deque([1]), lambda: [1], StructureMismatchError, "a deque .checkpoint"),
    "a list into a deque": (lambda: [1], lambda: collections.deque([1]), StructureMismatchError, "a deque .live"),
    "many values": (lambda: collections.deque(range(9)), lambda: list(range(9)), StructureMismatchError, "a deque"),
    "another maxlen": (
        lambda: collections.deque([1], maxlen=3), lambda: collections.deque([1], maxlen=4),
        StructureMismatchError, "maxlen=3",
    ),
    "a set into a list": (lambda: {1}, lambda: [1], StructureMismatchError, "a value of type set"),
    "a set into a frozenset": (lambda: {1}, lambda: frozenset({1}), LeafMismatchError, "a value of type frozenset"),
    "a number into a set": (lambda: 5, lambda: {1}, LeafMismatchError, "a value of type set"),
    "a dict into a dataclass": (lambda: {"rate": 1}, Settings, StructureMismatchError, "dataclass"),
    "a dataclass into a dict": (Settings, lambda: {"rate": 1}, StructureMismatchError, "not known here"),
    "one dataclass into another": (Settings, Plan, StructureMismatchError, "not known here"),
    "one dataclass into another that is known": (
        lambda: [Settings(), Plan()], lambda: [Plan(), Settings()], StructureMismatchError, "dataclass",
    ),
    "an enum that is nowhere": (lambda: Phase.TRAIN, lambda: 5, StructureMismatchError, "register.Phase."),
    "two contents for one set": (lambda: [{1}, {2}], lambda: [{9}] * 2, StructureMismatchError, "several places"),
    "two contents for one deque": (
        lambda: [collections.deque([1]), collections.deque([2])], lambda: [collections.deque([9])] * 2,
        StructureMismatchError, "several places",
    ),
    "a changed frozen one in tuples": (lambda: (Plan(1),), lambda: (Plan(2),), StructureMismatchError, "tuples"),
    "a changed set in tuples": (lambda: ({1},), lambda: ((1,),), StructureMismatchError, "tuple of 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISMATCHES)
def test_what_does_not_fit_is_refused_and_nothing_is_changed(tmp_path: Path, name: str) -> None:
    saved, live, kind, said = MISMATCHES[name]
    in_tuples = "in tuples" in name
    save(tmp_path, saved() if in_tuples else {"w": torch.ones(2), "v": saved()})
    here = live() if in_tuples else {"w": torch.zeros(2), "v": live()}
    before = bits(here)
    with pytest.raises(kind, match=said):
        restore(tmp_path, here)
    assert bits(here) == before


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (("rate", "weights", "tags"), "lost made"),
        (("rate", "weights", "tags", "made", "more"), "got more"),
        (("rate", "weight", "tags", "made"), "lost weights and got weight "),
    ],
)
@pytest.mark.parametrize("where", ["there", "nested", "created"])
def test_fields_that_were_added_or_removed_are_named(
    tmp_path: Path, fields: tuple[str, ...], said: str, where: str
) -> None:
    kind: Any = dataclasses.make_dataclass("Settings", [(name, int, 0) for name in fields])
    saved = {"s": [Settings(1)], "known": Settings(1)}
    save(tmp_path, saved)
    live = {"s": [kind()] if where == "nested" else [None], "known": kind() if where != "created" else None}
    if where == "created":
        live["s"] = [kind()]
    with pytest.raises(StructureMismatchError, match=f"has {said}"):
        restore(tmp_path, live)


class Counted(collections.deque):  # type: ignore[type-arg]
    pass


@dataclasses.dataclass
class Listed(list):  # type: ignore[type-arg]
    name: str = ""


@dataclasses.dataclass
class Hidden:
    value: int = 0

    @property
    def other(self) -> int:
        return self.value


def hidden() -> Any:
    """A dataclass of which a field is a property: what is behind it is code."""
    made = type("Behind", (Hidden,), {"value": property(lambda self: 5, lambda self, value: None)})
    return made(3)


def attributed() -> Any:
    stream = io.BytesIO(b"a")
    stream.name = "x"
    return stream


def closed() -> Any:
    stream = io.BytesIO(b"a")
    stream.close()
    return stream


def looped() -> Any:
    found = Settings()
    found.tags.append(found)
    return found


def looped_deque() -> Any:
    found: Any = collections.deque()
    found.append([found])
    return found


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a subclass of deque": (lambda: Counted([1]), "save list"),
    "a dataclass that is a list": (lambda: Listed("a"), "more to it than attributes"),
    "a field that is a property": (hidden, "fields that are properties: value"),
    "attributes of a stream": (attributed, "has attributes"),
    "a closed stream": (closed, "closed"),
    "a set of objects": (lambda: {object()}, "builtins.object"),
    "a set of tensors": (lambda: {torch.ones(1)}, "torch.Tensor"),
    "a stream in a set": (lambda: {io.BytesIO()}, "BytesIO"),
    "a dataclass in itself": (looped, "contains itself"),
    "a deque in itself": (looped_deque, "contains itself"),
    "a function in a dataclass": (lambda: Settings(tags=[print]), "path v/tags/0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_lose_something_is_refused_by_name(tmp_path: Path, name: str) -> None:
    make, said = REFUSED[name]
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        with pytest.raises(UnsupportedLeafError, match=said) as caught:
            ck.checkpoint({"v": make()}, step=1)
        assert "path v" in str(caught.value)
        with pytest.raises(deeppart.StateError):
            ck.restore({"v": make()})
