"""Leaves that share memory: one of them owns the bytes, the others are saved as views of it.

A leaf is an alias if all of its elements are inside another leaf that is flat (C order, no gaps), or if it is the same
view of the same memory as another. Leaves that overlap without one covering the other, such as rows 0 to 3 and rows 2
to 5 of one buffer, are each saved in full, and ``load`` does not tie them. They can be restored if their common bytes
were equal when they were saved (:func:`overlapping`, :func:`conflicting`); otherwise one would overwrite the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deeppart.state.fingerprint import full_digests
from deeppart.state.memory import extent
from deeppart.state.tensors import Array, LeafType, is_flat
from deeppart.state.tree.flat import FlatState

#: Limit for numpy's search for a common byte of two arrays; undecided counts as shared.
_MOST_WORK = 10_000


@dataclass(frozen=True, slots=True)
class Alias:
    """A leaf that shares memory with another: its elements lie inside the owner's bytes.

    Attributes:
        owner: leaf number that holds the bytes.
        offset: first byte within the owner.
        strides: elements between neighbours per dimension.
    """

    owner: int
    offset: int
    strides: tuple[int, ...]


def find_aliases(flat: FlatState, types: list[LeafType]) -> dict[int, Alias]:
    """Maps the number of each alias to its owner and view. Owners are never aliases.

    Of equal leaves the flat one with the lowest number owns the bytes. Leaves are tied only within the shared
    structure, within rank 0's items or within this rank's items; never an array to a tensor, though they may share
    memory. A shard is tied only to a shard that has the same bytes, and the same box of a tensor of the same type.
    """
    starts, lengths, ragged = _reaches(flat, types)
    is_ragged = np.zeros(len(types), dtype=np.bool_)
    is_ragged[ragged] = True
    # At one address the longest comes first, and of equals a flat one: only it can own the others.
    order = np.lexsort((np.arange(len(types)), is_ragged, -lengths, starts))
    order = order[lengths[order] > 0]
    if not _any_overlap(starts[order], lengths[order]):
        return {}
    holders = flat.holders.tolist()
    shards = {n: (leaf.kind, box) for leaf in flat.sharded for n, box in zip(leaf.numbers, leaf.boxes, strict=True)}
    aliases: dict[int, Alias] = {}
    owners: dict[object, tuple[int, int]] = {}  # for each holder and kind: the last owner, and its end
    for index in order.tolist():
        start, end = int(starts[index]), int(starts[index] + lengths[index])
        key = holders[index], types[index].kind
        owner, owner_end = owners.get(key, (-1, -1))
        if owner >= 0 and end <= owner_end:
            alias = _alias(flat.data[index], types[index], owner, start - int(starts[owner]))
            same = shards.get(index) == shards.get(owner)
            if alias is not None and same and (index not in shards or _is_all_of(types[index], alias, types[owner])):
                aliases[index] = alias
                continue
        if not is_ragged[index] and end > owner_end:
            owners[key] = index, end
    first: dict[object, int] = {}
    # Non-flat leaves that are the same view of the same memory; they own no other leaves.
    for index in ragged:
        data, kind = flat.data[index], types[index]
        if index not in aliases and kind.nbytes and not _is_lazy(data):
            view = address(data), kind, _strides(data), holders[index], shards.get(index)
            owner = first.setdefault(view, index)
            if owner != index:
                # The owner is saved in C order, so its twin is, too.
                aliases[index] = Alias(owner, 0, contiguous_strides(kind.shape))
    return aliases


def _is_all_of(kind: LeafType, alias: Alias, owner: LeafType) -> bool:
    """True if a leaf has the same elements in the same order as the owner of its memory."""
    return kind == owner and alias.offset == 0 and alias.strides == contiguous_strides(kind.shape)


def memory_groups(flat: FlatState, types: list[LeafType]) -> npt.NDArray[np.int64]:
    """For each leaf the lowest number of the leaves whose address ranges overlap, directly or through others.

    All leaves count: views or not, arrays or tensors, anywhere in the state. Columns of one matrix count, too, though
    they share no byte.
    """
    starts, lengths, _ = _reaches(flat, types)
    for index, tensor in flat.unresolved.items():
        starts[index], lengths[index] = extent(tensor)
    groups = np.arange(len(types))
    order = np.argsort(starts, kind="stable")
    order = order[lengths[order] > 0]
    if len(order):
        starts, ends = starts[order], np.maximum.accumulate((starts + lengths)[order])
        begins = np.flatnonzero(np.concatenate(([True], starts[1:] >= ends[:-1])))
        lowest = np.minimum.reduceat(order, begins)
        groups[order] = np.repeat(lowest, np.diff(np.append(begins, len(order))))
    return groups


def _reaches(flat: FlatState, types: list[LeafType]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[int]]:
    """The lowest address of each leaf, its length in memory, and the leaves that are not flat."""
    starts = np.array(flat.pointers, dtype=np.int64)
    lengths = np.fromiter((kind.nbytes for kind in types), dtype=np.int64, count=len(types))
    ragged = [index for index, data in enumerate(flat.data) if not is_flat(data)]
    for index in ragged:
        starts[index], lengths[index] = extent(flat.data[index])
    return starts, lengths, ragged


def _is_lazy(data: Array) -> bool:
    """True if the elements differ from the bytes in memory (conjugated or negated on reading)."""
    return isinstance(data, torch.Tensor) and (data.is_conj() or data.is_neg())


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of an array in C order."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(1, length)
    return tuple(reversed(strides))


def address(data: Array) -> int:
    """Memory address of the first element."""
    return int(data.data_ptr() if isinstance(data, torch.Tensor) else data.ctypes.data)


def _any_overlap(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> bool:
    ends = np.maximum.accumulate(starts + lengths)
    return bool(np.any(starts[1:] < ends[:-1]))


def _alias(data: Array, kind: LeafType, owner: int, offset: int) -> Alias | None:
    # The stride of a dimension of length 1 has no meaning: it depends on how torch made the tensor.
    strides = tuple(
        step if length > 1 else plain
        for step, length, plain in zip(_strides(data), kind.shape, contiguous_strides(kind.shape), strict=True)
    )
    if offset % kind.itemsize or any(stride < 0 for stride in strides):
        return None
    return Alias(owner, offset, strides)


def _strides(data: Array) -> tuple[int, ...]:
    """Strides in elements."""
    if isinstance(data, torch.Tensor):
        return tuple(data.stride())
    return tuple(stride // data.itemsize for stride in data.strides)


# --- leaves that overlap ----------------------------------------------------------------------------------------------


class _Bytes:
    """The bytes of a leaf as an ``__array_interface__``: only addresses, nothing is read."""

    def __init__(self, data: Array) -> None:
        strides = [each * data.itemsize for each in data.stride()] if isinstance(data, torch.Tensor) else data.strides
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (address(data), True),
            "shape": (*data.shape, data.itemsize),
            "strides": (*strides, 1),
        }


def overlapping(arrays: Mapping[int, Array]) -> list[int]:
    """Numbers of the leaves that share bytes with another one, ascending.

    Columns of one matrix do not, though their address ranges overlap. Exact, by ``numpy.shares_memory``.
    """
    numbers = [number for number, data in arrays.items() if 0 not in data.shape]
    reaches = [extent(arrays[number]) for number in numbers]
    starts, lengths = np.array(reaches, dtype=np.int64).reshape(-1, 2).T
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], (starts + lengths)[order]
    if not np.any(starts[1:] < np.maximum.accumulate(ends)[:-1]):
        return []
    found: set[int] = set()
    near: list[tuple[int, int]] = []
    for place, start, end in zip(order.tolist(), starts.tolist(), ends.tolist(), strict=True):
        number = numbers[place]
        near = [(other_end, other) for other_end, other in near if other_end > start]
        for _, other in near:
            if _share(arrays[number], arrays[other]):
                found |= {number, other}
        near.append((end, number))
    return sorted(found)


def _share(one: Array, other: Array) -> bool:
    if _device(one) != _device(other):
        return False
    try:
        arrays = np.asarray(_Bytes(one)), np.asarray(_Bytes(other))
        return bool(np.shares_memory(*arrays, max_work=_MOST_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _device(data: Array) -> str:
    return str(data.device) if isinstance(data, torch.Tensor) else "cpu"


def conflicting(live: Mapping[int, Array], wanted: Mapping[int, Array]) -> list[int]:
    """Leaves that would not have their wanted bytes after all were written; the live bytes are left unchanged."""
    before = {number: _copy(data) for number, data in live.items()}
    try:
        for number, data in live.items():
            assign(data, wanted[number])
        return [number for number, data in live.items() if _digest(data) != _digest(wanted[number])]
    finally:
        for number, data in live.items():
            assign(data, before[number])


def assign(target: Any, value: Any) -> None:
    """Copy all elements of ``value`` into an existing array."""
    if isinstance(target, torch.Tensor):
        with torch.inference_mode() if target.is_inference() else torch.no_grad():
            target.copy_(value)
    else:
        np.copyto(target, value)


def _copy(data: Array) -> Array:
    return data.detach().clone() if isinstance(data, torch.Tensor) else data.copy()


def _digest(data: Array) -> int:
    return full_digests([data.cpu() if isinstance(data, torch.Tensor) else data])[0]
