"""Bytes of the raw stream go to their places, however arrays lie; places that make no sense are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import CorruptFileError, FreedMemoryError
from deeppart.part import SPAN_DTYPE
from deeppart.state.restore.scatter import LeafPiece, Scatter, check_cover, chunk_pieces
from deeppart.state.tree.leaves import LeafType
from tests.unit.state.restore.mismatches import check_brought_back, config, zeros

COUNTING = np.arange(24, dtype=np.uint8)


def spans(*rows: tuple[int, int, int, int, int]) -> np.ndarray:
    return np.array([*rows], dtype=SPAN_DTYPE)


def test_spans_are_cut_where_chunks_end() -> None:
    rows = spans((7, 0, 0, 10, 0), (8, 0, 4, 6, 10))
    assert chunk_pieces(rows, np.array([0, 4, 12, 16], dtype=np.uint64)) == [
        [LeafPiece(7, 0, 4, 0)],
        [LeafPiece(7, 4, 6, 0), LeafPiece(8, 4, 2, 6)],
        [LeafPiece(8, 6, 4, 0)],
    ]
    assert chunk_pieces(spans(), np.array([0], dtype=np.uint64)) == []


def _flat() -> Any:
    return torch.zeros(12, dtype=torch.int16)


def _transposed() -> Any:
    return torch.zeros(3, 4, dtype=torch.int16).T


def _every_other() -> Any:
    return torch.zeros(24, dtype=torch.int16)[::2]


def _numpy_columns() -> Any:
    return np.zeros((4, 6), dtype=np.int16)[:, ::2]


@pytest.mark.parametrize("make", [_flat, _transposed, _every_other, _numpy_columns])
@pytest.mark.parametrize("cut", [2, 6, 8, 24])
def test_bytes_come_to_the_elements_in_c_order(make: Any, cut: int) -> None:
    array = make()
    scatter = Scatter({5: array})
    for start in range(0, 24, cut):
        pieces = [LeafPiece(4, 0, 1, 0), LeafPiece(5, start, min(cut, 24 - start), 1)]  # nobody wants leaf 4
        scatter.write(pieces, np.concatenate([[99], COUNTING[start : start + cut]]).astype(np.uint8))
    assert np.asarray(array).reshape(-1).tobytes() == COUNTING.tobytes()
    assert scatter.wants(5) and not scatter.wants(4)


def test_only_one_piece_of_an_array_in_order_is_received_where_it_belongs() -> None:
    flat, transposed = _flat(), _transposed()
    scatter = Scatter({0: flat, 1: transposed})
    there = scatter.direct([LeafPiece(0, 4, 6, 0)])
    assert there is not None and there.size == 6
    there[:] = 7
    assert flat.view(torch.uint8).tolist() == [0] * 4 + [7] * 6 + [0] * 14
    assert scatter.direct([LeafPiece(1, 4, 6, 0)]) is None, "not in order"
    assert scatter.direct([LeafPiece(0, 0, 2, 0), LeafPiece(0, 2, 2, 2)]) is None and scatter.direct([]) is None
    assert scatter.direct([LeafPiece(9, 0, 2, 0)]) is None, "not wanted"


@pytest.mark.parametrize("nbytes", [0, 8])
@pytest.mark.parametrize("make", [_flat, _transposed])
@pytest.mark.parametrize("how", ["direct", "write"])
def test_memory_that_was_freed_before_its_first_use(how: str, make: Any, nbytes: int) -> None:
    tensor = make()
    scatter = Scatter({3: tensor})
    tensor.untyped_storage().resize_(nbytes)
    with pytest.raises(FreedMemoryError, match="leaf 3"):
        if how == "direct":
            scatter.direct([LeafPiece(3, 0, 4, 0)])
        else:
            scatter.write([LeafPiece(3, 0, 4, 0)], COUNTING)


def test_an_array_that_was_resized_before_its_first_use() -> None:
    array = np.zeros(1000)
    scatter = Scatter({0: array})
    array.resize((3,), refcheck=False)
    with pytest.raises(FreedMemoryError, match="leaf 0"):
        scatter.direct([LeafPiece(0, 0, 8, 0)])


@pytest.mark.parametrize("piece", [LeafPiece(0, 20, 8, 0), LeafPiece(0, 4000, 8, 0), LeafPiece(0, 0, 12, 16)])
def test_what_would_lie_outside_is_not_written(piece: LeafPiece) -> None:
    """Beyond the leaf's memory, or beyond the chunk: by address nothing else would notice."""
    around = torch.zeros(30, dtype=torch.int16)
    leaf = torch.zeros(12, dtype=torch.int16)
    scatter = Scatter({0: leaf})
    with pytest.raises(CorruptFileError, match="leaf 0"):
        scatter.write([piece], COUNTING)
    assert not leaf.any() and not around.any()


