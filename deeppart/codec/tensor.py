"""Codec 2: tensor bytes as planes, which regroup the bits of many elements so that similar bits are adjacent.

The two top bytes of a float hold sign, exponent and the first bits of the mantissa. Trained weights and moments have
few different exponents; sign and mantissa are close to random. So the two bytes are split into a plane of exponents and
a plane of the rest, one byte per element each; the lower bytes form further planes, unchanged. The idea is that of
ZipNN (Hershcovitch et al. 2024, arXiv:2411.05239); measurements are in docs/benchmarks.md.

A plane is stored raw, as one Zstandard frame (RFC 8878), or folded from eight bits to seven. The method is chosen by
encoding a sample from all over the chunk: exponents shrink to a third, mantissas not at all, and trying to compress
them would cost more than splitting does. docs/format.md describes the encoded bytes.

Splitting and joining work in blocks that fit into a core's cache, with numpy's shifts and narrowing casts, which are
several times as fast as a transposed copy. All of them release the GIL.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import zstandard

from deeppart.codec.base import ROOM_BYTES
from deeppart.codec.zstd import Coder, check_frame, literal_coder, match_coder, read_frame
from deeppart.errors import CorruptFileError

#: Methods of storing a plane: raw, before all other methods; zstd frame; folded; raw, among the encoded planes.
RAW_PLANE, ZSTD_PLANE, FOLDED_PLANE, STRAY_PLANE = 0, 1, 2, 3
#: dtype tag -> two layouts: a coarse one, and one with a plane for each low byte, for low bytes that shrink.
_FLOATS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "float16": (1, 1),
        "complex32": (1, 1),
        "bfloat16": (4, 4),
        "float32": (5, 6),
        "complex64": (5, 6),
        "float64": (7, 8),
        "complex128": (7, 8),
    }
)
_INTEGERS: Mapping[str, int] = MappingProxyType(
    {"int16": 1, "uint16": 1, "int32": 2, "uint32": 2, "int64": 3, "uint64": 3}
)
#: dtypes with planes. One-byte dtypes, which are a single plane, use zstd.
PLANE_DTYPES = frozenset(_FLOATS) | frozenset(_INTEGERS)
#: zstd level for planes of integers, which have repetitions worth searching for.
_INTEGER_LEVEL = 1
#: A plane is compressed if its sample shrinks to this fraction. Incompressible parts cost little: zstd skips them.
_WORTH = 0.97
#: A sample consists of _PIECES pieces from all over the chunk, of _PIECE_ELEMENTS elements each.
_PIECES, _PIECE_ELEMENTS = 64, 128
_HEAD = struct.Struct("<BBH")
_PLANE = struct.Struct("<BHBI")  # method, three bytes of zeros, stored length
#: Elements processed at a time: they, their planes and two blocks of temporary values fit into 2 MiB.
BLOCK_ELEMENTS = 128 << 10
#: Planes can be folded if all of their bytes are below this.
FOLDABLE_BELOW = 0x80
#: :func:`fold` processes multiples of this many bytes.
_FOLD_BYTES = 64
Plane = npt.NDArray[np.unsignedinteger]
Bytes = npt.NDArray[np.uint8]
_UNSIGNED: Mapping[int, type[np.unsignedinteger]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_TOP_BITS = np.uint64(0x8080808080808080)


@dataclass(frozen=True)
class TensorCodec:
    """Stores tensor bytes as planes."""

    dtype: str = "float32"

    codec_id: ClassVar[int] = 2
    name: ClassVar[str] = "tensor"

    def encode(self, raw: memoryview, room: memoryview | None = None) -> memoryview:
        """Split ``raw`` into planes and store them. numpy and zstd release the GIL."""
        out = np.frombuffer(room, np.uint8) if room is not None else np.empty(raw.nbytes + ROOM_BYTES, np.uint8)
        if self.dtype in _INTEGERS:
            layout = LAYOUTS[_INTEGERS[self.dtype]]
            methods = (ZSTD_PLANE,) * len(layout.plane_words)
            coders = (_integer_coder(),) * len(methods)
        else:
            layout, methods = _sampled(raw, *_FLOATS[self.dtype])
            coders = _float_coders(layout)
        return out[: _store(raw, layout, methods, coders, out)].data

    def decode(self, encoded: memoryview, raw_length: int, into: memoryview | None = None) -> memoryview:
        """Join the planes to elements, in ``into`` or in new memory."""
        layout, stored, tail = _read_head(encoded, raw_length)
        count = raw_length // layout.item_bytes
        words = layout.plane_words
        planes = [_load(i, *stored[i], count, words[i]) for i in range(len(words))]
        raw = np.empty(raw_length, np.uint8) if into is None else np.frombuffer(into, np.uint8)
        join(planes, layout, elements_of(raw, layout))
        raw[count * layout.item_bytes :] = np.frombuffer(tail, np.uint8)
        return raw.data


def _integer_coder() -> Coder:
    return zstandard.ZstdCompressor(level=_INTEGER_LEVEL, write_content_size=True).compress


def _float_coders(layout: PlaneLayout) -> tuple[Coder, ...]:
    """Return a coder for each plane: with few matches for low bytes, which are often zero, without for the others."""
    return (match_coder(),) * len(layout.low_words) + (literal_coder(),) * 2


def _sampled(raw: memoryview, coarse: int, fine: int) -> tuple[PlaneLayout, tuple[int, ...]]:
    """Choose the layout, and a method for each plane, by a sample of elements from all over ``raw``."""
    layout = LAYOUTS[fine]
    elements = elements_of(raw, layout)
    if len(elements) > 2 * _PIECES * _PIECE_ELEMENTS:
        rows = elements[: len(elements) // _PIECES * _PIECES].reshape(_PIECES, -1)
        elements = rows[:, :_PIECE_ELEMENTS].reshape(-1)
    planes = _scratch_planes(layout, len(elements))
    split(elements, layout, planes)
    methods = [_method(plane, coder) for plane, coder in zip(planes, _float_coders(layout), strict=True)]
    if coarse != fine and not any(methods[:-2]):  # low bytes stored raw need no planes of single bytes
        layout = LAYOUTS[coarse]
        methods = [RAW_PLANE] * len(layout.low_words) + methods[-2:]
    return layout, tuple(methods)


def _method(sample: Plane, coder: Coder) -> int:
    shrunk = len(coder(sample.data))
    foldable = bool(len(sample)) and int(sample.max()) < FOLDABLE_BELOW
    if shrunk <= (7 / 8 if foldable else 1) * _WORTH * len(sample):
        return ZSTD_PLANE
    return FOLDED_PLANE if foldable else RAW_PLANE


def _scratch_planes(layout: PlaneLayout, count: int) -> list[Plane]:
    return [SCRATCH.take(f"plane {i}", count, word_type(word)) for i, word in enumerate(layout.plane_words)]


def _store(
    raw: memoryview, layout: PlaneLayout, methods: tuple[int, ...], coders: tuple[Coder, ...], out: Bytes
) -> int:
    """Write head, planes and remaining bytes to ``out``. Returns their length.

    Raw planes come first, because their offsets are then known before splitting, which writes them directly to ``out``.
    """
    elements = elements_of(raw, layout)
    planes: list[Plane] = []
    at = _HEAD.size + _PLANE.size * len(methods)
    _HEAD.pack_into(out.data, 0, layout.layout_id, len(methods), 0)
    for i, word in enumerate(layout.plane_words):
        if methods[i] == RAW_PLANE:
            planes.append(out[at : at + word * len(elements)].view(word_type(word)))
            at += planes[i].nbytes
        else:
            planes.append(SCRATCH.take(f"plane {i}", len(elements), word_type(word)))
    split(elements, layout, planes)
    for i, plane in enumerate(planes):
        method, length = methods[i], plane.nbytes
        if method != RAW_PLANE:
            method, length = _pack(plane, method, coders[i], out[at:])
            at += length
        _PLANE.pack_into(out.data, _HEAD.size + _PLANE.size * i, method, 0, 0, length)
    tail = raw[elements.nbytes :]
    out[at : at + len(tail)] = np.frombuffer(tail, np.uint8)
    return at + len(tail)


def _pack(plane: Plane, method: int, coder: Coder, out: Bytes) -> tuple[int, int]:
    """Store a plane in fewer bytes, or raw if it does not shrink. Returns the method and the length."""
    data = plane.view(np.uint8)
    if method == FOLDED_PLANE and int(data.max(initial=0)) < FOLDABLE_BELOW:
        length = folded_bytes(len(data))
        fold(data, out[:length])
        return FOLDED_PLANE, length
    frame = coder(data.data) if method == ZSTD_PLANE else b""
    if 0 < len(frame) < len(data):
        out[: len(frame)] = np.frombuffer(frame, np.uint8)
        return ZSTD_PLANE, len(frame)
    out[: len(data)] = data
    return STRAY_PLANE, len(data)


def _read_head(encoded: memoryview, raw_length: int) -> tuple[PlaneLayout, list[tuple[int, memoryview]], memoryview]:
    """Return layout, (method, stored bytes) of each plane, and the remaining bytes. Checks that the lengths add up."""
    if len(encoded) < _HEAD.size:
        raise _corrupt("a head of 4 bytes", f"{len(encoded)} bytes")
    layout_id, count, reserved = _HEAD.unpack_from(encoded)
    layout = LAYOUTS.get(layout_id)
    if layout is None or count != len(layout.plane_words) or reserved:
        raise _corrupt("a known layout and its planes", f"layout {layout_id} with {count} planes, {reserved}")
    at = _HEAD.size + _PLANE.size * count
    if len(encoded) < at:
        raise _corrupt(f"a head of {at} bytes", f"{len(encoded)} bytes")
    entries = [_PLANE.unpack_from(encoded, _HEAD.size + _PLANE.size * i) for i in range(count)]
    if any(zeros or zero for _, zeros, zero, _ in entries):
        raise _corrupt("zeros in the reserved bytes of the planes", "others")
    table = [(method, length) for method, _, _, length in entries]
    stored: list[tuple[int, memoryview]] = [(method, encoded[:0]) for method, _ in table]
    for first in (True, False):  # raw planes are before the others
        for i, (method, length) in enumerate(table):
            if (method == RAW_PLANE) == first:
                stored[i] = (method, encoded[at : at + length])
                at += length
    if at + raw_length % layout.item_bytes != len(encoded):
        raise _corrupt(f"{at + raw_length % layout.item_bytes} bytes", f"{len(encoded)} bytes")
    return layout, stored, encoded[at:]


def _load(i: int, method: int, data: memoryview, count: int, word: int) -> Plane:
    """Decode plane ``i``, of ``count`` words, from its stored bytes. A raw plane is not copied."""
    nbytes = count * word
    lengths = {RAW_PLANE: nbytes, STRAY_PLANE: nbytes, FOLDED_PLANE: folded_bytes(nbytes), ZSTD_PLANE: len(data)}
    if lengths.get(method) != len(data):
        raise _corrupt(f"{lengths.get(method)} bytes stored by method {method}", f"{len(data)} bytes")
    if method in (RAW_PLANE, STRAY_PLANE):
        return np.frombuffer(data, word_type(word), count)
    if method == ZSTD_PLANE:
        check_frame(data, nbytes)  # before memory is allocated for its claimed size
    plane = SCRATCH.take(f"plane {i}", nbytes, np.uint8)
    if method == ZSTD_PLANE:
        read_frame(data, nbytes, plane.data)
    else:
        unfold(np.frombuffer(data, np.uint8), plane)
    return plane.view(word_type(word))


def _corrupt(expected: str, found: str) -> CorruptFileError:
    return CorruptFileError("a chunk of planes is not well-formed", expected=expected, found=found)


class Scratch(threading.local):
    """Named arrays of the calling thread, reused for all chunks: page faults would cost as much as the work.

    Their contents are valid until the same name is taken again.
    """

    def __init__(self) -> None:
        self._memory: dict[str, npt.NDArray[np.uint8]] = {}

    def take(self, name: str, count: int, kind: type[np.unsignedinteger]) -> npt.NDArray[np.unsignedinteger]:
        """Return an array of ``count`` values of ``kind`` with undefined contents."""
        nbytes = count * np.dtype(kind).itemsize
        memory = self._memory.get(name)
        if memory is None or memory.nbytes < nbytes:
            memory = self._memory[name] = np.empty(nbytes, np.uint8)
        return memory[:nbytes].view(kind)


SCRATCH = Scratch()


@dataclass(frozen=True, slots=True)
class PlaneLayout:
    """The division of elements into planes.

    The planes are, in this order: the bytes below the top two, lowest first; *rest*; *exponent*. Of the 16 top bits,
    *exponent* gets eight, from bit ``rest_bits`` on. *rest* gets the others: the ``rest_bits`` below these as its low
    bits, and those above these as its high bits.

    Attributes:
        layout_id: number of the layout in an encoded chunk; never reused.
        item_bytes: bytes of an element: 2, 4 or 8.
        rest_bits: 7 for bfloat16 and float32, 4 for float64; with 8 the two planes are the two top bytes.
        low_words: bytes per element in each of the planes below the top two bytes, lowest first.
    """

    layout_id: int
    item_bytes: int
    rest_bits: int
    low_words: tuple[int, ...]

    @property
    def plane_words(self) -> tuple[int, ...]:
        """Bytes per element in each plane."""
        return (*self.low_words, 1, 1)


_ALL = (
    PlaneLayout(1, 2, 8, ()),  # float16, int16: byte by byte
    PlaneLayout(2, 4, 8, (1, 1)),  # int32
    PlaneLayout(3, 8, 8, (1, 1, 1, 1, 1, 1)),  # int64
    PlaneLayout(4, 2, 7, ()),  # bfloat16
    PlaneLayout(5, 4, 7, (2,)),  # float32
    PlaneLayout(6, 4, 7, (1, 1)),  # float32 whose low bytes are worth compressing
    PlaneLayout(7, 8, 4, (4, 2)),  # float64
    PlaneLayout(8, 8, 4, (1, 1, 1, 1, 1, 1)),  # float64 whose low bytes are worth compressing
)


LAYOUTS: Mapping[int, PlaneLayout] = MappingProxyType({layout.layout_id: layout for layout in _ALL})


def elements_of(raw: memoryview | Bytes, layout: PlaneLayout) -> Plane:
    """Return the complete elements of ``raw`` as unsigned integers, without a copy."""
    count = len(raw) // layout.item_bytes
    return np.frombuffer(raw, _UNSIGNED[layout.item_bytes], count)


def word_type(nbytes: int) -> type[np.unsignedinteger]:
    """Return the unsigned integer type of that many bytes."""
    return _UNSIGNED[nbytes]


def split(elements: Plane, layout: PlaneLayout, planes: list[Plane]) -> None:
    """Split elements, written to ``planes``."""
    size = min(len(elements), BLOCK_ELEMENTS)
    top = SCRATCH.take("top", size, np.uint16)
    byte = SCRATCH.take("byte", size, np.uint8)
    *lows, rest, exponent = planes
    rest_mask = np.uint8((1 << layout.rest_bits) - 1)
    for at in range(0, len(elements), BLOCK_ELEMENTS):
        block = elements[at : at + BLOCK_ELEMENTS]
        here, count = slice(at, at + len(block)), len(block)
        shift = 0
        for low, nbytes in zip(lows, layout.low_words, strict=True):
            _narrow(block, shift, low[here])
            shift += 8 * nbytes
        tops = block if layout.item_bytes == 2 else _narrow(block, shift, top[:count])
        _narrow(tops, layout.rest_bits, exponent[here])
        _narrow(tops, 0, rest[here])
        if layout.rest_bits == 8:
            continue
        if layout.rest_bits == 7:  # only the sign is left: a comparison is cheaper than a shift
            np.less(tops.view(np.int16), 0, out=byte[:count].view(np.bool_))
            np.multiply(byte[:count], np.uint8(0x80), out=byte[:count])
        else:
            _narrow(tops, 8, byte[:count])
            np.bitwise_and(byte[:count], ~rest_mask, out=byte[:count])
        np.bitwise_and(rest[here], rest_mask, out=rest[here])
        np.bitwise_or(rest[here], byte[:count], out=rest[here])


def join(planes: list[Plane], layout: PlaneLayout, elements: Plane) -> None:
    """Join planes into elements: the reverse of :func:`split`, writing to ``elements``."""
    size = min(len(elements), BLOCK_ELEMENTS)
    top, other = (SCRATCH.take(name, size, np.uint16) for name in ("top", "shifted"))
    wide = SCRATCH.take("wide", size, word_type(layout.item_bytes))
    *lows, rest, exponent = planes
    rest_mask = np.uint16((1 << layout.rest_bits) - 1)
    for at in range(0, len(elements), BLOCK_ELEMENTS):
        block = elements[at : at + BLOCK_ELEMENTS]
        here, count = slice(at, at + len(block)), len(block)
        tops = block if layout.item_bytes == 2 else top[:count]
        _widen(exponent[here], layout.rest_bits, tops)
        np.copyto(other[:count], rest[here])
        if layout.rest_bits < 8:
            high = wide.view(np.uint16)[:count]
            np.bitwise_and(other[:count], np.uint16(0xFF) & ~rest_mask, out=high)
            np.left_shift(high, 8, out=high)
            np.bitwise_or(tops, high, out=tops)
            np.bitwise_and(other[:count], rest_mask, out=other[:count])
        np.bitwise_or(tops, other[:count], out=tops)
        if layout.item_bytes == 2:
            continue
        _widen(tops, 8 * layout.item_bytes - 16, block)
        shift = 0
        for low, nbytes in zip(lows, layout.low_words, strict=True):
            _widen(low[here], shift, wide[:count])
            np.bitwise_or(block, wide[:count], out=block)
            shift += 8 * nbytes


def _narrow(values: Plane, shift: int, out: Plane) -> Plane:
    """Write the low bits of ``values >> shift`` to ``out``, and return it."""
    if shift:
        np.right_shift(values, values.dtype.type(shift), out=out, casting="unsafe")
    else:
        np.copyto(out, values, casting="unsafe")
    return out


def _widen(values: Plane, shift: int, out: Plane) -> None:
    """Write ``values << shift``, in the type of ``out``, to ``out``."""
    np.copyto(out, values)
    if shift:
        np.left_shift(out, out.dtype.type(shift), out=out)


def folded_bytes(count: int) -> int:
    """Return the length of ``count`` bytes after :func:`fold`."""
    return count - count // _FOLD_BYTES * 8


def fold(plane: Bytes, out: Bytes) -> None:
    """Store bytes below 0x80 in 7/8 of their length: the bits of the last eighth become the top bits of the others.

    The sign of second moments, positive weights and counters is always 0. Folding removes it at a tenth of the cost of
    entropy coding the plane.
    """
    eighth = len(plane) // _FOLD_BYTES * 8
    out[: 7 * eighth] = plane[: 7 * eighth]
    out[7 * eighth :] = plane[8 * eighth :]
    last = plane[7 * eighth : 8 * eighth].copy().view(np.uint64)
    bits = np.empty_like(last)
    for place in range(7):
        words = out[place * eighth : (place + 1) * eighth]
        np.left_shift(last, np.uint64(7 - place), out=bits)
        np.bitwise_and(bits, _TOP_BITS, out=bits)
        np.bitwise_or(words, bits.view(np.uint8), out=words)


def unfold(folded: Bytes, plane: Bytes) -> None:
    """The reverse of :func:`fold`, writing to ``plane``."""
    eighth = len(plane) // _FOLD_BYTES * 8
    np.bitwise_and(folded[: 7 * eighth], np.uint8(0x7F), out=plane[: 7 * eighth])
    plane[8 * eighth :] = folded[7 * eighth :]
    last = np.zeros(eighth // 8, np.uint64)
    for place in range(7):
        bits = folded[place * eighth : (place + 1) * eighth].copy().view(np.uint64)
        np.bitwise_and(bits, _TOP_BITS, out=bits)
        np.right_shift(bits, np.uint64(7 - place), out=bits)
        np.bitwise_or(last, bits, out=last)
    plane[7 * eighth : 8 * eighth] = last.view(np.uint8)
