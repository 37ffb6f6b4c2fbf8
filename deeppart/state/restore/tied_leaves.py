"""Live leaves that share memory must have been saved sharing it in the same way."""

from __future__ import annotations

import torch

from deeppart.errors import StructureMismatchError
from deeppart.state.document.structure import Alias
from deeppart.state.document.ties import contiguous_strides, find_aliases
from deeppart.state.restore.target import Target, place_of
from deeppart.state.tree.flat import FlatState
from deeppart.state.tree.leaves import Array, leaf_type
from deeppart.state.tree.paths import readable


def check_ties(target: Target, flat: FlatState, places: dict[int, int]) -> None:
    """Live leaves that share memory must have been saved sharing it in the same way: else one overwrites the other."""
    found = [places.get(index) for index in range(len(flat.data))]
    saved_types = [None if saved is None or saved in target.casts else target.types[saved] for saved in found]
    types = [kind or leaf_type(data) for kind, data in zip(saved_types, flat.data, strict=True)]
    rank0, first_apart = target.structure.rank0_leaves(), target.structure.shared
    for index, alias in find_aliases(flat, types).items():
        saved, owner = places.get(index), places.get(alias.owner)
        if saved is None or owner is None:
            continue
        reads_alike = _reads_as(flat.data[index]) == _reads_as(flat.data[alias.owner])
        if not (reads_alike and _tied_alike(target, saved, owner, alias)):
            if rank0.get(saved) != rank0.get(owner):  # rank 0 has other memory there: so it is to be here
                paths = {path for path in (rank0.get(saved), rank0.get(owner)) if path is not None}
                target.replaced |= paths - target.with_objects  # an object stays: both can be had, or it is an error
                continue
            if first_apart is not None and (saved < first_apart) != (owner < first_apart):
                continue  # saved apart, from one memory: both hold the same bytes
            error = StructureMismatchError(
                "leaves that share memory in the live state were saved as separate leaves, or shared it in another way",
                found=f"{readable(flat.arrays[index].path)} lies inside {readable(flat.arrays[alias.owner].path)}",
                where=f"path {readable(flat.arrays[index].path)}",
                todo="untie them in the live state, or remove one of them from the state given to restore",
            )
            if not reads_alike:
                raise error
            target.mistied[saved] = Alias(owner, alias.offset, alias.strides), error
            continue
        target.tied.add(saved)


def _reads_as(data: Array) -> tuple[bool, bool]:
    """True if a leaf is its memory conjugated or negated (``z.conj()``, ``z.conj().imag``)."""
    return (data.is_conj(), data.is_neg()) if isinstance(data, torch.Tensor) else (False, False)


def _tied_alike(target: Target, saved: int, owner: int, live: Alias) -> bool:
    """True if saved leaf ``saved`` is the view of saved leaf ``owner`` that ``live`` is of its live one."""
    one, other = place_of(target, saved), place_of(target, owner)
    shape = target.types[owner].shape
    if one.owner != other.owner or _steps(shape, other.strides) != _steps(shape, contiguous_strides(shape)):
        return False
    shape = target.types[saved].shape
    return one.offset - other.offset == live.offset and _steps(shape, one.strides) == _steps(shape, live.strides)


def _steps(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides that matter: those of dimensions with more than one element."""
    return tuple(stride for length, stride in zip(shape, strides, strict=True) if length > 1)
