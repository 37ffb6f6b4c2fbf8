"""Bytes of one box of a tensor into another: what numpy finds there, for whatever ranges, sizes and memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deeppart.model.boxes import Box
from deeppart.state.restore.scatter import BoxWriter, Patch, cut_patch, packed_patch, patch_bytes, patches
from deeppart.state.tree.leaves import leaf_type

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


def raw(tensor: torch.Tensor) -> Bytes:
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
    data = raw(whole[source.slices()])[start * size : (start + count) * size]
    live = memory_orders(target.sizes, dtype)[order]
    writer = BoxWriter(live, leaf_type(live))
    found = list(patches(source, start * size, count * size, size, target))
    for patch in found:
        elements = cut_patch(data, patch, size)
        assert elements.nbytes == patch_bytes(patch, size)
        if packed:
            elements = packed_patch(np.frombuffer(elements.tobytes(), dtype=np.uint8), patch, size)
        writer.write(patch, elements)
    assert torch.equal(live, wanted(whole, source, target, start, count))


@given(cases())
def test_what_is_wanted_is_found_in_few_patches_and_counted_once(case: Whole) -> None:
    shape, source, target, start, count = case
    found = list(patches(source, 8 * start, 8 * count, 8, target))
    assert len(found) <= max(1, 2 * len(shape) - 1)
    ones = wanted(torch.ones(shape), source, target, start, count)
    assert sum(patch_bytes(patch, 8) for patch in found) == 8 * int(ones.sum())


@given(cases())
def test_all_pieces_of_a_source_together_are_all_that_it_has(case: Whole) -> None:
    """A shard may be spread over chunks, wherever those are cut."""
    _, source, target, first, second = case
    cuts = sorted({0, first, first + second, source.elements})
    found = [patch for a, b in pairwise(cuts) for patch in patches(source, 4 * a, 4 * (b - a), 4, target)]
    common = source.common(target)
    assert sum(patch_bytes(patch, 4) for patch in found) == (4 * common.elements if common else 0)


ARRAYS: dict[str, Callable[[], npt.NDArray[Any]]] = {
    "flat": lambda: np.zeros((3, 4), dtype=np.int32),
    "turned": lambda: np.zeros((4, 3), dtype=np.int32).T,
    "of the other byte order": lambda: np.zeros((3, 8), dtype=">i4")[:, ::2],
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_numpy_are_written_byte_by_byte(name: str) -> None:
    live = ARRAYS[name]()
    whole = np.arange(12, dtype=live.dtype).reshape(3, 4)
    source, target = Box.whole((3, 4)), Box.whole((3, 4))
    writer = BoxWriter(live, leaf_type(live))
    for patch in patches(source, 0, 48, 4, target):
        writer.write(patch, cut_patch(np.frombuffer(whole.tobytes(), dtype=np.uint8), patch, 4))
    assert live.tolist() == whole.tolist()


def test_bits_that_are_no_number_stay_what_they_are() -> None:
    """Signalling NaNs, in every memory order."""
    bits = torch.tensor([0x7F800001, 0x7FC00001, -1], dtype=torch.int32)
    for live in memory_orders((3,), torch.float32):
        box = Box((0,), (3,))
        BoxWriter(live, leaf_type(live)).write(Patch(0, (3,), box.slices(), box.slices()), raw(bits).view(np.uint32))
        assert live.contiguous().view(torch.int32).tolist() == bits.tolist()
