"""Headers of safetensors: what the library's own reader takes, and nothing that could make us take memory for."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deeppart.errors import CorruptFileError
from deeppart.interop.safetensors import check_length, decode_header, encode_header

F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def decoded(document: Any, payload: int = 8) -> Any:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return decode_header(data, payload, "here")


def test_a_header_says_what_it_was_given() -> None:
    rows: list[tuple[str, str, tuple[int, ...], int]] = [("a.b", "float32", (2, 3), 24), ("pairs", "uint8", (0,), 0)]
    data, payload = encode_header(rows, {"format": "pt"})
    assert len(data) % 8 == 0 and payload == 24
    found = decode_header(data[8:], payload, "here")
    assert found.metadata == {"format": "pt"} and list(found.entries) == ["a.b", "pairs"]
    first = found.entries["a.b"]
    assert (first.dtype, first.shape, first.offset, first.nbytes) == (torch.float32, (2, 3), len(data), 24)


@pytest.mark.parametrize(
    ("document", "payload"),
    [
        ({"a": F32}, 12),  # bytes that are nobody's
        ({"a": F32 | {"data_offsets": [4, 12]}}, 12),
        ({"a": F32, "b": F32}, 8),  # that are two's
        ({"a": F32, "b": F32 | {"data_offsets": [4, 12]}}, 12),
        ({"a": F32 | {"data_offsets": [0, 1 << 40], "shape": [1 << 38]}}, 8),  # beyond the file
        ({"a": F32 | {"data_offsets": [8, 0]}}, 8),
        ({"a": F32 | {"data_offsets": [-8, 0]}}, 8),
        ({"a": F32 | {"data_offsets": [0]}}, 8),
        ({"a": F32 | {"data_offsets": [0.0, 8.0]}}, 8),
        ({"a": F32 | {"shape": [3]}}, 8),
        ({"a": F32 | {"shape": [True, 2]}}, 8),
        ({"a": F32 | {"shape": [-1, -2]}}, 8),
        ({"a": F32 | {"shape": [1] * 70 + [2]}}, 8),
        ({"a": F32 | {"shape": 2}}, 8),
        ({"a": F32 | {"dtype": "F33"}}, 8),
        ({"a": F32 | {"dtype": ["F32"]}}, 8),
        ({"a": F32 | {"dtype": "F4", "shape": [15], "data_offsets": [0, 8]}}, 8),
        ({"a": F32 | {"more": 1}}, 8),
        ({"a": None}, 8),
        ({"a": F32, "__metadata__": {"k": 5}}, 8),
        ({"a": F32, "__metadata__": []}, 8),
        (
            b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
            8,
        ),
        (b'{"a":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}}', 8),
        (b'[{"a":1}]', 0),
        (b" {}", 0),
        (b"{" * 100_000, 0),
        (b'{"a":' + b"[" * 100_000, 0),
        (b"\xff\xfe", 0),
        (b'{"a":1e999}', 0),
        (b"", 0),
    ],
)
def test_damage(document: Any, payload: int) -> None:
    with pytest.raises(CorruptFileError):
        decoded(document, payload)


def test_lengths_that_no_file_has_take_no_memory() -> None:
    tracemalloc.start()
    try:
        for length in (1 << 40, (1 << 64) - 1, 100_000_001, 0, 1):
            with pytest.raises(CorruptFileError):
                check_length(length.to_bytes(8, "little"), 1000, "here")
        with pytest.raises(CorruptFileError):
            check_length(b"\0\0", 2, "here")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,0123456789aFdtypeshdata_offsets', max_size=80))
def test_anything_else_is_damage(noise: Any) -> None:
    data = noise if isinstance(noise, bytes) else noise.encode()
    with contextlib.suppress(CorruptFileError):
        assert decode_header(data, 0, "here").entries == {}


def test_a_header_may_not_be_too_long() -> None:
    with pytest.raises(ValueError, match="a header of"):
        encode_header([], {"v": "x" * 100_000_000})
