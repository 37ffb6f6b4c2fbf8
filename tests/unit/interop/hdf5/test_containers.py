"""Containers, keys and objects of archives, from what an attribute says."""

from __future__ import annotations

import collections
from typing import Any

import pytest

import deeppart
from deeppart.errors import CorruptFileError, StateError
from deeppart.interop.hdf5 import Refused, container_of, first_refused, in_order, key_of

REFUSED = Refused(CorruptFileError("no"))


def test_keys() -> None:
    assert key_of(None, "3", "dict", "") == "3" and key_of(None, "3", "list", "") == 3
    assert key_of("3", "3", "dict", "") == 3 and key_of("null", "None", "dict", "") is None
    assert key_of('["tuple", [1, "a"]]', "x", "odict", "") == (1, "a")
    for text in ('{"a": 1}', "[1", '["eval", "1"]'):
        with pytest.raises((CorruptFileError, ValueError)):
            key_of(text, "x", "dict", "")


def test_the_order_that_was_noted() -> None:
    assert in_order([b"a", b"z"], None) == [b"a", b"z"] and in_order([b"a", b"z"], '["z", "a"]') == [b"z", b"a"]
    for order in ('["z"]', '["z", "a", "a"]', "[[]]", "3"):
        with pytest.raises((ValueError, TypeError)):
            in_order([b"a", b"z"], order)


def test_containers() -> None:
    assert container_of("list", None, None, {1: "b", 0: "a"}, "") == ["a", "b"]
    row: Any = container_of("namedtuple", "Row", None, {"z": 1, "a": 2}, "")
    assert type(row).__name__ == "Row" and row._fields == ("z", "a") and row == (1, 2)
    found = container_of("list", None, '["deque", 2]', {0: 1}, "")
    assert found == collections.deque([1]) and found.maxlen == 2
    record: Any = container_of("dict", None, '["dataclass", "m", "Plan", ["a"]]', {"a": 1}, "")
    assert isinstance(record, deeppart.SavedRecord) and record.a == 1


def test_what_is_refused_takes_with_it_what_needs_it() -> None:
    assert container_of("dict", None, None, {"a": REFUSED, "b": 1}, "") == {"a": REFUSED, "b": 1}
    for kind, form in (("list", None), ("namedtuple", None), ("dict", '["namespace"]')):
        assert container_of(kind, "N", form, {0: REFUSED} if kind == "list" else {"a": REFUSED}, "") is REFUSED
    assert first_refused({"a": [1, (REFUSED,)]}) is REFUSED and first_refused({"a": [1]}) is None


@pytest.mark.parametrize(
    ("kind", "form", "items"),
    [
        ("set", None, {}), ("list", None, {1: 1}), ("list", None, {"0": 1}), ("dict", '["deque", null]', {}),
        ("dict", '["registered"]', {}), ("dict", '["dataclass", "m", "a\\u0000", []]', {}), ("dict", "[]", {}),
        ("list", '["deque", -1]', {}), ("sparse_coo", None, {"indices": 1}),
    ],
)  # fmt: skip
def test_what_makes_nothing(kind: str, form: str | None, items: dict[Any, Any]) -> None:
    with pytest.raises((CorruptFileError, ValueError, StateError)):
        container_of(kind, None, form, items, "here")
