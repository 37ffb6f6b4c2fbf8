"""Small values of the standard library: exact encodings, in an order of their own, and no others."""

from __future__ import annotations

import collections
import enum
import io
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from deeppart.errors import CorruptFileError, UnsupportedLeafError
from deeppart.state.tree.paths import canonical_order, component, id_key
from deeppart.state.tree.runs import decode_leaf_value, encode_leaf_value, is_extended_value
from deeppart.state.tree.values import SavedMember, decode_value, encode_key, encode_value, put_in, same_value
from tests.features.script_files import bits
from tests.features.script_values import Phase, Rights, values

SETS: list[Any] = [
    set(), {1}, {True}, {-0.0}, {"b", "a"}, {1, 1.5, "1", None, b"1"}, {(1, 2), (1,), ()}, {("a", 1), ("b", 0)},
    {("\ud800",), ("a",)}, {"\ud800", "a"}, {1 << 70, 0}, {float("inf"), 1.0}, frozenset({frozenset({1}), frozenset()}),
    {(1, True), (1, 2.5)}, {pathlib.PurePosixPath("a"), pathlib.PurePosixPath("b")}, {(1 << 70, "a"), (2, "b")},
]  # fmt: skip


@pytest.mark.parametrize("value", [*values(1).values(), *SETS], ids=lambda each: type(each).__name__)
def test_each_is_read_as_it_was_and_written_so_again(value: Any) -> None:
    encoded = json.loads(json.dumps(encode_leaf_value(value, "v")))
    found = decode_leaf_value(encoded, "here")
    assert json.dumps(encode_leaf_value(found, "v")) == json.dumps(encoded) and is_extended_value(encoded)
    if "SavedMember" not in str(bits(found)) and "Phase" not in str(value) and not isinstance(value, enum.Enum):
        assert bits(found) == bits(value) or "Level" in str(value)


def test_a_member_without_a_value_of_its_own_is_known_by_its_name() -> None:
    assert encode_value(Phase.OTHER, "") == ["enum", Phase.__module__, "Phase", "OTHER"]
    none = encode_value(Rights(0), "")
    assert none == ["enum", Rights.__module__, "Rights", None, 0]
    assert decode_value(none, "") == SavedMember(Rights.__module__, "Rights", None, 0)


MIXED: set[Any] = {"b", "a", "c", 1, ("x", None), frozenset({"p", "q", "r", "s"})}
IN_ORDER = """
import json
from deeppart.state.tree.values import encode_value
print(json.dumps(encode_value(%s, "")))
"""


def test_the_order_does_not_depend_on_the_process() -> None:
    """Another process has another seed for the hashes of texts than this one."""
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", IN_ORDER % MIXED],
        capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": seed}, timeout=100, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == encode_value(MIXED, "")


def test_keys_are_in_an_order_that_does_not_depend_on_how_python_shows_them() -> None:
    class Shy(enum.Enum):
        B, A = 2, 1

        def __repr__(self) -> str:
            return str(id(self))

    keys: dict[Any, int] = {Shy.B: 1, Shy.A: 2, frozenset("ab"): 3, (Shy.A, 1): 4}
    order = [frozenset("ab"), (Shy.A, 1)]
    found = canonical_order(keys)
    assert [each for each in found if not isinstance(each, enum.Enum)] in (order, order[::-1])
    assert [each for each in found if isinstance(each, enum.Enum)] == [Shy.A, Shy.B]
    assert component(Shy.A) == "Shy.A" and component(frozenset("ba")) == '["frozenset", ["a", "b"]]'


def test_a_key_and_what_a_file_gives_for_it_are_one() -> None:
    for key in (Phase.TRAIN, (Phase.WARMUP, 1), frozenset({Phase.WARMUP}), Rights.READ | Rights.WRITE, Rights(0)):
        stored = decode_value(json.loads(json.dumps(encode_key(key, ""))), "")
        assert stored != key and id_key(stored) == id_key(key) and component(stored) == component(key)
    assert len({id_key(key) for key in (1, True, 1.0, (1,), (True,), Phase.WARMUP, "Phase.WARMUP")}) == 7


