"""Composite tensors: sparse, quantized and jagged tensors, and wrapper subclasses, which consist of other tensors.

Such a tensor is a branch of the tree, with its components as children: plain tensors, which are ordinary leaves, and
small values. This module decomposes and assembles them. Components from a file are checked before a tensor is made: an
index out of range would make torch's kernels read other memory.

============================================ =======================================================================
kind                                         components
============================================ =======================================================================
``sparse_coo``                               indices, values, shape, coalesced
``sparse_csr`` ``_csc`` ``_bsr`` ``_bsc``    compressed (crow or ccol indices), plain (col or row indices), values,
                                             shape
``quantized``                                ints, dtype, scale, zero_point
``quantized_channels``                       ints, dtype, scales, zero_points, axis
``jagged``                                   values, offsets, lengths (or None), ragged_dim
``subclass``                                 those that ``__tensor_flatten__`` names, and ``context``
============================================ =======================================================================
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from deeppart.errors import CorruptFileError, UnsupportedLeafError, short
from deeppart.state.tensors.leaves import leaf_type
from deeppart.state.values import MOST_LEVELS, is_value

COO, QUANTIZED, CHANNELS, JAGGED, SUBCLASS = "sparse_coo", "quantized", "quantized_channels", "jagged", "subclass"
COMPRESSED: dict[str, torch.layout] = {
    "sparse_csr": torch.sparse_csr,
    "sparse_csc": torch.sparse_csc,
    "sparse_bsr": torch.sparse_bsr,
    "sparse_bsc": torch.sparse_bsc,
}
#: The components of each kind; a subclass names its own, and the last one is CONTEXT.
KEYS: dict[str, tuple[str, ...]] = {
    COO: ("indices", "values", "shape", "coalesced"),
    **dict.fromkeys(COMPRESSED, ("compressed", "plain", "values", "shape")),
    QUANTIZED: ("ints", "dtype", "scale", "zero_point"),
    CHANNELS: ("ints", "dtype", "scales", "zero_points", "axis"),
    JAGGED: ("values", "offsets", "lengths", "ragged_dim"),
}
#: The components that are small values; ``lengths`` may be None.
VALUES = frozenset({"shape", "coalesced", "dtype", "scale", "zero_point", "axis", "ragged_dim"})
CONTEXT = "context"
COMPOSITES = frozenset({*KEYS, SUBCLASS})
#: Quantized dtypes and the dtype of their memory, without those of less than a byte.
INTS = {torch.quint8: torch.uint8, torch.qint8: torch.int8, torch.qint32: torch.int32}
_KINDS = {layout: kind for kind, layout in COMPRESSED.items()}
_NESTED = ("torch.nested._internal.nested_tensor", "NestedTensor")
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_MOST_ELEMENTS = 1 << 62
_MOST_REPEATED = 256 << 20
_INDEX_DTYPES = (torch.int64, torch.int32)


@dataclass(frozen=True, slots=True)
class Parts:
    """A decomposed tensor.

    Attributes:
        kind: one of :data:`COMPOSITES`.
        name: name of its class, if it is a subclass; for display and comparison.
        items: its components: tensors that share its memory, and small values.
    """

    kind: str
    name: str
    items: dict[str, Any]


def decompose(tensor: torch.Tensor, where: str) -> Parts | None:
    """The components of a tensor; None if it is plain, or of a kind that cannot be stored."""
    if type(tensor) in _PLAIN:
        if tensor.is_meta:
            return None
        if tensor.layout is torch.sparse_coo:
            return Parts(COO, "", _of_coo(tensor.detach()))
        if tensor.layout in _KINDS:
            return Parts(_KINDS[tensor.layout], "", _of_compressed(tensor.detach()))
        if tensor.dtype in INTS and tensor.layout is torch.strided:
            return _of_quantized(tensor.detach())
        return None
    if not (_is_jagged(tensor) or is_wrapper(tensor)) or tensor.is_meta:
        return None
    if _is_jagged(tensor):
        return Parts(JAGGED, "", _of_jagged(tensor))
    return Parts(SUBCLASS, class_name(tensor), _of_subclass(tensor, where))


def class_name(item: object) -> str:
    """The name of an object's class, as in files."""
    return f"{type(item).__module__}.{type(item).__qualname__}"


def is_wrapper(tensor: torch.Tensor) -> bool:
    """True if a tensor's class names the tensors that it consists of.

    False for the result of a collective that may be in progress: its memory is not written yet.
    """
    kind = type(tensor)
    flattens = callable(getattr(kind, "__tensor_flatten__", None)) and hasattr(kind, "__tensor_unflatten__")
    return kind not in _PLAIN and flattens and not hasattr(tensor, "trigger_wait")


def _is_jagged(tensor: Any) -> bool:
    kind = type(tensor)
    return (kind.__module__, kind.__qualname__) == _NESTED and tensor.layout is getattr(torch, "jagged", None)


