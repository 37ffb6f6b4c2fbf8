"""Classes that a checkpoint names are those of the live state, by their qualified names."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest

from deeppart.errors import LeafMismatchError, StructureMismatchError
from deeppart.state.document.structure import Structure
from deeppart.state.restore.classes import resolve, resolve_registered
from deeppart.state.restore.target import Target
from deeppart.state.tree import Branch, ValueLeaf
from deeppart.state.tree.flattening import flatten
from deeppart.state.values import SavedMember
from tests.features.script_values import Level, Phase, Rights

HERE = Phase.__module__


def target_of(value: Any, key: Any = "v") -> Target:
    tree = Branch("dict", (key,), (ValueLeaf(0),))
    return Target(Structure(tree, {}, {0: None}, np.zeros(1, dtype=np.bool_)), {}, {0: value})


def resolved(value: Any, live: Any, key: Any = "v") -> Any:
    target = target_of(value, key)
    resolve(target, flatten({"v": live}, live=True))
    assert isinstance(target.structure.tree, Branch)
    return target.values[0] if key == "v" else target.structure.tree.keys[0]


def member(kind: Any, name: str | None, value: Any, module: str = HERE) -> SavedMember:
    return SavedMember(module, kind.__qualname__, name, value)


def test_members_are_found_in_everything_that_can_hold_one() -> None:
    saved, live = member(Phase, "TRAIN", ("t", 2)), Phase.WARMUP
    for make in (
        lambda x: x, lambda x: [x, 1], lambda x: (x, (x,)), lambda x: {x}, lambda x: frozenset({(x,)}),
        lambda x: slice(x), lambda x: {"a": [x] * 9, x: 1},
    ):  # fmt: skip
        found, expected = resolved(make(saved), [live]), make(Phase.TRAIN)
        assert found == expected and type(found) is type(expected)
    assert resolved(1, live, key=(saved, 1)) == (Phase.TRAIN, 1)


def test_the_class_may_be_anywhere_in_the_live_state() -> None:
    saved = member(Level, "HIGH", 3, module="__main__")
    for live in (
        {Level.LOW: 1},
        [[Level.LOW]],
        [{1: {Level.LOW}}] * 300,
        (slice(None, Level.LOW),),
        frozenset({Level.LOW}),
    ):
        assert resolved(saved, live) is Level.HIGH


def test_of_two_classes_the_module_decides_and_else_nothing_does() -> None:
    class Level2(enum.IntEnum):
        HIGH = 3

    Level2.__qualname__, Level2.__module__ = "Level", "elsewhere"
    live = [Level.LOW, Level2.HIGH]
    assert resolved(member(Level, "HIGH", 3), live) is Level.HIGH
    assert resolved(member(Level, "HIGH", 3, module="elsewhere"), live) is Level2.HIGH
    with pytest.raises(StructureMismatchError, match="not known here"):
        resolved(member(Level, "HIGH", 3, module="third"), live)


WRONG: list[SavedMember] = [
    member(Phase, "TRAIN", ("t", 3)), member(Phase, "TRAIN", "t"), member(Phase, "GONE", 1), member(Phase, None, 1),
    member(Phase, "OTHER", 1), member(Rights, None, 64), member(Rights, "READ", 2), member(Rights, "READ", True),
]  # fmt: skip


@pytest.mark.parametrize("saved", WRONG, ids=repr)
def test_a_member_must_be_there_with_its_value(saved: SavedMember) -> None:
    with pytest.raises(LeafMismatchError, match="no such member") as caught:
        resolved(saved, [Phase.WARMUP, Rights.READ])
    assert "path v" in str(caught.value)


def test_flags_without_a_name_are_known_by_their_value() -> None:
    assert resolved(member(Rights, None, 0), Rights.READ) is Rights(0)
    assert resolved(member(Rights, "READ|WRITE", 3), Rights.READ) is Rights.READ | Rights.WRITE


def test_without_a_live_state_what_is_not_registered_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deeppart.state.restore.classes.known_classes", dict)  # other tests register some
    saved = member(Phase, "WARMUP", "w")
    target = target_of([saved])
    assert resolve_registered(target, target.structure.tree) is target.structure.tree and target.values == {0: [saved]}
