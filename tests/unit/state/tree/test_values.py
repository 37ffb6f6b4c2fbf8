"""Small values come back to the last bit, in an order of their own; what cannot be stored is told with a conversion."""

from __future__ import annotations

import datetime
import decimal
import enum
import io
import json
import math
import pathlib
import random
import re
import struct
import types
import zoneinfo
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.errors import CorruptFileError, UnsupportedLeafError
from deeppart.state.paths.keys import canonical_order, component, id_key
from deeppart.state.tree.flattening import flatten
from deeppart.state.values import (
    MOST_LEVELS,
    conversion,
    decode_key,
    decode_value,
    describe_value,
    encode_key,
    encode_value,
    put_in,
    same_value,
    text_of,
)
from tests.features.script_files import bits
from tests.features.script_values import Phase, Rights, values
from tests.states import value_bits

HUGE = 7**20000  # 16,903 digits; str() of an int refuses beyond 4,300


def nan(bits: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return value


VALUES: list[Any] = [
    None, True, False, 0, -1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**64, HUGE, -HUGE,
    0.0, -0.0, 1.5, 5e-324, -5e-324, 1.7976931348623157e308, 0.1 + 0.2, 1e16, 1e22, 123456789.123456789,
    math.inf, -math.inf, math.nan, nan(0x7FF8DEADBEEF0001), nan(0xFFF8000000000000), nan(0x7FF0000000000001),
    0j, complex(-0.0, 0.0), complex(0.0, -0.0), complex(math.nan, math.inf), 1e300 + 1e-300j,
    "", "ascii", "ä€𝄞", "\0", "a\0b", "\n\r\t\x1b", '"\\', "x" * 100_000, "int", "\u2028",
    "\ud800", "\udfff", "\ud800\udc00", "a\ud83d", "\ude00\ud83d",
    b"", b"\0\xff", bytes(range(256)), b"x" * 100_000,
    torch.float32, torch.bfloat16, torch.qint8, torch.bits8, torch.device("cuda:3"), torch.device("meta"),
    torch.Size([]), torch.Size([3, 0]),
    np.float32(1.5), np.float64(-0.0), np.float16("nan"), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True),
    np.complex64(1 - 2j), np.longdouble("1.1"), np.str_("ü\0x"), np.str_("a\0\0"), np.str_(""),
    np.bytes_(b"a\xff"), np.bytes_(b"a\0\0"), np.bytes_(b""),
    np.datetime64("2024-02-29T12:00:00.123456789"), np.datetime64("NaT"), np.timedelta64(-5, "ms"),
]  # fmt: skip


def test_values_encode_to_json_that_decodes_to_them() -> None:
    for value in VALUES:
        text = json.dumps(encode_value(value, "here"), allow_nan=False)
        assert text.isascii() and len(text) < 300_000
        assert value_bits(decode_value(json.loads(text), "here")) == value_bits(value)


SETS: list[Any] = [
    set(), {1}, {True}, {-0.0}, {"b", "a"}, {1, 1.5, "1", None, b"1"}, {(1, 2), (1,), ()}, {("a", 1), ("b", 0)},
    {("\ud800",), ("a",)}, {"\ud800", "a"}, {1 << 70, 0}, {float("inf"), 1.0}, frozenset({frozenset({1}), frozenset()}),
    {(1, True), (1, 2.5)}, {pathlib.PurePosixPath("a"), pathlib.PurePosixPath("b")}, {(1 << 70, "a"), (2, "b")},
]  # fmt: skip


@pytest.mark.parametrize("value", [*values(1).values(), *SETS], ids=lambda each: type(each).__name__)
def test_each_is_read_as_it_was_and_written_so_again(value: Any) -> None:
    encoded = json.loads(json.dumps(encode_value(value, "v")))
    found = decode_value(encoded, "here")
    assert json.dumps(encode_value(found, "v")) == json.dumps(encoded)
    if "SavedMember" not in str(bits(found)) and "Phase" not in str(value) and not isinstance(value, enum.Enum):
        assert bits(found) == bits(value) or "Level" in str(value)


