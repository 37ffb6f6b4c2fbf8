"""Bytes of the raw stream, and boxes of tensors, into arrays however those lie; impossible places are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deeppart
from deeppart.errors import CorruptFileError, FreedMemoryError
from deeppart.model import Box
from deeppart.state.pieces import LeafPiece, Source
from deeppart.state.restore.scatter import (
    LiveBox,
    Scatter,
    Wanted,
    cut_patch,
    patches,
    whole_leaves,
)
from tests.unit.state.restore.mismatches import check_brought_back, config, zeros

COUNTING = np.arange(24, dtype=np.uint8)


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
    scatter = Scatter(whole_leaves({5: array}))
    for start in range(0, 24, cut):
        pieces = [LeafPiece(4, 0, 0, 1, 0), LeafPiece(5, 0, start, min(cut, 24 - start), 1)]  # nobody wants leaf 4
        scatter.write(0, pieces, np.concatenate([[99], COUNTING[start : start + cut]]).astype(np.uint8))
    assert np.asarray(array).reshape(-1).tobytes() == COUNTING.tobytes()


@pytest.mark.parametrize("nbytes", [0, 8])
@pytest.mark.parametrize("make", [_flat, _transposed])
@pytest.mark.parametrize("how", ["direct", "write"])
def test_memory_that_was_freed_before_its_first_use(how: str, make: Any, nbytes: int) -> None:
    tensor = make()
    scatter = Scatter(whole_leaves({3: tensor}))
    tensor.untyped_storage().resize_(nbytes)
    with pytest.raises(FreedMemoryError, match="leaf 3"):
        if how == "direct":
            scatter.direct(0, [LeafPiece(3, 0, 0, 4, 0)])
        else:
            scatter.write(0, [LeafPiece(3, 0, 0, 4, 0)], COUNTING)


@pytest.mark.parametrize("piece", [LeafPiece(0, 0, 20, 8, 0), LeafPiece(0, 0, 4000, 8, 0), LeafPiece(0, 0, 0, 12, 16)])
def test_what_would_lie_outside_is_not_written(piece: LeafPiece) -> None:
    """Beyond the leaf's memory, or beyond the chunk: by address nothing else would notice."""
    around = torch.zeros(30, dtype=torch.int16)
    leaf = torch.zeros(12, dtype=torch.int16)
    scatter = Scatter(whole_leaves({0: leaf}))
    with pytest.raises(CorruptFileError, match="leaf 0"):
        scatter.write(0, [piece], COUNTING)
    assert not leaf.any() and not around.any()


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


Bytes = npt.NDArray[np.uint8]


SHAPES = st.lists(st.integers(1, 5), max_size=4).map(tuple)
DTYPES = [torch.uint8, torch.bool, torch.bfloat16, torch.float32, torch.int64, torch.complex64, torch.complex128]


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    offset = tuple(draw(st.integers(0, length - 1)) for length in shape)
    return Box(offset, tuple(draw(st.integers(1, length - at)) for length, at in zip(shape, offset, strict=True)))


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], Box, Box, int, int]:
    """A shape, a source, a target, and a range of the elements of the source."""
    shape = draw(SHAPES)
    source, target = draw(boxes(shape)), draw(boxes(shape))
    start = draw(st.integers(0, source.elements))
    return shape, source, target, start, draw(st.integers(0, source.elements - start))


def numbered(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 251 + 1).to(dtype).view(shape)


def raw_bytes(tensor: torch.Tensor) -> Bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().copy()


def wanted(whole: torch.Tensor, source: Box, target: Box, start: int, count: int) -> torch.Tensor:
    """What the target holds of the elements of the source, 0 elsewhere: with a mark for each element."""
    has = torch.zeros(whole.shape, dtype=torch.bool)
    mark = torch.zeros(source.elements, dtype=torch.bool)
    mark[start : start + count] = True
    has[source.slices()] = mark.view(source.sizes)
    return torch.where(has, whole, torch.zeros((), dtype=whole.dtype))[target.slices()]


def memory_orders(sizes: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """Arrays of zeros of one shape that lie in memory in different ways."""
    turned = torch.zeros(sizes[::-1], dtype=dtype).permute(tuple(range(len(sizes)))[::-1])
    spread = torch.zeros([*sizes, 3], dtype=dtype)[..., 1]
    return [torch.zeros(sizes, dtype=dtype), turned, spread]


Whole = tuple[tuple[int, ...], Box, Box, int, int]


@settings(deadline=None)
@given(cases(), st.sampled_from(DTYPES), st.integers(0, 2), st.booleans())
def test_each_element_comes_where_numpy_says(case: Whole, dtype: torch.dtype, order: int, packed: bool) -> None:
    shape, source, target, start, count = case
    whole = numbered(shape, dtype)
    size = whole.element_size()
    data = raw_bytes(whole[source.slices()])[start * size : (start + count) * size]
    live = memory_orders(target.sizes, dtype)[order]
    scatter = Scatter([Wanted(Source(2, 5, 0, source), LiveBox(live, target), size, "x")])
    piece = LeafPiece(5, 0, start * size, count * size, 0)
    if packed:
        (want,) = scatter.wants_of(2, piece)
        found = patches(source, piece.start, piece.length, size, target)
        pieces = [cut_patch(data, patch, size).tobytes() for patch in found]
        sent = np.frombuffer(b"".join(pieces), dtype=np.uint8)
        assert scatter.fill_packed(want, piece, sent, 0) == len(sent) == want.nbytes_of(piece)
    else:
        scatter.write(2, [piece], data)
    assert torch.equal(live, wanted(whole, source, target, start, count))
