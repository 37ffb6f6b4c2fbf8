"""Sparse, quantized and jagged tensors made of components that came from a file.

Whatever an edited file says, what is made here is sound: an index that leads nowhere would make torch's kernels read
other memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from deeppart.errors import CorruptFileError
from deeppart.part.format import short
from deeppart.state.tree.composites import CHANNELS, COMPRESSED, COO, INTS, JAGGED, QUANTIZED, SUBCLASS
from deeppart.state.tree.leaves import leaf_type

_MOST_ELEMENTS = 1 << 62
_MOST_REPEATED = 256 << 20
_INDEX_DTYPES = (torch.int64, torch.int32)


def assemble(kind: str, items: dict[str, Any]) -> Any:
    """Make a tensor of its components, of which it shares the memory where torch can; of a subclass a dict of them."""
    try:
        return _MAKERS[kind](**items)
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        shown = {key: str(leaf_type(item)) if isinstance(item, torch.Tensor) else item for key, item in items.items()}
        raise CorruptFileError(
            f"the saved components of a {kind} tensor do not make one",
            found=f"{error}"[:300] + f"; of {short(shown)}",
            todo="the checkpoint was not written by a sound library, or the tensor was not sound: restore another step",
        ) from error


def _coo(indices: Any, values: Any, shape: Any, coalesced: Any) -> torch.Tensor:
    _check_tensors(indices, values)
    _check_shape(shape)
    _require(type(coalesced) is bool, "whether it is coalesced is not known")
    _require(indices.dtype is torch.int64 and indices.ndim == 2, "indices of another type")
    made = torch.sparse_coo_tensor(
        indices, values, shape, dtype=values.dtype, check_invariants=True, is_coalesced=coalesced or None
    )
    return made._coalesced_(coalesced)


def _compressed(kind: str, compressed: Any, plain: Any, values: Any, shape: Any) -> torch.Tensor:
    """Like torch's own check of invariants, less the order of the plain indices: torch does not insist on it either."""
    _check_tensors(compressed, plain, values)
    _check_shape(shape)
    _require(compressed.dtype is plain.dtype and plain.dtype in _INDEX_DTYPES, "indices of another type")
    _require(plain.ndim >= 1 and compressed.ndim == plain.ndim, "indices of different dimensions")
    batch, nnz = tuple(plain.shape[:-1]), plain.shape[-1]
    width = 2 if kind in ("sparse_bsr", "sparse_bsc") else 0
    before = len(batch) + 1
    block = tuple(values.shape[before : before + width]) if width else (1, 1)
    _require(len(block) == 2 and 0 not in block, "no blocks")
    _require(len(shape) >= len(batch) + 2, "too few dimensions")
    sizes = tuple(shape[len(batch) : len(batch) + 2])
    wanted = (*batch, nnz, *(block if width else ()), *shape[len(batch) + 2 :])
    _require(tuple(values.shape) == wanted and tuple(shape[: len(batch)]) == batch, "values of another shape")
    _require(all(size % each == 0 for size, each in zip(sizes, block, strict=True)), "blocks that do not fit")
    rows, columns = sizes[0] // block[0], sizes[1] // block[1]
    along, across = (rows, columns) if kind in ("sparse_csr", "sparse_bsr") else (columns, rows)
    _require(tuple(compressed.shape) == (*batch, along + 1), "compressed indices of another shape")
    _require(bool((compressed[..., 0] == 0).all() and (compressed[..., -1] == nnz).all()), "compressed indices")
    _require(bool((compressed[..., 1:] >= compressed[..., :-1]).all()), "compressed indices that fall")
    _require(bool(((plain >= 0) & (plain < across)).all()), "an index out of range")
    return torch.sparse_compressed_tensor(
        compressed, plain, values, shape, dtype=values.dtype, layout=COMPRESSED[kind], check_invariants=False
    )


def _quantized(ints: Any, dtype: Any, scale: Any, zero_point: Any) -> torch.Tensor:
    _check_ints(ints, dtype)
    _require(type(scale) is float and type(zero_point) is int, "a scale or zero point of another type")
    return torch._make_per_tensor_quantized_tensor(ints.contiguous(), scale, zero_point)


def _quantized_channels(ints: Any, dtype: Any, scales: Any, zero_points: Any, axis: Any) -> torch.Tensor:
    _check_tensors(scales, zero_points)
    _check_ints(ints, dtype)
    _require(type(axis) is int and 0 <= axis < ints.ndim, "no such axis")
    _require(tuple(scales.shape) == tuple(zero_points.shape) == (ints.shape[axis],), "scales of another shape")
    made = torch._make_per_channel_quantized_tensor(ints.contiguous(), scales, zero_points, axis)
    taken = made.q_per_channel_scales().dtype, made.q_per_channel_zero_points().dtype
    _require(taken == (scales.dtype, zero_points.dtype), "scales or zero points of another type")
    return made


def _jagged(values: Any, offsets: Any, lengths: Any, ragged_dim: Any) -> torch.Tensor:
    _check_tensors(values, offsets)
    _require(type(ragged_dim) is int and 1 <= ragged_dim <= values.ndim, "no such ragged dimension")
    _require(offsets.dtype in _INDEX_DTYPES and offsets.ndim == 1 and len(offsets) >= 1, "offsets of another type")
    begins, ends = offsets[:-1], offsets[1:]
    if lengths is not None:
        _check_tensors(lengths)
        _require(lengths.dtype is offsets.dtype and lengths.shape == begins.shape, "lengths of another type")
        _require(bool((lengths <= ends - begins).all()), "lengths that do not fit")
        ends = begins + lengths
    _require(bool((offsets >= 0).all() and (offsets <= values.shape[ragged_dim - 1]).all()), "offsets out of range")
    _require(bool((begins <= ends).all()), "offsets that fall")
    made: torch.Tensor = torch.nested.nested_tensor_from_jagged(values, offsets, lengths, jagged_dim=ragged_dim)
    return made


_MAKERS: dict[str, Callable[..., Any]] = {
    COO: _coo,
    QUANTIZED: _quantized,
    CHANNELS: _quantized_channels,
    JAGGED: _jagged,
    SUBCLASS: lambda **items: items,
}


def _compressed_maker(kind: str) -> Callable[..., torch.Tensor]:
    return lambda **items: _compressed(kind, **items)


_MAKERS |= {kind: _compressed_maker(kind) for kind in COMPRESSED}


def _check_ints(ints: Any, dtype: Any) -> None:
    _check_tensors(ints)
    _require(isinstance(dtype, torch.dtype) and INTS.get(dtype) is ints.dtype, "integers of another dtype")


def _check_tensors(*items: Any) -> None:
    for item in items:
        _require(type(item) is torch.Tensor, "a component that is no tensor")
        # An alias costs nothing in a file, however often it repeats what it shares; the checks here would write it out.
        most = max(item.untyped_storage().nbytes(), _MOST_REPEATED)
        _require(item.nbytes <= most, "a component that repeats few bytes too often")


def _check_shape(shape: Any) -> None:
    sound = type(shape) is torch.Size and all(length >= 0 for length in shape)
    _require(sound and math.prod(max(1, length) for length in shape) < _MOST_ELEMENTS, "an impossible shape")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
