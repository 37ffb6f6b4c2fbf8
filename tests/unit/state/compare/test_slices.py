"""Rotating slices: every byte of every layout is compared within 63 turns, and what is concentrated sooner."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.state.compare.slices import SLICES, RotatingSlices, memory_order, slice_of
from deeppart.state.tensors.leaves import LeafType, leaf_type
from deeppart.state.tree.ties import address


def seen(data: Any, turns: range) -> np.ndarray[Any, Any]:
    """Which bytes of a leaf are compared at some of the turns, by changing them one after the other."""
    nbytes = leaf_type(data).nbytes
    memory = bytes_of(data)
    compared = RotatingSlices([0], [leaf_type(data)])
    found = np.zeros(nbytes, dtype=bool)
    for turn in turns:
        before = compared.digests([address(data)], turn)
        for at in np.flatnonzero(~found):
            memory[at] ^= 255
            found[at] = compared.digests([address(data)], turn) != before
            memory[at] ^= 255
    return found


def bytes_of(data: Any) -> np.ndarray[Any, Any]:
    """The memory of a leaf without gaps."""
    if isinstance(data, torch.Tensor):
        return torch.as_strided(data, (data.numel(),), (1,)).view(torch.uint8).numpy()
    return np.lib.stride_tricks.as_strided(data, (data.size,), (data.itemsize,)).view(np.uint8)


@pytest.mark.parametrize("nbytes", [SLICES * 8, 523, 640, 1023, 1024, 1025])
def test_every_byte_is_compared_within_63_turns_from_any_on(nbytes: int) -> None:
    data = np.zeros(nbytes, dtype=np.uint8)
    assert seen(data, range(37, 37 + SLICES)).all()
    assert sorted(slice_of(turn) for turn in range(1000, 1000 + SLICES)) == list(range(SLICES))


LAYOUTS: dict[str, Callable[[], Any]] = {
    "contiguous": lambda: torch.zeros(5, 7, 11),
    "transposed": lambda: torch.zeros(40, 9).t(),
    "permuted": lambda: torch.zeros(5, 7, 11).permute(2, 0, 1),
    "channels_last": lambda: torch.zeros(3, 5, 7, 4).to(memory_format=torch.channels_last),
    "channels_last_3d": lambda: torch.zeros(2, 3, 4, 5, 3).to(memory_format=torch.channels_last_3d),
    "one dimension of 1": lambda: torch.zeros(40, 1, 9).transpose(0, 2),
    "fortran": lambda: np.zeros((7, 15), order="F"),
    "numpy": lambda: np.zeros((7, 15)),
    **{
        f"itemsize {each.itemsize}": lambda each=each: np.zeros(1 + 780 // each.itemsize, dtype=each)  # type: ignore[misc]
        for each in map(np.dtype, ("u1", "u2", "f4", "f8", "c16", "S3", "S7"))
    },
    "bfloat16": lambda: torch.zeros(19, 23, dtype=torch.bfloat16),
    "complex": lambda: torch.zeros(5, 11, dtype=torch.complex128).t(),
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_byte_of_each_layout_without_gaps_is_compared(layout: str) -> None:
    data = LAYOUTS[layout]()
    assert memory_order(data)
    assert seen(data, range(SLICES)).all()


def first_found(differing: np.ndarray[Any, Any], start: int) -> int:
    """Checkpoints until a leaf that differs in these elements (float32) is found."""
    one, other = np.zeros(len(differing), dtype=np.float32), differing.astype(np.float32)
    compared = RotatingSlices([0], [leaf_type(one)])
    for turn in range(start, start + SLICES):
        if compared.digests([address(one)], turn) != compared.digests([address(other)], turn):
            return turn - start + 1
    raise AssertionError("not found within 63 checkpoints")


SHAPES = ((100, 256), (200, 128), (400, 64), (1000, 40), (2000, 16), (30_000, 2), (100_000, 1))


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("kind", ["scattered", "one run"])
def test_one_percent_of_the_rows_is_found_within_16_checkpoints(rows: int, columns: int, kind: str) -> None:
    random = np.random.default_rng(rows)
    seeds, late = 100, 0
    for _ in range(seeds):
        count = math.ceil(rows / 100)
        if kind == "scattered":
            chosen = random.choice(rows, count, replace=False)
        else:
            first = random.integers(rows - count + 1)
            chosen = np.arange(first, first + count)
        differing = np.zeros((rows, columns), dtype=bool)
        differing[chosen] = True
        late += first_found(differing.reshape(-1), int(random.integers(10_000))) > 16
    # Of 100 that are late with a probability of 1 % each, 6 or more are with one of less than 0.1 %.
    assert late < 6
    if kind == "one run":
        assert late == 0, "16 turns in a row leave no gap of 0.6 %"


def test_ranks_agree_wherever_a_leaf_lies() -> None:
    data = torch.randn(20_000)
    shifted = torch.empty(20_003)[3:]
    shifted.copy_(data)
    odd = np.frombuffer(b"?" + data.numpy().tobytes(), dtype=np.uint8)[1:]
    kinds = [LeafType("numpy", "|u1", (80_000,))]
    for turn in range(5):
        expected = RotatingSlices([0], [leaf_type(data)]).digests([data.data_ptr()], turn)
        assert RotatingSlices([0], [leaf_type(shifted)]).digests([shifted.data_ptr()], turn) == expected
        assert RotatingSlices([0], kinds).digests([address(odd)], turn) == expected
