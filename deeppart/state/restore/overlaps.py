"""Live leaves that share some of their memory, though neither is a view of the other that was saved as one.

Rows 0 to 3 and rows 2 to 5 of one buffer, or a tensor and what ``numpy()`` made of it: as saved they are leaves of
their own. If they held what they share alike when they were saved, they can be restored; otherwise one would overwrite
the other, and which bytes stay would depend on the order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from deeppart.state.document.ties import address, extent
from deeppart.state.tree.fingerprint import full_digest
from deeppart.state.tree.leaves import Array, is_flat

#: How long numpy may look for a byte that two arrays share; undecided counts as shared.
_MOST_WORK = 10_000


class _Bytes:
    """The bytes of a leaf for numpy, by address: nothing is read."""

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

    Columns of one matrix do not, though they lie in each other's reach. Exact, by ``numpy.shares_memory``.
    """
    numbers = [number for number, data in arrays.items() if 0 not in data.shape]
    reaches = [_reach(arrays[number]) for number in numbers]
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


def _reach(data: Array) -> tuple[int, int]:
    return (address(data), data.nbytes) if is_flat(data) else extent(data)


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
    """Leaves that would not hold their saved bytes if all were written; live bytes are unchanged."""
    before = {number: _copy(data) for number, data in live.items()}
    try:
        for number, data in live.items():
            assign(data, wanted[number])
        return [number for number, data in live.items() if _digest(data) != _digest(wanted[number])]
    finally:
        for number, data in live.items():
            assign(data, before[number])


def assign(target: Any, value: Any) -> None:
    """Copy all elements into an array that is there."""
    if isinstance(target, torch.Tensor):
        with torch.no_grad():
            target.copy_(value)
    else:
        np.copyto(target, value)


def _copy(data: Array) -> Array:
    return data.detach().clone() if isinstance(data, torch.Tensor) else data.copy()


def _digest(data: Array) -> int:
    return full_digest(data.cpu() if isinstance(data, torch.Tensor) else data)
