"""Converts elements of leaves without loss to types with which numpy can compute.

Types without arithmetic become the smallest type that represents all of their values: bfloat16, float8 and float4
become floats, complex32 becomes complex. Integers and long doubles keep their types.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deeppart.errors import UnsupportedLeafError
from deeppart.state.tensors import TORCH_DTYPES, Array, Bytes, LeafType, flat_bytes

#: Elements that are processed at once, which limits temporary memory.
PIECE_ELEMENTS = 1 << 18

Numbers = npt.NDArray[Any]

#: Values of E2M1 by its lower three bits; the fourth is the sign. OCP Microscaling Formats 1.0, table 5.
_E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=np.float32)
_HALVES = "float4_e2m1fn_x2"
_ONLY_IN_TORCH = ("bfloat16", "float8", "complex32")


def octets_of(array: Array) -> Bytes:
    """The bytes of all elements in C order; a copy only if they are not contiguous."""
    if isinstance(array, torch.Tensor):
        return flat_bytes(array.detach().contiguous())
    return flat_bytes(np.ascontiguousarray(array))


def count_of(kind: LeafType) -> int:
    """The number of numbers: an element of float4_e2m1fn_x2 is two numbers."""
    return kind.nbytes // kind.itemsize * (2 if kind.dtype == _HALVES else 1)


def pieces(kind: LeafType) -> Iterator[slice]:
    """Slices of a leaf's bytes with :data:`PIECE_ELEMENTS` elements each."""
    length = PIECE_ELEMENTS * kind.itemsize
    for start in range(0, kind.nbytes, length):
        yield slice(start, min(start + length, kind.nbytes))


def bits(octets: Bytes, kind: LeafType) -> npt.NDArray[Any]:
    """The bits of some elements, for comparisons with ``==``: an array with one entry per element.

    Elements of other lengths than 1, 2, 4 or 8 bytes are rows of a second dimension.
    """
    if kind.dtype == _HALVES:
        return _halves(octets)
    if kind.itemsize in (1, 2, 4, 8):
        return octets.view(f"u{kind.itemsize}")
    return octets.reshape(-1, kind.itemsize)


def numbers(octets: Bytes, kind: LeafType) -> Numbers | None:
    """Elements in a type wide enough for arithmetic; None if they are not numbers (texts, times)."""
    if kind.kind == "numpy" and np.dtype(kind.dtype).kind not in "biufc":
        return None
    found = in_numpy(octets, kind)
    wide = {"f": np.dtype(np.float64), "c": np.dtype(np.complex128)}.get(found.dtype.kind, found.dtype)
    if wide.itemsize < found.dtype.itemsize:
        wide = found.dtype
    with np.errstate(all="ignore"):  # a signaling NaN becomes a quiet one
        return found.astype(wide.newbyteorder("="), copy=False)


def in_numpy(octets: Bytes, kind: LeafType) -> Numbers:
    """Some elements as a one-dimensional array of numpy's smallest type with all of their values.

    float32 for bfloat16, float8 and float4, complex64 for complex32, otherwise the type of the elements.
    """
    if kind.kind == "numpy":
        return octets.view(np.dtype(kind.dtype))
    if kind.dtype == "bool":
        return octets.astype(np.bool_)  # a byte from a file may have any value
    if kind.dtype == _HALVES:
        return np.concatenate([_E2M1, -_E2M1])[_halves(octets)]
    if kind.dtype.startswith(_ONLY_IN_TORCH):
        wider = torch.complex64 if kind.dtype == "complex32" else torch.float32
        found: Numbers = torch.from_numpy(octets.copy()).view(TORCH_DTYPES[kind.dtype]).to(wider).numpy()
        return found
    return octets.view(np.dtype(kind.dtype).newbyteorder("<"))


def as_numpy(array: Array, kind: LeafType) -> Numbers:
    """A leaf as a numpy array of its shape, converted as by :func:`in_numpy`."""
    if kind.dtype == _HALVES:
        raise UnsupportedLeafError(
            "numpy has no elements of two numbers",
            found=str(kind),
            todo="take the bytes (--raw)",
        )
    return in_numpy(octets_of(array), kind).reshape(kind.shape)


def _halves(octets: Bytes) -> Bytes:
    return np.stack([octets & 15, octets >> 4], axis=1).reshape(-1)