def _of_coo(tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "indices": tensor._indices(),  # indices() raises for uncoalesced ones
        "values": tensor._values(),
        "shape": tensor.shape,
        "coalesced": tensor.is_coalesced(),
    }


def _of_compressed(tensor: torch.Tensor) -> dict[str, Any]:
    by_rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    return {
        "compressed": tensor.crow_indices() if by_rows else tensor.ccol_indices(),
        "plain": tensor.col_indices() if by_rows else tensor.row_indices(),
        "values": tensor.values(),
        "shape": tensor.shape,
    }


def _of_quantized(tensor: torch.Tensor) -> Parts | None:
    # int_repr() would be a copy.
    ints = torch.empty(0, dtype=INTS[tensor.dtype], device=tensor.device)
    ints.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
    items: dict[str, Any] = {"ints": ints, "dtype": tensor.dtype}
    if tensor.qscheme() is torch.per_tensor_affine:
        items |= {"scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
        return Parts(QUANTIZED, "", items)
    if tensor.qscheme() not in (torch.per_channel_affine, torch.per_channel_affine_float_qparams):
        return None
    items |= {"scales": tensor.q_per_channel_scales(), "zero_points": tensor.q_per_channel_zero_points()}
    return Parts(CHANNELS, "", items | {"axis": tensor.q_per_channel_axis()})


def _of_jagged(tensor: Any) -> dict[str, Any]:
    # The cached shortest and longest lengths follow from these. They are not taken from a file: a kernel that is given
    # a wrong length reads beyond the end.
    lengths = tensor._lengths
    return {
        "values": tensor._values.detach(),
        "offsets": tensor._offsets,
        "lengths": lengths,
        "ragged_dim": tensor._ragged_idx,
    }


def _of_subclass(tensor: Any, where: str) -> dict[str, Any]:
    try:
        names, context = tensor.__tensor_flatten__()
        items = {name: getattr(tensor, name) for name in names}
        shape = tuple(tensor.shape)
    except Exception as error:  # raised by the caller's class
        raise _refused(tensor, f"{type(error).__name__}: {error}", where) from error
    for name, item in items.items():
        if type(name) is not str or name == CONTEXT or not isinstance(item, torch.Tensor):
            raise _refused(tensor, f"a component {name!r:.80} that is a {type(item).__name__}", where)
    if not items or any(type(length) is not int for length in shape):
        raise _refused(tensor, f"{len(items)} components of a tensor of shape {shape}", where)
    about = {"shape": torch.Size(shape), "dtype": tensor.dtype, CONTEXT: _plain(tensor, context, where, 2)}
    return {**items, CONTEXT: about}


def _plain(tensor: Any, item: Any, where: str, depth: int) -> Any:
    """The context of a subclass as small values in containers: it is only compared with that of a live tensor."""
    if depth > MOST_LEVELS - 2:
        raise _refused(tensor, "a context nested too deeply", where)
    if isinstance(item, enum.Enum):
        return "enum", f"{type(item).__module__}.{type(item).__qualname__}", item.name
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        fields = {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
        name = f"{type(item).__module__}.{type(item).__qualname__}"
        return "dataclass", name, _plain(tensor, fields, where, depth + 2)
    if isinstance(item, dict):
        if not all(map(is_value, item)):
            raise _refused(tensor, "a context with keys that are no small values", where)
        return {key: _plain(tensor, each, where, depth + 1) for key, each in item.items()}
    if type(item) is list:
        return [_plain(tensor, each, where, depth + 1) for each in item]
    if isinstance(item, tuple) and not is_value(item):  # a torch.Size is one
        return tuple(_plain(tensor, each, where, depth + 1) for each in item)
    if not is_value(item):
        raise _refused(tensor, f"a context that holds a {type(item).__module__}.{type(item).__qualname__}", where)
    return item


def _refused(tensor: Any, found: str, where: str) -> UnsupportedLeafError:
    return UnsupportedLeafError(
        f"the state holds a {class_name(tensor)}, whose __tensor_flatten__ gives what cannot be stored",
        expected="tensors, and a context of small values, enums and dataclasses in dicts, lists and tuples",
        found=found,
        where=f"path {where}",
        todo="save the tensors that it is made of, or x.dequantize() if it has that",
    )


# --- assembling tensors from components of a file ---------------------------------------------------------------------


def assemble(kind: str, items: dict[str, Any]) -> Any:
    """Make a tensor from its components, sharing their memory where torch can; for a subclass, a dict of them."""
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
    """Checks like torch's, except the order of the plain indices, which torch does not require either."""
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
        # An alias costs nothing in a file, however often it repeats the same bytes; the checks here would expand it.
        most = max(item.untyped_storage().nbytes(), _MOST_REPEATED)
        _require(item.nbytes <= most, "a component that repeats few bytes too often")


def _check_shape(shape: Any) -> None:
    sound = type(shape) is torch.Size and all(length >= 0 for length in shape)
    _require(sound and math.prod(max(1, length) for length in shape) < _MOST_ELEMENTS, "an impossible shape")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