REFUSED: list[Any] = [
    ["path", "posix", 5], ["path", "dir", "a"], ["path", "posix", "a//b"], ["path", "pure_posix"],
    ["date", 2026, 13, 1], ["date", 2026.0, 1, 1], ["date", True, 1, 1], ["date", 10**30, 1, 1],
    ["time", 1, 2, 3, 4, 0], ["time", 1, 2, 3, 4, 2, None], ["time", 1, 2, 3, 4, 0, 5],
    ["datetime", 2026, 1, 1, 0, 0, 0, 0, 0, "utc"], ["timedelta", 0, 90000, 0], ["timedelta", 10**12, 0, 0],
    ["timezone", 2, 0, 0], ["timezone", 0, 0, 0, 5], ["timezone", 0, 0, 0, "a", "b"], ["decimal", "1e"],
    ["decimal", 1], ["decimal", "1e5"], ["fraction", 2, 4], ["fraction", 1, 0], ["fraction", 1.5, 2],
    ["uuid", "0" * 31, "unknown"], ["uuid", "0" * 32, "sure"], ["range", 1, 2], ["range", 1, 2, 0],
    ["range", 1.0, 2, 1], ["slice", 1, 2], ["ellipsis", 1], ["torch_version", 5], ["torch_version"],
    ["bytearray", "a"], ["bytearray", b"YQ=="], ["bytesio", "YQ==", -1], ["bytesio", "YQ==", 1.0],
    ["bytesio", "YQ=="], ["set", [2, 1]], ["set", [1, 1]], ["set", [1, True]], ["set", "ab"],
    ["set", [["set", []]]], ["set", [["bytearray", ""]]], ["set", [["bytesio", "", 0]]], ["frozenset", [[]]],
    ["enum", "m", "C"], ["enum", "m", 5, "A"], ["enum", "m\0", "C", "A"], ["enum", "m", "C", 5, 1],
    ["enum", "m", "C", "A", 1, 2], ["enum", "m", "C", "A", ["set", []]],
    ["enum", "m", "C", "A", ["bytesio", "", 0]], ["Enum", "m", "C", "A", 1], [], [["set"], []], ["eval", "1"],
]  # fmt: skip


@pytest.mark.parametrize("encoded", REFUSED, ids=str)
def test_what_is_not_written_so_is_damage(encoded: Any) -> None:
    with pytest.raises(CorruptFileError):
        decode_value(encoded, "here")


def test_a_set_in_sets_is_as_deep_as_json_is() -> None:
    encoded: Any = ["frozenset", []]
    for _ in range(100_000):
        encoded = ["frozenset", [encoded]]
    with pytest.raises(CorruptFileError):
        decode_value(encoded, "here")


def test_values_that_change_stay_what_they_are() -> None:
    stream, octets, items = io.BytesIO(b"abcdef"), bytearray(b"abc"), {1, 2}
    other = io.BytesIO(b"x")
    other.seek(4)
    assert put_in(stream, other) is stream and (stream.getvalue(), stream.tell()) == (b"x", 4)
    assert put_in(octets, bytearray(b"zz")) is octets == bytearray(b"zz")
    assert put_in(items, {3}) is items == {3}
    with memoryview(octets), stream.getbuffer():  # they cannot be resized now
        assert put_in(octets, bytearray(b"long")) == bytearray(b"long") and octets == bytearray(b"zz")
        assert put_in(stream, other) is other


def test_what_is_equal_for_python_is_not_the_same_value() -> None:
    assert not same_value({1}, {True}) and not same_value({0.0}, {-0.0}) and same_value({1, 2}, {2, 1})
    assert not same_value(Phase.TRAIN, Phase.WARMUP) and not same_value(range(0), range(1, 1))


def test_keys_that_are_keys_by_identity_alone_are_refused() -> None:
    for key in (io.BytesIO(), (1, io.BytesIO())):
        with pytest.raises(UnsupportedLeafError, match="path v"):
            encode_key(key, "v")


def test_large_sets_stand_for_themselves_in_json() -> None:
    """Not a list for each item: 100,000 of them are encoded while training waits."""
    for items in (set(range(1000)), {str(number) for number in range(1000)}, {number / 7 for number in range(1000)}):
        _, found = encode_value(items, "")
        assert found == sorted(items) and collections.Counter(map(type, found)).keys() <= {int, str, float}
