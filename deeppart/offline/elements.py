"""Elements of leaves as numpy computes with them, without losing a bit: those of bfloat16 and float8 too.

What torch or numpy has no arithmetic for becomes the next type that holds all of its values: bfloat16, float8 and
float4 become floats, complex32 becomes complex. Integers stay what they are, and so do long doubles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deeppart.errors import UnsupportedLeafError
from deeppart.state.tensors import TORCH_DTYPES, Array, Bytes, LeafType, flat_bytes

#: Elements that are looked at together: what is computed of them takes little memory.
PIECE_ELEMENTS = 1 << 18

Numbers = npt.NDArray[Any]

#: OCP Microscaling Formats 1.0, table 5: E2M1 by its bits, without the sign, which is the fourth.
_E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=np.float32)
_HALVES = "float4_e2m1fn_x2"
_ONLY_IN_TORCH = ("bfloat16", "float8", "complex32")


def octets_of(array: Array) -> Bytes:
    """The bytes of all elements in C order; a copy only where they do not lie so."""
    if isinstance(array, torch.Tensor):
        return flat_bytes(array.detach().contiguous())
    return flat_bytes(np.ascontiguousarray(array))


def count_of(kind: LeafType) -> int:
    """The number of elements that are told apart: an element of float4_e2m1fn_x2 is two numbers."""
    return kind.nbytes // kind.itemsize * (2 if kind.dtype == _HALVES else 1)


def pieces(kind: LeafType) -> Iterator[slice]:
    """The bytes of a leaf, cut into pieces of :data:`PIECE_ELEMENTS` elements."""
    length = PIECE_ELEMENTS * kind.itemsize
    for start in range(0, kind.nbytes, length):
        yield slice(start, min(start + length, kind.nbytes))


def bits(octets: Bytes, kind: LeafType) -> npt.NDArray[Any]:
    """The bits of some elements: an array that is as long as there are elements, to be compared with ``==``.

    Elements of another length than 1, 2, 4 or 8 bytes are rows of a second dimension.
    """
    if kind.dtype == _HALVES:
        return _halves(octets)
    if kind.itemsize in (1, 2, 4, 8):
        return octets.view(f"u{kind.itemsize}")
    return octets.reshape(-1, kind.itemsize)


def numbers(octets: Bytes, kind: LeafType) -> Numbers | None:
    """Elements as numbers with room for arithmetic; None if they are no numbers (texts, times)."""
    if kind.kind == "numpy" and np.dtype(kind.dtype).kind not in "biufc":
        return None
    found = in_numpy(octets, kind)
    wide = {"f": np.dtype(np.float64), "c": np.dtype(np.complex128)}.get(found.dtype.kind, found.dtype)
    if wide.itemsize < found.dtype.itemsize:
        wide = found.dtype
    with np.errstate(all="ignore"):  # a signalling NaN becomes a quiet one
        return found.astype(wide.newbyteorder("="), copy=False)


def in_numpy(octets: Bytes, kind: LeafType) -> Numbers:
    """Some elements as an array of one dimension, of numpy's smallest type that has all their values.

    float32 for bfloat16, float8 and float4, which numpy lacks, complex64 for complex32, and else that of the elements.
    """
    if kind.kind == "numpy":
        return octets.view(np.dtype(kind.dtype))
    if kind.dtype == "bool":
        return octets.astype(np.bool_)  # a byte from a file may be any
    if kind.dtype == _HALVES:
        return np.concatenate([_E2M1, -_E2M1])[_halves(octets)]
    if kind.dtype.startswith(_ONLY_IN_TORCH):
        wider = torch.complex64 if kind.dtype == "complex32" else torch.float32
        found: Numbers = torch.from_numpy(octets.copy()).view(TORCH_DTYPES[kind.dtype]).to(wider).numpy()
        return found
    return octets.view(np.dtype(kind.dtype).newbyteorder("<"))


def as_numpy(array: Array, kind: LeafType) -> Numbers:
    """A leaf as numpy's array of its shape, converted as :func:`in_numpy` says."""
    if kind.dtype == _HALVES:
        raise UnsupportedLeafError(
            "numpy has no elements of two numbers",
            found=str(kind),
            todo="take the bytes (--raw)",
        )
    return in_numpy(octets_of(array), kind).reshape(kind.shape)


def _halves(octets: Bytes) -> Bytes:
    return np.stack([octets & 15, octets >> 4], axis=1).reshape(-1)
