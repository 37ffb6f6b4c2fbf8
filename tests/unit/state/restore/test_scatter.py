"""Bytes of the raw stream, and boxes of tensors, into arrays however those lie; impossible places are refused."""

from __future__ import annotations

from collections.abc import Iterator
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
from deeppart.part import SPAN_DTYPE
from deeppart.state.pieces import ANY_PART, LeafPiece, PartPieces, Source, piece_keys
from deeppart.state.restore.scatter import (
    LiveBox,
    Scatter,
    Wanted,
    cut_patch,
    patch_bytes,
    patches,
    whole_leaves,
)
from deeppart.state.tensors.leaves import LeafType

COUNTING = np.arange(24, dtype=np.uint8)


def spans(*rows: tuple[int, int, int, int, int, int]) -> np.ndarray:
    return np.array([*rows], dtype=SPAN_DTYPE)


def test_spans_are_cut_where_chunks_end() -> None:
    rows = spans((7, 0, 0, 0, 10, 0), (8, 0, 3, 4, 6, 10))
    pieces = PartPieces(rows, np.array([0, 4, 12, 16], dtype=np.uint64))
    assert [pieces.of(chunk) for chunk in range(3)] == [
        [LeafPiece(7, 0, 0, 4, 0)],
        [LeafPiece(7, 0, 4, 6, 0), LeafPiece(8, 3, 4, 2, 6)],
        [LeafPiece(8, 3, 6, 4, 0)],
    ]
    for wanted, chunks in (
        ([(7, 0)], [0, 1]),
        ([(8, 3)], [1, 2]),
        ([(8, 0), (7, 3), (9, 0)], []),
        ([(8, 3), (7, 0)], [0, 1, 2]),
    ):
        assert pieces.chunks_of(piece_keys(wanted)) == chunks
    assert PartPieces(spans(), np.array([0], dtype=np.uint64)).chunks_of(piece_keys([(7, 0)])) == []


def _flat() -> Any:
    return torch.zeros(12, dtype=torch.int16)


def _transposed() -> Any:
    return torch.zeros(3, 4, dtype=torch.int16).T


def _columns() -> Any:
    return np.zeros((4, 6), dtype=np.int16)[:, ::2]


@pytest.mark.parametrize("make", [_flat, _transposed, _columns])
@pytest.mark.parametrize("cut", [2, 8])
def test_bytes_come_to_the_elements_in_c_order(make: Any, cut: int) -> None:
    array = make()
    scatter = Scatter(whole_leaves({5: array}))
    for start in range(0, 24, cut):
        pieces = [LeafPiece(4, 0, 0, 1, 0), LeafPiece(5, 0, start, cut, 1)]  # nobody wants leaf 4
        scatter.write(0, pieces, np.concatenate([[99], COUNTING[start : start + cut]]).astype(np.uint8))
    assert np.asarray(array).reshape(-1).tobytes() == COUNTING.tobytes()


def test_only_one_piece_of_an_array_in_order_is_received_where_it_belongs() -> None:
    flat, transposed = _flat(), _transposed()
    scatter = Scatter(whole_leaves({0: flat, 1: transposed}))
    there = scatter.direct(0, [LeafPiece(0, 0, 4, 6, 0)], 6)
    assert there is not None and there.size == 6
    there[:] = 7
    assert flat.view(torch.uint8).tolist() == [0] * 4 + [7] * 6 + [0] * 14
    assert scatter.direct(0, [LeafPiece(1, 0, 4, 6, 0)], 6) is None, "not in order"
    assert (
        scatter.direct(0, [LeafPiece(0, 0, 0, 2, 0), LeafPiece(0, 0, 2, 2, 2)], 4) is None
        and scatter.direct(0, [], 0) is None
    )
    assert scatter.direct(0, [LeafPiece(9, 0, 0, 2, 0)], 2) is None, "not wanted"
    assert scatter.direct(0, [LeafPiece(0, 0, 0, 2, 0)], 4) is None, "the rest of the chunk is not known here"


@pytest.mark.parametrize("nbytes", [0, 8])
@pytest.mark.parametrize("make", [_flat, _transposed])
@pytest.mark.parametrize("how", ["direct", "write"])
def test_memory_that_was_freed_before_its_first_use(how: str, make: Any, nbytes: int) -> None:
    tensor = make()
    scatter = Scatter(whole_leaves({3: tensor}))
    tensor.untyped_storage().resize_(nbytes)
    with pytest.raises(FreedMemoryError, match="leaf 3"):
        if how == "direct":
            scatter.direct(0, [LeafPiece(3, 0, 0, 4, 0)], 4)
        else:
            scatter.write(0, [LeafPiece(3, 0, 0, 4, 0)], COUNTING)


def test_an_array_that_was_resized_before_its_first_use() -> None:
    array = np.zeros(1000)
    scatter = Scatter(whole_leaves({0: array}))
    array.resize((3,), refcheck=False)
    with pytest.raises(FreedMemoryError, match="leaf 0"):
        scatter.direct(0, [LeafPiece(0, 0, 0, 8, 0)], 8)


@pytest.mark.parametrize("piece", [LeafPiece(0, 0, 20, 8, 0), LeafPiece(0, 0, 4000, 8, 0), LeafPiece(0, 0, 0, 12, 16)])
def test_what_would_lie_outside_is_not_written(piece: LeafPiece) -> None:
    """Beyond the leaf's memory, or beyond the chunk: by address nothing else would notice."""
    around = torch.zeros(30, dtype=torch.int16)
    leaf = torch.zeros(12, dtype=torch.int16)
    scatter = Scatter(whole_leaves({0: leaf}))
    with pytest.raises(CorruptFileError, match="leaf 0"):
        scatter.write(0, [piece], COUNTING)
    assert not leaf.any() and not around.any()


