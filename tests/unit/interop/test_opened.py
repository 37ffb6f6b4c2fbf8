"""Open foreign checkpoints: what globs choose, and spans whose checksum is compared when all of them was read."""

from __future__ import annotations

import zlib
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from deeppart.errors import CorruptFileError, StructureMismatchError, UnsupportedLeafError
from deeppart.interop.files import ForeignFile
from deeppart.interop.opened import FileSpan, Opened, address_of, check_tree, tensors_in
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
                span.check()
            else:
                with pytest.raises(CorruptFileError, match="is damaged"):
                    span.read_into(120, memoryview(buffer)[120:])
                with pytest.raises(CorruptFileError, match="is damaged"):
                    other = FileSpan(file, 4, 200, crc, "it")
                    other.read_into(50, memoryview(buffer)[:10])
                    other.check()


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


def paired(times: int, innermost: object) -> list[object]:
    """A list that has one twice, that has one twice, and so on: 2 to the power of ``times`` paths."""
    item = [innermost]
    for _ in range(times):
        item = [item, item]
    return item


def test_containers_that_stand_in_many_places_or_in_themselves_are_looked_into_once() -> None:
    a = torch.ones(2)
    inside: list[object] = [a]
    inside.append(inside)
    assert [each is a for each in tensors_in({"x": inside, "y": paired(60, 5)})] == [True]


@pytest.mark.parametrize("state", [[paired(60, 5)], {"x": [[]]}], ids=["paired", "deep"])
def test_what_is_no_tree_is_refused_by_name(state: object) -> None:
    if isinstance(state, dict):
        for _ in range(5000):
            state["x"] = [state["x"]]
    with pytest.raises(UnsupportedLeafError, match="no tree"):
        check_tree(state, "here")
    with pytest.raises(UnsupportedLeafError, match="no tree"):
        Opened("torch", state, {}, 1, ExitStack()).choose("x", "here")
    inside: list[object] = []
    inside.append({"x": (inside,)})
    with pytest.raises(UnsupportedLeafError, match="in itself"):
        check_tree(inside, "here")
    shared = [1, 2, {"x": 3}]
    check_tree([shared] * 100_000, "here")


def test_the_memory_of_what_was_not_chosen_belongs_to_nothing(tmp_path: Path) -> None:
    """It is given back, and what is put there next would be taken for the tensor that was there."""
    state = {"a": torch.ones(5000), "b": torch.ones(5000)}
    (tmp_path / "x").write_bytes(bytes(10))
    with ForeignFile(tmp_path / "x") as file:
        sources = {address_of(each): FileSpan(file, 0, 10) for each in state.values()}
        opened = Opened("torch", state, sources, 1, ExitStack())
        opened.choose("b", "here")
        assert opened.sources.keys() == {address_of(state["b"])}
