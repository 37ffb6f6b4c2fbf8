"""Tensors that are made of other tensors: sparse, quantized and jagged ones, and wrapper subclasses.

Such a tensor is a branch of the tree, with its components below it: plain tensors, which are leaves like others, and
small values. This module takes it apart; :mod:`deeppart.state.tree.assembling` makes it again.

============================================ =======================================================================
kind                                         components
============================================ =======================================================================
``sparse_coo``                               indices, values, shape, coalesced
``sparse_csr`` ``_csc`` ``_bsr`` ``_bsc``    compressed (crow or ccol indices), plain (col or row indices), values,
                                             shape
``quantized``                                ints, dtype, scale, zero_point
``quantized_channels``                       ints, dtype, scales, zero_points, axis
``jagged``                                   values, offsets, lengths (or None), ragged_dim
``subclass``                                 what ``__tensor_flatten__`` names, and ``context``
============================================ =======================================================================
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import Any

import torch

from deeppart.errors import UnsupportedLeafError
from deeppart.state.tree.columns import MOST_LEVELS
from deeppart.state.tree.values import is_value

COO, QUANTIZED, CHANNELS, JAGGED, SUBCLASS = "sparse_coo", "quantized", "quantized_channels", "jagged", "subclass"
COMPRESSED: dict[str, torch.layout] = {
    "sparse_csr": torch.sparse_csr,
    "sparse_csc": torch.sparse_csc,
    "sparse_bsr": torch.sparse_bsr,
    "sparse_bsc": torch.sparse_bsc,
}
#: The components of each kind; those of a subclass are its own, and the last of them is CONTEXT.
KEYS: dict[str, tuple[str, ...]] = {
    COO: ("indices", "values", "shape", "coalesced"),
    **dict.fromkeys(COMPRESSED, ("compressed", "plain", "values", "shape")),
    QUANTIZED: ("ints", "dtype", "scale", "zero_point"),
    CHANNELS: ("ints", "dtype", "scales", "zero_points", "axis"),
    JAGGED: ("values", "offsets", "lengths", "ragged_dim"),
}
#: What of these are small values; ``lengths`` may be None.
VALUES = frozenset({"shape", "coalesced", "dtype", "scale", "zero_point", "axis", "ragged_dim"})
CONTEXT = "context"
COMPOSITES = frozenset({*KEYS, SUBCLASS})
#: Quantized dtypes, and how their elements lie in memory. Those of less than a byte are not among them.
INTS = {torch.quint8: torch.uint8, torch.qint8: torch.int8, torch.qint32: torch.int32}

_KINDS = {layout: kind for kind, layout in COMPRESSED.items()}
_NESTED = ("torch.nested._internal.nested_tensor", "NestedTensor")
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True, slots=True)
class Parts:
    """A tensor taken apart.

    Attributes:
        kind: one of :data:`COMPOSITES`.
        name: of its class, if it is a subclass; for people, and to tell it from others.
        items: its components: tensors that share its memory, and small values.
    """

    kind: str
    name: str
    items: dict[str, Any]


def take_apart(tensor: torch.Tensor, where: str) -> Parts | None:
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


def class_name(tensor: object) -> str:
    """The name of a subclass's class, as files have it."""
    return f"{type(tensor).__module__}.{type(tensor).__qualname__}"


def branch_name(kind: str, container: object) -> str:
    """The name that goes with a kind of composite: that of the class of a subclass."""
    return class_name(container) if kind == SUBCLASS else ""


def is_wrapper(tensor: torch.Tensor) -> bool:
    """True if a tensor's class says which tensors it is made of.

    Not the result of a collective that may be under way: its memory is not written yet.
    """
    kind = type(tensor)
    flattens = callable(getattr(kind, "__tensor_flatten__", None)) and hasattr(kind, "__tensor_unflatten__")
    return kind not in _PLAIN and flattens and not hasattr(tensor, "trigger_wait")


def _is_jagged(tensor: Any) -> bool:
    kind = type(tensor)
    return (kind.__module__, kind.__qualname__) == _NESTED and tensor.layout is getattr(torch, "jagged", None)


def _of_coo(tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "indices": tensor._indices(),  # indices() is only for coalesced ones
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
    # What it has cached of the shortest and longest length follows from these. A kernel that believes such a length
    # reads beyond the end where it is wrong: it is not taken from a file.
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
    except Exception as error:  # of the caller's class
        raise _refused(tensor, f"{type(error).__name__}: {error}", where) from error
    for name, item in items.items():
        if type(name) is not str or name == CONTEXT or not isinstance(item, torch.Tensor):
            raise _refused(tensor, f"a component {name!r:.80} that is a {type(item).__name__}", where)
    if not items or any(type(length) is not int for length in shape):
        raise _refused(tensor, f"{len(items)} components of a tensor of shape {shape}", where)
    about = {"shape": torch.Size(shape), "dtype": tensor.dtype, CONTEXT: _plain(tensor, context, where, 2)}
    return {**items, CONTEXT: about}


def _plain(tensor: Any, item: Any, where: str, depth: int) -> Any:
    """The context of a subclass as small values in containers: it is compared with a live one, and made into none."""
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
