"""Leaves that share memory: made as views of their owners again, and recognized in the live state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from deeppart.errors import StructureMismatchError
from deeppart.state.paths import readable
from deeppart.state.restore.target import Target, place_of
from deeppart.state.tensors import Array, LeafType, in_a_row, leaf_type
from deeppart.state.tree import Alias, FlatState, assign, contiguous_strides, find_aliases


def tie(target: Target, arrays: dict[int, Array]) -> None:
    """Add the aliases to ``arrays``: created ones as views of their owner, live ones with their owner's bytes."""
    flat: dict[int, Array] = {}  # one flat copy of each owner that is not flat, for all its aliases
    for index, alias in target.structure.aliases.items():
        if index in target.dropped or alias.owner in target.dropped:
            continue
        if alias.owner not in flat:
            flat[alias.owner] = in_c_order(arrays[alias.owner])
        view = view_of(flat[alias.owner], target.types[index], alias.offset, alias.strides)
        live = target.live(index)
        arrays[index] = view if live is None else live
        if live is not None and index not in target.tied:
            assign(live, view)


def in_c_order(owner: Array) -> Array:
    """The array itself if it is flat, else a flat copy."""
    if isinstance(owner, torch.Tensor):
        return owner.detach().resolve_conj().resolve_neg().contiguous()
    return np.ascontiguousarray(owner)


def view_of(owner: Array, kind: LeafType, offset: int, strides: tuple[int, ...]) -> Any:
    """An alias of a flat owner, in the owner's memory if possible, else in a copy of it.

    The alias must have been checked to be within the owner (``check_aliases``): numpy would access other memory.
    """
    start = offset // kind.itemsize
    if isinstance(owner, torch.Tensor):
        dtype: torch.dtype = getattr(torch, kind.dtype)
        data = in_a_row(owner).view(torch.uint8)
        if data.storage_offset() % kind.itemsize:
            data = data.clone()  # a live owner may be at an address that torch does not allow for this element size
        flat = data[: data.numel() - data.numel() % kind.itemsize].view(dtype)
        return flat.as_strided(kind.shape, strides, flat.storage_offset() + start)
    octets = owner.reshape(-1).view(np.uint8)
    elements = octets[: octets.size - octets.size % kind.itemsize].view(kind.dtype)[start:]
    return np.lib.stride_tricks.as_strided(elements, kind.shape, tuple(stride * kind.itemsize for stride in strides))


def check_ties(target: Target, flat: FlatState, sources: Mapping[int, int]) -> None:
    """Find the live leaves that share memory as the saved ones did: they are filled once.

    Others that share memory are received separately, and compared, before they are filled. That is not possible for
    components of composite tensors, and for arrays of another dtype: these are refused.

    Args:
        sources: number of a live leaf -> number of the saved leaf that is restored into it.
    """
    found = [target.places.get(sources[index]) if index in sources else None for index in range(len(flat.data))]
    types = [leaf_type(data) if place is None else place.kind for place, data in zip(found, flat.data, strict=True)]
    for index, alias in find_aliases(flat, types).items():
        saved, owner = sources.get(index), sources.get(alias.owner)
        if saved is None or owner is None:
            continue
        reads_alike = _reads_as(flat.data[index]) == _reads_as(flat.data[alias.owner])
        if reads_alike and _tied_alike(target, saved, owner, alias):
            # Under other names than the saved ones, it may be the saved owner that is an alias here.
            target.tied.add(saved if saved in target.structure.aliases else owner)
        elif target.live(saved) is None or target.live(owner) is None:
            raise StructureMismatchError(
                "leaves that share memory in the live state were saved as separate leaves, or shared it in another way",
                found=f"{readable(flat.arrays[index].path)} lies inside {readable(flat.arrays[alias.owner].path)}",
                where=f"path {readable(flat.arrays[index].path)}",
                todo="untie them in the live state, or remove one of them from the state given to restore",
            )


def _reads_as(data: Array) -> tuple[bool, bool]:
    """Whether a leaf is its memory conjugated, and negated (``z.conj()``, ``z.conj().imag``)."""
    return (data.is_conj(), data.is_neg()) if isinstance(data, torch.Tensor) else (False, False)


def _tied_alike(target: Target, saved: int, owner: int, live: Alias) -> bool:
    """True if saved leaf ``saved`` is the same view of saved leaf ``owner`` as ``live`` is of the live owner."""
    one, other = place_of(target, saved), place_of(target, owner)
    is_flat = other.strides == contiguous_strides(target.types[owner].shape)
    return is_flat and one == Alias(other.owner, other.offset + live.offset, live.strides)