@pytest.mark.parametrize("elements", [5, 70_000, 300_000])
def test_short_pieces_and_long_ones_in_one_chunk(elements: int) -> None:
    """Long ones are copied while other threads run, short ones by address."""
    rng = np.random.default_rng(elements)
    saved = rng.integers(0, 256, 12 + 4 * elements, dtype=np.uint8)
    short, long = torch.zeros(3, dtype=torch.int32), np.zeros(elements, dtype=np.int32)
    Scatter(whole_leaves({0: short, 9: long})).write(
        0, [LeafPiece(0, 0, 0, 12, 0), LeafPiece(9, 0, 0, 4 * elements, 12)], saved
    )
    assert short.numpy().tobytes() + long.tobytes() == saved.tobytes()


def test_memory_around_a_strided_leaf_is_left_alone(ck: deeppart.Checkpointer) -> None:
    base = torch.full((9, 10), -1.0)
    array = np.full(40, -1)
    ck.checkpoint([torch.arange(9.0).view(3, 3), np.arange(10)], step=1).wait(timeout=200)
    ck.restore([base[1:8:3, 2:9:3], array[3:33:3]])
    assert torch.equal(base[1:8:3, 2:9:3], torch.arange(9.0).view(3, 3)) and int((base == -1).sum()) == 81
    assert array[3:33:3].tolist() == list(range(10)) and int((array == -1).sum()) == 30


KIND = LeafType("torch", "int32", (4, 6))
WHOLE = torch.arange(24, dtype=torch.int32).view(4, 6)
LEFT, RIGHT = Box((0, 0), (4, 2)), Box((0, 2), (4, 4))
Bytes = npt.NDArray[np.uint8]


#: The left columns are box 0 of leaf 5, in part 0; the right ones box 1, of which parts 0 and 1 have half the bytes.
SOUND = Source(ANY_PART, 5, 0, LEFT), Source(ANY_PART, 5, 1, RIGHT)


def wanted_of(live: LiveBox) -> Iterator[Wanted]:
    return (Wanted(source, live, KIND.itemsize, "w") for source in SOUND if source.box.meets(live.box))


def raw(box: Box) -> Bytes:
    return WHOLE[box.slices()].contiguous().view(-1).view(torch.uint8).numpy()


def fill(scatter: Scatter) -> None:
    """Give it two chunks of part 0, of two and one pieces, and one of part 1."""
    first = np.concatenate([np.zeros(8, dtype=np.uint8), raw(LEFT), raw(RIGHT)[:12]])
    scatter.write(0, [LeafPiece(5, 0, 0, 32, 8), LeafPiece(5, 1, 0, 12, 40), LeafPiece(5, 9, 0, 8, 0)], first)
    scatter.write(0, [LeafPiece(5, 1, 12, 20, 0)], raw(RIGHT)[12:32])
    scatter.write(1, [LeafPiece(5, 1, 32, 32, 4)], np.concatenate([np.zeros(4, dtype=np.uint8), raw(RIGHT)[32:]]))


def test_each_array_gets_its_box() -> None:
    whole, column = torch.zeros(4, 6, dtype=torch.int32), torch.zeros(3, 1, dtype=torch.int32)
    rows = torch.zeros(6, 2, dtype=torch.int32).T
    nothing = torch.zeros(0, 6, dtype=torch.int32)
    boxes = [
        LiveBox.whole(whole),
        LiveBox(column, Box((1, 2), (3, 1))),
        LiveBox(nothing, Box((4, 0), (0, 6))),
        LiveBox(rows, Box((2, 0), (2, 6))),
    ]
    scatter = Scatter(each for live in boxes for each in wanted_of(live))
    fill(scatter)
    assert torch.equal(whole, WHOLE) and torch.equal(column, WHOLE[1:, 2:3]) and torch.equal(rows, WHOLE[2:])


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


@given(cases())
def test_what_is_wanted_is_found_in_few_patches_and_counted_once(case: Whole) -> None:
    shape, source, target, start, count = case
    found = list(patches(source, 8 * start, 8 * count, 8, target))
    assert len(found) <= max(1, 2 * len(shape) - 1)
    ones = wanted(torch.ones(shape), source, target, start, count)
    assert sum(patch_bytes(patch, 8) for patch in found) == 8 * int(ones.sum())


def test_an_array_of_the_other_byte_order_is_written_byte_by_byte() -> None:
    live: npt.NDArray[Any] = np.zeros((3, 8), dtype=">i4")[:, ::2]
    whole = np.arange(12, dtype=live.dtype).reshape(3, 4)
    saved = np.frombuffer(np.pad(whole, 1).astype(whole.dtype).tobytes(), dtype=np.uint8)
    scatter = Scatter([Wanted(Source(0, 0, 0, Box.whole((5, 6))), LiveBox(live, Box((1, 1), (3, 4))), 4, "x")])
    scatter.write(0, [LeafPiece(0, 0, 0, 120, 0)], saved)
    assert live.tolist() == whole.tolist()


def test_bits_that_are_no_number_stay_what_they_are() -> None:
    """Signalling NaNs, in every memory order."""
    bits = torch.tensor([0x7F800001, 0x7FC00001, -1], dtype=torch.int32)
    for live in memory_orders((3,), torch.float32):
        scatter = Scatter([Wanted(Source(0, 0, 0, Box.whole((4,))), LiveBox(live, Box.whole((3,))), 4, "x")])
        scatter.write(0, [LeafPiece(0, 0, 0, 12, 0)], raw_bytes(bits))
        assert live.contiguous().view(torch.int32).tolist() == bits.tolist()
