"""Fingerprints of leaves, with which ranks find out whether they have the same bytes.

They cover all bytes of a leaf, of many small leaves together, or sampled elements. All fingerprints have 63 bits, so
that a signed maximum of value and negated value tells whether all ranks agree.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from deeppart._threads import on_threads
from deeppart.state.tensors import (
    Bytes,
    HostMemory,
    LeafType,
    flat_bytes,
    in_a_row,
    is_flat,
    lies_flat_on_host,
    rectangles,
)

#: Leaves of at most this many bytes are compared in full at every checkpoint.
SMALL_LEAF_BYTES = 64 << 10
#: Elements sampled per leaf.
SAMPLES_PER_LEAF = 16
#: 2**64 over the golden ratio: successive multiples, as fractions of 2**64, spread evenly over every interval.
_ROTATION = 0x9E3779B97F4A7C15
_PIECE_ELEMENTS = 1 << 20
#: Elements that one thread digests at a time, and bytes from which on several threads do.
_DIGESTED_ELEMENTS, _WORTH_THREADS_BYTES = 4 << 20, 32 << 20
#: torch cannot copy a large transposed tensor of this dtype, though it can copy its bytes.
_NO_COPY = getattr(torch, "float4_e2m1fn_x2", None)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def hash63(data: Any) -> int:
    """xxh3-64 without its lowest bit."""
    return int(xxhash.xxh3_64_intdigest(data)) >> 1


def hash_json(document: Any) -> int:
    """Fingerprint of a JSON-like document."""
    return hash63(json.dumps(document, separators=(",", ":")).encode())


class SmallLeaves:
    """Compares the small leaves of a state in full.

    This runs for every small leaf at every checkpoint, while training waits. So contiguous leaves in host memory are
    hashed in place, by address, without touching the tensor; the others are packed into reused memory, by one call per
    device.
    """

    def __init__(self, numbers: Sequence[int], arrays: Sequence[Any], types: Sequence[LeafType]) -> None:
        sized = [number for number in numbers if types[number].nbytes]
        in_place = [number for number in sized if lies_flat_on_host(arrays[number])]
        self._in_place = np.array(in_place, dtype=np.int64)
        self._lengths = np.array([types[number].nbytes for number in in_place], dtype=np.int64)
        self._packed: list[tuple[torch.Tensor, list[torch.Tensor], list[int]]] = []
        self._numpy: list[tuple[Bytes, int]] = []
        rest = sorted(set(sized) - set(in_place))
        tensors = [number for number in rest if isinstance(arrays[number], torch.Tensor)]
        for device in sorted({arrays[number].device for number in tensors}, key=str):
            mine = [number for number in tensors if arrays[number].device == device]
            self._packed.append(_pack(mine, types, device))
        for number in sorted(set(rest) - set(tensors)):
            self._numpy.append((np.empty(types[number].nbytes, dtype=np.uint8), number))

    def digest(self, arrays: Sequence[Any], pointers: Sequence[int]) -> int:
        """One fingerprint of all the leaves together."""
        hasher = xxhash.xxh3_64()
        for octets in self._octets(pointers):
            hasher.update(octets)
        for packed, views, numbers in self._packed:
            copy_tensors(views, [arrays[number] for number in numbers])
            hasher.update(packed.cpu().numpy().data)
        for buffer, number in self._numpy:
            data = arrays[number]
            np.copyto(buffer.view(data.dtype).reshape(data.shape), data)
            hasher.update(buffer.data)
        return int(hasher.intdigest()) >> 1

    def _octets(self, pointers: Sequence[int]) -> Iterator[memoryview]:
        """The bytes of each leaf that is contiguous in host memory."""
        if len(self._in_place):
            starts = np.array(pointers, dtype=np.int64)[self._in_place]
            ends = starts + self._lengths
            memory, first = memory_over(starts, ends)
            octets = memory.data  # slicing it is cheaper than slicing an array
            for start, end in zip((starts - first).tolist(), (ends - first).tolist(), strict=True):
                yield octets[start:end]


def _pack(
    numbers: list[int], types: Sequence[LeafType], device: torch.device
) -> tuple[torch.Tensor, list[torch.Tensor], list[int]]:
    # Descending element sizes keep every view aligned without padding.
    ordered = sorted(numbers, key=lambda number: (-types[number].itemsize, number))
    packed = torch.empty(sum(types[number].nbytes for number in ordered), dtype=torch.uint8, device=device)
    views, at = [], 0
    for number in ordered:
        kind = types[number]
        dtype: torch.dtype = getattr(torch, kind.dtype)
        views.append(packed[at : at + kind.nbytes].view(dtype).view(kind.shape))
        at += kind.nbytes
    return packed, views, ordered


def copy_tensors(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy each source into its target, in one call, which saves most of the overhead."""
    if not targets:
        return
    if any(source.dtype is _NO_COPY for source in sources):
        targets, sources = [_copyable(target) for target in targets], [_copyable(source) for source in sources]
    with torch.no_grad():
        torch._foreach_copy_(targets, sources)


