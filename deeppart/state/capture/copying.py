"""Copies this rank's spans into reused staging memory, while training waits.

For leaves on a GPU, staging memory (:mod:`deeppart.state.capture.staging`) is pinned and filled on a side stream.
"""

from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
import torch

from deeppart.errors import FreedMemoryError
from deeppart.state.capture.layout import ShareLayout
from deeppart.state.fingerprint import copy_tensors
from deeppart.state.memory import HeldMemory, memmove, storage_address
from deeppart.state.paths import readable
from deeppart.state.tensors import Bytes, LeafType, is_flat, lies_flat_on_host, rectangles
from deeppart.state.tree import FlatState

#: Device-to-host copies are made in pieces of this size, so that other copies can run in between.
DEVICE_PIECE_BYTES = 64 << 20

#: Host copies are made in pieces of this size, so that other threads can take the interpreter lock in between.
MOVE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A copy of bytes within this process.

    Attributes:
        leaf: the leaf that they belong to.
        target, source: addresses.
        length: bytes.
    """

    leaf: int
    target: int
    source: int
    length: int


@dataclass(frozen=True, slots=True)
class CallCopy:
    """Another copy, such as one from a device.

    Attributes:
        leaf: the leaf that it belongs to, or None.
        call: makes the copy and returns.
    """

    leaf: int | None
    call: Callable[[], object]


class CapturePlan:
    """The positions of all spans in a staging buffer; made once per layout and buffer, used at every checkpoint.

    Contiguous host memory is copied by address with the C library's ``memmove``, which touches no tensor object, and
    unlike torch's copy can bypass the caches (docs/benchmarks.md). The memory is held, and its address is checked
    immediately before the copy without releasing the interpreter lock: no other thread can free it in between.
    """

    def __init__(
        self, layout: ShareLayout, types: Sequence[LeafType], arrays: Sequence[Any], staged: torch.Tensor
    ) -> None:
        self._place = (staged.data_ptr(), staged.numel())
        self._moves = _Moves()
        self._array_moves: list[HostCopy] = []
        self._whole: list[tuple[int, torch.Tensor]] = []
        self._partial: list[tuple[int, int, int, torch.Tensor]] = []
        self._numpy: list[tuple[int, int, int, Bytes]] = []
        self._tensor_leaves: set[int] = set()
        names = ("leaf", "start", "length", "raw_offset")
        for leaf, start, length, at in zip(*(layout.spans[name].tolist() for name in names), strict=True):
            kind, target = types[leaf], staged[at : at + length]
            first, last = start // kind.itemsize, (start + length) // kind.itemsize
            if lies_flat_on_host(arrays[leaf]):
                for piece in range(0, length, MOVE_BYTES):
                    place, count = staged.data_ptr() + at + piece, min(MOVE_BYTES, length - piece)
                    if kind.kind == "numpy":
                        self._array_moves.append(HostCopy(leaf, place, start + piece, count))
                    else:
                        self._moves.append(leaf, start + piece, place, count)
            elif kind.kind == "numpy":
                self._numpy.append((leaf, first, last, target.numpy()))
            elif length == kind.nbytes:
                self._whole.append((leaf, target.view(_dtype(kind)).view(kind.shape)))
                self._tensor_leaves.add(leaf)
            else:
                self._partial.append((leaf, first, last, target.view(_dtype(kind))))
                self._tensor_leaves.add(leaf)
        self._leaves = sorted(set(layout.spans["leaf"].tolist()))

    def fits(self, staged: torch.Tensor) -> bool:
        """True if the plan was made for this buffer."""
        return self._place == (staged.data_ptr(), staged.numel())

    def copy(self, flat: FlatState, later: Collection[int] = ()) -> list[HostCopy | CallCopy]:
        """Copy the leaves' current bytes, except those of ``later``, and return the copies that are left."""
        arrays, memory = flat.data, flat.memory
        now = [leaf for leaf in self._leaves if leaf not in later] if later else self._leaves
        _check_places(flat, now)
        targets, sources = self._tensors(self._tensor_leaves.difference(later), arrays)
        if any(source.is_cuda for source in sources):
            _copy_from_devices(targets, sources)
        else:
            copy_tensors(targets, sources)
        left: list[HostCopy | CallCopy] = [*self._moves.make(memory, later)]
        for move in self._array_moves:
            if memory.stands(move.leaf):
                memmove(move.target, memory.pointers[move.leaf] + move.source, move.length)
        for leaf, first, last, buffer in self._numpy:
            data = arrays[leaf]
            elements = buffer.view(data.dtype)
            for piece, view in _pieces(data, first, last):
                np.copyto(elements[piece].reshape(view.shape), view)
        _check_places(flat, now)
        for leaf in sorted(self._tensor_leaves.intersection(later)):
            alias = {leaf: arrays[leaf].detach()}  # unaffected by later changes of the tensor
            left += [CallCopy(leaf, call) for call in _later_calls(*self._tensors({leaf}, alias))]
        return left

    def _tensors(self, leaves: set[int], arrays: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Views of staging memory, and their sources, for leaves that are not contiguous in host memory."""
        targets = [target for leaf, target in self._whole if leaf in leaves]
        sources = [arrays[leaf] for leaf, _ in self._whole if leaf in leaves]
        for leaf, first, last, target in self._partial:
            for piece, view in _pieces(arrays[leaf], first, last) if leaf in leaves else ():
                targets.append(target[piece].view(view.shape))
                sources.append(view)
        return targets, sources


class _Moves:
    """Copies of tensors by address."""

    def __init__(self) -> None:
        self._leaves: list[int] = []
        self._starts: list[int] = []
        self._targets: list[int] = []
        self._lengths: list[int] = []

    def append(self, leaf: int, start: int, target: int, length: int) -> None:
        """Plan a copy of ``length`` bytes from byte ``start`` of a leaf to an address."""
        self._leaves.append(leaf)
        self._starts.append(start)
        self._targets.append(target)
        self._lengths.append(length)

    def make(self, memory: HeldMemory, later: Collection[int]) -> list[HostCopy]:
        """Make the copies, each only if its memory has not moved; returns those of ``later``."""
        leaves, targets, lengths = self._leaves, self._targets, self._lengths
        sources = list(map(operator.add, map(memory.pointers.__getitem__, leaves), self._starts))
        left: list[HostCopy] = []
        if later:
            waits = [leaf in later for leaf in leaves]
            columns = (leaves, targets, sources, lengths)
            left = [HostCopy(*row) for row in zip(*(compress(column, waits) for column in columns), strict=True)]
            now = [not wait for wait in waits]
            leaves, targets, sources, lengths = (list(compress(column, now)) for column in columns)
        holders: list[Any] = list(map(memory.holders.__getitem__, leaves))
        bases = list(map(memory.bases.__getitem__, leaves))
        for first, last in _batches(lengths):
            batch = slice(first, last)
            # All in C, without an interpreter step in between: see CapturePlan.
            stand = map(operator.eq, map(storage_address, holders[batch]), bases[batch])
            asked = map(operator.mul, lengths[batch], stand)
            deque(map(memmove, targets[batch], sources[batch], asked), maxlen=0)
        return left


def _batches(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Divide copies into runs of up to :data:`MOVE_BYTES` or one copy; as (first, last + 1)."""
    runs, first, together = [], 0, 0
    for place, length in enumerate(lengths):
        if together + length > MOVE_BYTES and place > first:
            runs.append((first, place))
            first, together = place, 0
        together += length
    return [*runs, (first, len(lengths))]


def _check_places(flat: FlatState, leaves: Sequence[int]) -> None:
    for leaf in flat.memory.moved(leaves):
        raise FreedMemoryError(
            "memory of the state was freed or replaced during checkpoint()",
            expected="a state that does not change until checkpoint() returns",
            found="another address or length of a tensor's storage, or of an array",
            where=f"path {readable(flat.arrays[leaf].path)}",
            todo="wait for checkpoint() before freeing it in another thread",
        )


def _later_calls(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> list[Callable[[], None]]:
    """A call for each copy, to be made by another thread after the work already queued on the device."""
    ready: dict[torch.device, torch.cuda.Event] = {}
    for device in {source.device for source in sources if source.is_cuda}:
        ready[device] = torch.cuda.current_stream(device).record_event()
    calls: list[Callable[[], None]] = []
    for target, source in zip(targets, sources, strict=True):
        pieces = _device_pieces(target, source) if source.is_cuda else [(target, source)]
        calls += [partial(_copy_later, part, piece, ready.get(source.device)) for part, piece in pieces]
    return calls


def _copy_later(target: torch.Tensor, source: torch.Tensor, ready: torch.cuda.Event | None) -> None:
    with torch.no_grad():
        if ready is None:
            target.copy_(source)
            return
        stream = _side_stream(source.device)
        with torch.cuda.stream(stream):
            stream.wait_event(ready)
            target.copy_(source, non_blocking=True)
        stream.synchronize()


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _dtype(kind: LeafType) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, kind.dtype)
    return dtype


def _pieces(data: Any, first: int, last: int) -> list[tuple[slice, Any]]:
    """Elements ``[first, last)`` of an array as views, each with its position in that range; copies nothing."""
    if isinstance(data, torch.Tensor):
        data = data.detach()
    if is_flat(data):
        return [(slice(0, last - first), data.reshape(-1)[first:last])]
    pieces, at = [], 0
    for index, count in rectangles(tuple(data.shape), first, last):
        pieces.append((slice(at, at + count), data[index]))
        at += count
    return pieces


def _copy_from_devices(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy on side streams, in pieces, after the work already queued; waits only for the copies."""
    streams: dict[torch.device, torch.cuda.Stream] = {}
    on_host: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    with torch.no_grad():
        for target, source in zip(targets, sources, strict=True):
            if not source.is_cuda:
                on_host[0].append(target)
                on_host[1].append(source)
                continue
            if source.device not in streams:
                streams[source.device] = torch.cuda.Stream(source.device)
                streams[source.device].wait_stream(torch.cuda.current_stream(source.device))
            with torch.cuda.stream(streams[source.device]):
                for part, piece in _device_pieces(target, source):
                    part.copy_(piece, non_blocking=True)
    copy_tensors(*on_host)
    for stream in streams.values():
        stream.synchronize()


def _device_pieces(target: torch.Tensor, source: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    step = max(1, DEVICE_PIECE_BYTES // source.element_size())
    if source.numel() <= step or not source.is_contiguous():
        return [(target, source)]
    flat_target, flat_source = target.reshape(-1), source.reshape(-1)
    return [(flat_target[at : at + step], flat_source[at : at + step]) for at in range(0, source.numel(), step)]
