"""Adding tensors and arrays to a flat state: their types and addresses, less what cannot be stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from deeppart.state.tree.flat import NUMPY, SHARDED, ArrayLeaf, FlatState, ShardedLeaf
from deeppart.state.tree.leaves import STORABLE_DTYPES, check_array, check_tensor
from deeppart.state.tree.paths import Path, readable
from deeppart.state.tree.sharded import Shards

PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})


def is_plain(tensor: torch.Tensor) -> bool:
    """True if a tensor's elements are simply its dense storage, of a dtype and on a device that can be stored."""
    return not (
        type(tensor) not in PLAIN_TENSORS  # first: a ShardedTensor answers none of the questions below
        or tensor.layout is not torch.strided
        or tensor.is_quantized
        or tensor.is_meta
        or tensor.dtype not in STORABLE_DTYPES
        or not (tensor.is_cpu or tensor.is_cuda)
        or tensor.is_nested
    )


def note_tensor(flat: FlatState, tensor: torch.Tensor, path: Path, *, live: bool) -> torch.Tensor:
    """Check a tensor and add its type and address to a flat state; returns the tensor to read (or write, if live)."""
    if not is_plain(tensor):
        check_tensor(tensor, readable(path))
    return noted(flat, tensor, live=live)


def noted(flat: FlatState, tensor: torch.Tensor, *, live: bool) -> torch.Tensor:
    """Add the type and address of a plain tensor to a flat state; returns the tensor to read (or write, if live)."""
    if not live and (tensor.is_conj() or tensor.is_neg()):
        flat.unresolved[len(flat.pointers)] = tensor
        tensor = tensor.resolve_conj().resolve_neg()
    flat.types += (tensor.dtype, tensor.shape, tensor.device, tensor.is_contiguous() or tensor.stride())
    flat.pointers.append(tensor.data_ptr())
    return tensor


def note_shards(flat: FlatState, leaf: ShardedLeaf, shards: Shards, *, live: bool) -> None:
    """Add what this rank has of a sharded tensor to a flat state, behind all that is there."""
    leaf.first = len(flat.arrays)
    for box, tensor in zip(shards.boxes, shards.tensors, strict=True):
        flat.tokens += (SHARDED, str(box))
        flat.data.append(note_tensor(flat, tensor, leaf.path, live=live))
        flat.arrays.append(ArrayLeaf(leaf.path, len(flat.arrays)))


def note_array(flat: FlatState, found: np.ndarray[Any, Any], path: Path) -> None:
    """Like :func:`note_tensor`, for a numpy array."""
    check_array(found, readable(path))
    flat.types += (found.dtype, found.shape, NUMPY, bool(found.flags.c_contiguous) or found.strides)
    flat.pointers.append(found.ctypes.data)