def _copyable(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8) if tensor.dtype is _NO_COPY else tensor


Numbers = npt.NDArray[np.int64]


def memory_over(starts: Numbers, ends: Numbers) -> tuple[npt.NDArray[np.uint8], int]:
    """One array over all of these address ranges, which must be those of live arrays; and its first address."""
    first = int(starts.min())
    return np.asarray(HostMemory(first, int(ends.max()) - first)), first


def fraction(turn: int) -> float:
    """The offset of the samples, from 0 to 1; over many turns the offsets come close to every number."""
    return (turn * _ROTATION % (1 << 64)) / (1 << 64)


def _sample(tensor: torch.Tensor, turn: int) -> torch.Tensor:
    """About :data:`SAMPLES_PER_LEAF` elements of a tensor, different ones at each turn, on the tensor's device."""
    count = math.prod(tensor.shape)
    step = max(1, -(-count // SAMPLES_PER_LEAF))
    places = np.arange(int(fraction(turn) * step), count, step)
    index = np.unravel_index(places, tensor.shape) if tensor.shape else ()
    # As integers: torch cannot index all of its dtypes.
    bits = _BITS.get(tensor.element_size())
    plain = tensor.detach() if bits is None or tensor.is_conj() or tensor.is_neg() else tensor.detach().view(bits)
    return plain[tuple(torch.from_numpy(each).to(tensor.device) for each in index)].reshape(-1)


def sample_digest(tensors: Sequence[torch.Tensor], turn: int) -> int:
    """One fingerprint of sampled elements of all tensors, fetched from each device in one copy per dtype."""
    groups: dict[tuple[str, str], list[torch.Tensor]] = {}
    for tensor in tensors:
        samples = _sample(tensor, turn)
        groups.setdefault((str(samples.device), str(samples.dtype)), []).append(samples)
    hasher = xxhash.xxh3_64()
    for key in sorted(groups):
        hasher.update(flat_bytes(torch.cat(groups[key]).cpu()).data)
    return int(hasher.intdigest()) >> 1


def full_digests(leaves: Sequence[Any], threads: int = 1) -> list[int]:
    """For each leaf a fingerprint of all its elements, in C order; on several threads if that pays."""
    found = dict[int, int]()
    on_devices = [at for at, leaf in enumerate(leaves) if is_on_device(leaf)]
    found.update(zip(on_devices, device_digests([leaves[at] for at in on_devices]), strict=True))
    pieces = [piece for at, leaf in enumerate(leaves) if at not in found for piece in _pieces(at, leaf)]
    digests = np.zeros(len(pieces), dtype=np.int64)

    def digest(number: int) -> None:
        digests[number] = _piece_digest(leaves[pieces[number].leaf], pieces[number])

    if threads > 1 and len(pieces) > 1 and sum(piece.nbytes for piece in pieces) >= _WORTH_THREADS_BYTES:
        on_threads(digest, range(len(pieces)), threads, "deeppart-digest")
    else:
        for number in range(len(pieces)):
            digest(number)
    counts = np.bincount(np.array([piece.leaf for piece in pieces], dtype=np.int64), minlength=len(leaves))
    for at, (begin, end) in enumerate(itertools.pairwise([0, *np.cumsum(counts).tolist()])):
        if at not in found:
            found[at] = hash63(digests[begin:end].tobytes())
    return [found[at] for at in range(len(leaves))]


def is_on_device(data: object) -> bool:
    """True if a leaf is digested on its device."""
    return isinstance(data, torch.Tensor) and not data.is_cpu


class _Piece(NamedTuple):
    """Elements of a leaf, counted in C order, and the bytes of each."""

    leaf: int
    begin: int
    end: int
    itemsize: int

    @property
    def nbytes(self) -> int:
        return (self.end - self.begin) * self.itemsize


def _pieces(number: int, leaf: Any) -> Iterator[_Piece]:
    count = math.prod(leaf.shape)
    itemsize = leaf.element_size() if isinstance(leaf, torch.Tensor) else leaf.itemsize
    for begin in range(0, count, _DIGESTED_ELEMENTS):
        yield _Piece(number, begin, min(count, begin + _DIGESTED_ELEMENTS), itemsize)


def _piece_digest(leaf: Any, piece: _Piece) -> int:
    """Fingerprint of a piece of a leaf in host memory. If the leaf is not flat, a few MiB are copied at a time."""
    if is_flat(leaf):
        return hash63(flat_bytes(leaf)[piece.begin * piece.itemsize : piece.end * piece.itemsize])
    hasher = xxhash.xxh3_64()
    array = leaf.detach() if isinstance(leaf, torch.Tensor) else leaf
    for start in range(piece.begin, piece.end, _PIECE_ELEMENTS):
        for index, _ in rectangles(tuple(array.shape), start, min(piece.end, start + _PIECE_ELEMENTS)):
            hasher.update(flat_bytes(_flat_copy(array[index])).data)
    return int(hasher.intdigest()) >> 1


def _flat_copy(array: Any) -> Any:
    if not isinstance(array, torch.Tensor):
        return np.ascontiguousarray(array)
    if array.dtype is _NO_COPY:
        return array.view(torch.uint8).contiguous()
    return array.resolve_conj().resolve_neg().contiguous()


def device_digests(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Fingerprints of all elements of tensors, computed on their devices, and fetched in one copy per device.

    Each block of :data:`_PIECE_ELEMENTS` 32-bit words gives two sums of the words times random odd 64-bit numbers
    (multilinear hashing: Carter and Wegman 1979; Lemire and Kaser, "Strongly universal string hashing is fast", 2014).
    For any two different blocks one such sum collides with a probability of at most 2**-32 over the random numbers, so
    both with at most 2**-64; blocks that differ in one word never collide. The numbers are fixed, so this holds for
    bytes that were not chosen knowing them. The 63-bit hash over the sums adds its own collisions.
    """
    sums: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        sums.setdefault(tensor.device, []).append(_piece_sums(tensor.detach()))
    found = {}
    for device, each in sums.items():
        lengths = [len(one) for one in each]
        found[device] = iter(torch.split(torch.cat(each).cpu(), lengths))
    return [hash63(next(found[tensor.device]).numpy().tobytes()) for tensor in tensors]


def _piece_sums(tensor: torch.Tensor) -> torch.Tensor:
    """Two int64 sums per block, and the number of bytes, as one row of int64."""
    words, rest = _words(tensor)
    keys = _keys(tensor.device)
    sums = []
    for piece in (*torch.split(words, _PIECE_ELEMENTS), *torch.split(rest, _PIECE_ELEMENTS)):
        wide = piece.to(torch.int64)
        sums += [(wide * key[: len(wide)]).sum() for key in keys]
    length = torch.tensor(tensor.numel() * tensor.element_size(), device=tensor.device)
    return torch.stack([length, *sums])


def _words(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor's bytes as 32-bit words, and the remaining bytes."""
    octets = in_a_row(_flat_copy(tensor)).view(torch.uint8)
    whole = len(octets) // 4 * 4
    if octets.storage_offset() % 4 or octets.data_ptr() % 4:
        octets = octets.clone()
    return octets[:whole].view(torch.int32), octets[whole:]


@functools.lru_cache(maxsize=16)
def _keys(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Two rows of odd 64-bit numbers, the same in every process."""
    drawn = np.random.Generator(np.random.PCG64(0xD3E9)).integers(-(1 << 63), 1 << 63, (2, _PIECE_ELEMENTS), np.int64)
    first, second = torch.from_numpy(drawn | 1).to(device)
    return first, second