@pytest.mark.parametrize("elements", [5, 70_000, 300_000])
def test_short_pieces_and_long_ones_in_one_chunk(elements: int) -> None:
    """Long ones are copied while other threads run, short ones by address."""
    rng = np.random.default_rng(elements)
    saved = rng.integers(0, 256, 12 + 4 * elements, dtype=np.uint8)
    short, long = torch.zeros(3, dtype=torch.int32), np.zeros(elements, dtype=np.int32)
    Scatter({0: short, 9: long}).write([LeafPiece(0, 0, 12, 0), LeafPiece(9, 0, 4 * elements, 12)], saved)
    assert short.numpy().tobytes() + long.tobytes() == saved.tobytes()


TYPES = [LeafType("tensor", "float32", (4,)), LeafType("tensor", "float32", (0,)), LeafType("tensor", "float32", (2,))]


@pytest.mark.parametrize(
    ("tables", "good"),
    [
        ([[(0, 0, 16), (2, 0, 8)]], True),
        ([[(2, 0, 8), (0, 8, 8)], [(0, 0, 8)]], True),
        ([[(2, 0, 8), (0, 8, 8)]], False),
        ([[(2, 0, 8), (0, 0, 8)]], False),
        ([[(2, 0, 8), (0, 0, 16)], [(0, 8, 8)]], False),
        ([[(2, 0, 8), (0, 0, 12), (0, 8, 8)]], False),
        ([[(2, 0, 8), (0, 0, 20)]], False),
        ([[(2, 0, 8), (0, 0, 16), (3, 0, 4)]], False),
        ([], False),
    ],
)
def test_every_byte_once(tables: list[list[tuple[int, int, int]]], good: bool) -> None:
    rows = [spans(*((leaf, 0, start, length, 0) for leaf, start, length in table)) for table in tables]
    if good:
        check_cover(TYPES, {0, 1, 2}, rows, "here")
    else:
        with pytest.raises(CorruptFileError, match="here"):
            check_cover(TYPES, {0, 1, 2}, rows, "here")


def test_what_is_not_wanted_need_not_be_there() -> None:
    check_cover(TYPES, {2}, [spans((2, 0, 0, 8, 0))], "here")


# --- through a whole restore ------------------------------------------------------------------------------------------

GOOD: dict[str, Callable[[], tuple[Any, Any]]] = {
    "strided live": lambda: (torch.arange(6.0).view(2, 3), zeros(4, 6)[::2, ::2]),
    "transposed live": lambda: (torch.arange(6.0).view(2, 3), zeros(3, 2).T),
    "reversed live": lambda: (np.arange(6).reshape(2, 3), np.zeros((2, 3), int)[::-1, ::-1]),
    "negative live": lambda: (np.arange(6.0), np.zeros(12)[::-2]),
    "odd address": lambda: (np.arange(3, dtype="i4"), np.frombuffer(bytearray(13), "u1")[1:].view("i4")),
    "strided text": lambda: (np.array([b"abc", b"d"]), np.zeros(4, "S3")[::2]),
    "channels last": lambda: (
        torch.arange(48.0).view(2, 3, 2, 4), zeros(2, 3, 2, 4).to(memory_format=torch.channels_last)),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_what_can_be_brought_back_is(tmp_path: Path, name: str) -> None:
    check_brought_back(tmp_path, *GOOD[name]())


@pytest.mark.parametrize("step", [0, 7])
def test_memory_around_a_strided_leaf_is_left_alone(tmp_path: Path, step: int) -> None:
    base = torch.full((9, 10), -1.0)
    array = np.full(40, -1)
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        ck.checkpoint([torch.arange(9.0).view(3, 3), np.arange(10)], step=step).wait(timeout=200)
        ck.restore([base[1:8:3, 2:9:3], array[3:33:3]])
    assert torch.equal(base[1:8:3, 2:9:3], torch.arange(9.0).view(3, 3)) and int((base == -1).sum()) == 81
    assert array[3:33:3].tolist() == list(range(10)) and int((array == -1).sum()) == 30
