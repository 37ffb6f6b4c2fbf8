"""Open foreign checkpoints: what globs choose, and spans whose checksum is compared when all of them was read."""

from __future__ import annotations

import zlib
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from deeppart.errors import CorruptFileError, StructureMismatchError
from deeppart.interop.files import ForeignFile
from deeppart.interop.opened import FileSpan, Opened, address_of, tensors_in
from deeppart.testing.states import difference


def test_a_checksum_is_of_all_bytes(tmp_path: Path) -> None:
    data = bytes(range(200))
    (tmp_path / "x").write_bytes(b"head" + data)
    buffer = bytearray(200)
    with ForeignFile(tmp_path / "x") as file:
        for crc in (zlib.crc32(data), zlib.crc32(data) ^ 1):
            span = FileSpan(file, 4, 200, crc, "it")
            span.read_into(50, memoryview(buffer)[:10])  # some of it alone says nothing
            span.read_into(0, memoryview(buffer)[:120])
            if crc == zlib.crc32(data):
                span.read_into(120, memoryview(buffer)[120:])
                assert bytes(buffer) == data
            else:
                with pytest.raises(CorruptFileError, match="is damaged"):
                    span.read_into(120, memoryview(buffer)[120:])


def test_globs_choose(tmp_path: Path) -> None:
    state = {"m": {"a": torch.ones(1), "b": [1, {"c": 2}]}, 5: (3, 4), "n": None}
    for keys, expected in (
        ("m", {"m": state["m"]}),
        ("m/b/*/c", {"m": {"b": [{"c": 2}]}}),
        (["5", "n"], {5: (3, 4), "n": None}),
        ("5/1", {5: [4]}),
        (None, state),
    ):
        opened = Opened("torch", state, {}, 1, ExitStack())
        opened.choose(keys, "here")
        assert difference(expected, opened.state) is None
    with pytest.raises(StructureMismatchError, match="m/a"):
        Opened("torch", state, {}, 1, ExitStack()).choose("x", "here")


def test_tensors_and_their_addresses() -> None:
    a, b = torch.ones(2), torch.zeros(0)
    assert [x is y for x, y in zip(tensors_in({"x": [a, (b,)], "y": 5, "z": a}), (a, b, a), strict=True)] == [True] * 3
    assert address_of(a[1:]) == a.data_ptr() and address_of(b) == 0 and address_of(torch.eye(2).to_sparse()) == 0