def test_the_order_does_not_depend_on_that_of_a_set() -> None:
    """Which is another one in each process, where texts have other hashes; here, numbers with the same."""
    numbers, rng = range(0, 1 << 12, 1 << 8), random.Random(1)
    sets: list[set[Any]] = []
    for _ in range(20):
        inner = frozenset(rng.sample(numbers, len(numbers)))
        sets.append(set(rng.sample([*numbers, "b", "a", ("x", None), inner], len(numbers) + 4)))
    assert len({repr(each) for each in sets}) > 1 and all(each == sets[0] for each in sets)
    assert len({json.dumps(encode_value(each, "")) for each in sets}) == 1


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


class Settings(dict[str, int]):
    pass


class Count(int):
    pass


class OnlyHalf:
    def state_dict(self) -> dict[str, int]:
        return {"a": 1}


def derived(kind: Any) -> Any:
    """A subclass of a type, which may have more to it."""
    return type("Derived", (kind,), {})


def known_as(module: str, name: str, base: Any = None) -> Any:
    """An object of a class by that name: conversions go by names, and nothing is imported for them."""
    bases = () if base is None else (Shown,)
    made = type(name, bases, {"__module__": module, "__qualname__": name, "to_dict": lambda self: {"a": 1}})
    return made()


class Shown(pathlib.PurePosixPath):
    pass


OmegaConf = types.SimpleNamespace(to_container=lambda config: config.to_dict())


CASES: list[tuple[Any, list[str]]] = [
    (known_as("omegaconf.dictconfig", "DictConfig"), ["OmegaConf.to_container(x)"]),
    (known_as("transformers.configuration_utils", "PretrainedConfig"), ["x.to_dict()"]),
    (derived(types.SimpleNamespace)(rate=0.1), ["dict(vars(x))"]),
    ({"a": 1}.keys(), ["list(x)"]),
    (derived(set)({3, 1}), ["set(x)"]),
    (zoneinfo.ZoneInfo("UTC"), ["x.key"]),
    (derived(datetime.datetime)(2026, 1, 2, 3), ["x.isoformat()", "x.timestamp()"]),
    (derived(np.random.Generator)(np.random.MT19937(1)), ["x.bit_generator"]),
    (np.ma.masked_array([1, 2], mask=[True, False]), ["x.data", "np.ma.getmaskarray(x)"]),
    (random.SystemRandom(1), []),
    (derived(decimal.Decimal)("0.1"), ["str(x)"]),
    (memoryview(b"a"), ["bytes(x)"]),
    (types.MappingProxyType({"a": 1}), ["dict(x)"]),
    (Settings(a=1), ["dict(x)"]),
    (torch.ones(2, 2).max(dim=0), ["tuple(x)"]),
    (Count(1), ["int(x)"]),
    (OnlyHalf(), ["x.state_dict()"]),
    (lambda epoch: 0.9**epoch, []),
    (object(), []),
]


@pytest.mark.parametrize(("value", "conversions"), CASES, ids=lambda each: type(each).__name__)
def test_the_message_names_conversions_that_can_be_stored(value: Any, conversions: list[str]) -> None:
    with pytest.raises(UnsupportedLeafError, match="path v") as caught:
        flatten({"v": value})
    todo = str(caught.value.todo)
    assert todo == conversion(value)
    for expression in conversions:
        assert re.search(rf"(save|or|and) {re.escape(expression)}(\W|$)", todo), todo
        flatten({"v": eval(expression, {"x": value, "OmegaConf": OmegaConf, "np": np})})
    if not conversions:
        assert "leave it out" in todo or "convert the value" in todo


def test_keys_are_nested_no_deeper_than_they_can_be_read_again() -> None:
    key: Any = 1
    for _ in range(MOST_LEVELS):
        key = (key,)
    assert decode_key(json.loads(json.dumps(encode_key(key, "x"))), "x") == key
    with pytest.raises(UnsupportedLeafError, match="more than 16 tuples"):
        encode_key((key,), "x")


def test_a_value_with_an_int_that_python_does_not_print_has_a_text() -> None:
    large = 10**5000
    for value in (Fraction(1, large), range(large), {large}, slice(large)):
        assert describe_value(value)
        assert text_of(value)
