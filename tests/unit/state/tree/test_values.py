"""Small values: every one comes back as it was, to the last bit."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.state.tree.values import decode_value, encode_value
from tests.unit.round_trip import both_ways, restore, save, wrapped

HUGE = 7**20000  # 16,903 digits; str() of an int refuses beyond 4,300


def test_a_value_can_be_the_root(tmp_path: Path) -> None:
    save(tmp_path, 42)
    assert deeppart.load(tmp_path / "ckpt") == 42
    assert restore(tmp_path, 42) == 42


# --- small values -----------------------------------------------------------------------------------------------------


def nan(bits: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return value


VALUES: dict[str, Any] = {
    "none": None,
    "bools": [True, False],
    "ints": [0, -1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**64, HUGE, -HUGE],
    "floats": [0.0, -0.0, 1.5, 5e-324, -5e-324, 1.7976931348623157e308, 0.1 + 0.2, 1e16, 1e22, 123456789.123456789],
    "infinities": [math.inf, -math.inf],
    "nans": [math.nan, nan(0x7FF8DEADBEEF0001), nan(0xFFF8000000000000), nan(0x7FF0000000000001)],
    "complex": [0j, complex(-0.0, 0.0), complex(0.0, -0.0), complex(math.nan, math.inf), 1e300 + 1e-300j],
    "texts": ["", "ascii", "ä€𝄞", "\0", "a\0b", "\n\r\t\x1b", '"\\', "x" * 100_000],
    "surrogates": ["\ud800", "\udfff", "\ud800\udc00", "a\ud83d", "\ude00\ud83d"],
    "like tags": ["int", ["int", "ff"], ["float", "00"], "\u2028"],
    "bytes": [b"", b"\0\xff", bytes(range(256)), b"x" * 100_000],
    "torch": [torch.float32, torch.bfloat16, torch.qint8, torch.bits8, torch.device("cuda:3"), torch.device("meta")],
    "sizes": [torch.Size([]), torch.Size([3, 0])],
    "numpy scalars": [
        np.float32(1.5), np.float64(-0.0), np.float16("nan"), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True),
        np.complex64(1 - 2j), np.longdouble("1.1"), np.str_("ü\0x"), np.str_("a\0\0"), np.str_(""),
        np.bytes_(b"a\xff"), np.bytes_(b"a\0\0"), np.bytes_(b""),
        np.datetime64("2024-02-29T12:00:00.123456789"), np.datetime64("NaT"), np.timedelta64(-5, "ms"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_values(tmp_path: Path, name: str) -> None:
    both_ways(tmp_path, wrapped(VALUES[name]))


@pytest.mark.parametrize("name", VALUES)
def test_values_encode_to_json_that_decodes_to_them(name: str) -> None:
    import json

    from deeppart.testing.states import value_bits

    for value in VALUES[name] if isinstance(VALUES[name], list) else [VALUES[name]]:
        if not isinstance(value, list):
            text = json.dumps(encode_value(value, "here"), allow_nan=False)
            assert text.isascii() and len(text) < 300_000
            assert value_bits(decode_value(json.loads(text), "here")) == value_bits(value)


@pytest.mark.parametrize(
    ("kind", "stored"), [(np.longlong, np.int64), (np.ulonglong, np.uint64), (np.intc, np.int32), (np.half, np.float16)]
)
def test_numpy_types_that_a_file_does_not_tell_apart(tmp_path: Path, kind: Any, stored: Any) -> None:
    """numpy has a second type for integers of 64 bits, which it writes like the first."""
    run = [kind(n) for n in range(20)]
    state = {"n": kind(7), "run": run, "array": np.arange(3, dtype=kind), "keys": {kind(5): 1, "a": 2, 3: 3, 2.5: 4}}
    save(tmp_path, state)
    live = restore(tmp_path, {**state, "n": kind(0), "keys": {kind(5): 0, "a": 0, 3: 0, 2.5: 0}})
    for found in (deeppart.load(tmp_path / "ckpt"), live):
        assert type(found["n"]) is stored and found["n"] == 7
        assert set(map(type, found["run"])) == {stored} and found["run"] == run
        assert found["array"].dtype == stored and list(found["array"]) == [0, 1, 2]
        assert found["keys"] == {5: 1, "a": 2, 3: 3, 2.5: 4}
