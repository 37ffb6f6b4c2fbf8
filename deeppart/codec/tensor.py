"""Codec 2: tensor bytes as planes (:mod:`deeppart.codec.planes`), each stored in the way that suits it.

A plane is stored as it is, as one Zstandard frame (RFC 8878), or folded from eight bits to seven. What suits it is
found out on a sample from all over the chunk: exponents shrink to a third, mantissas do not shrink at all, and trying
would cost more than splitting does. The encoded bytes are described in docs/format.md.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import zstandard

from deeppart.codec.base import ROOM_BYTES
from deeppart.codec.entropy import Coder, literal_coder, match_coder
from deeppart.codec.planes import (
    FOLDABLE_BELOW,
    LAYOUTS,
    Bytes,
    Plane,
    PlaneLayout,
    elements_of,
    fold,
    folded_bytes,
    join,
    split,
    unfold,
    word_type,
)
from deeppart.codec.scratch import SCRATCH
from deeppart.codec.zstd import check_frame, read_frame
from deeppart.errors import CorruptFileError

#: How a plane is stored: as it is, before all others; as a zstd frame; folded; as it is, between the others.
RAW_PLANE, ZSTD_PLANE, FOLDED_PLANE, STRAY_PLANE = 0, 1, 2, 3

#: dtype tag -> layouts to choose from: the coarse one, and one with the low bytes apart for where these shrink.
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
#: dtypes with planes. Those of one byte are one plane already: plain zstd.
PLANE_DTYPES = frozenset(_FLOATS) | frozenset(_INTEGERS)

#: Integers count and repeat: there, matches are worth finding.
_INTEGER_LEVEL = 1
#: A plane is compressed if its sample shrinks to this. Parts of it that do not shrink cost little: zstd skips them.
_WORTH = 0.97
#: A sample is this many pieces from all over the chunk, of this many elements each.
_PIECES, _PIECE_ELEMENTS = 64, 128

_HEAD = struct.Struct("<BBH")
_PLANE = struct.Struct("<BHBI")  # method, three bytes of zeros, stored length


@dataclass(frozen=True)
class TensorCodec:
    """Planes."""

    dtype: str = "float32"

    codec_id: ClassVar[int] = 2
    name: ClassVar[str] = "tensor"

    def encode(self, raw: memoryview, room: memoryview | None = None) -> memoryview:
        """Take ``raw`` apart and store its planes; numpy and zstd release the GIL."""
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
        """Put the elements together again, in ``into`` or in fresh memory."""
        layout, stored, tail = _read_head(encoded, raw_length)
        count = raw_length // layout.item_bytes
        words = layout.plane_words
        planes = [_load(i, *stored[i], count, words[i]) for i in range(len(words))]
        raw = np.empty(raw_length, np.uint8) if into is None else np.frombuffer(into, np.uint8)
        join(planes, layout, elements_of(raw, layout))
        raw[count * layout.item_bytes :] = np.frombuffer(tail, np.uint8)
        return raw.data


# --- encoding ---------------------------------------------------------------------------------------------------------


def _integer_coder() -> Coder:
    return zstandard.ZstdCompressor(level=_INTEGER_LEVEL, write_content_size=True).compress


def _float_coders(layout: PlaneLayout) -> tuple[Coder, ...]:
    """Exponents and what is next to them do not repeat; where low bytes shrink, it is because they are often zero."""
    return (match_coder(),) * len(layout.low_words) + (literal_coder(),) * 2


def _sampled(raw: memoryview, coarse: int, fine: int) -> tuple[PlaneLayout, tuple[int, ...]]:
    """A layout, and a method for each plane, chosen from samples of elements all over ``raw``."""
    layout = LAYOUTS[fine]
    elements = elements_of(raw, layout)
    if len(elements) > 2 * _PIECES * _PIECE_ELEMENTS:
        rows = elements[: len(elements) // _PIECES * _PIECES].reshape(_PIECES, -1)
        elements = rows[:, :_PIECE_ELEMENTS].reshape(-1)
    planes = _scratch_planes(layout, len(elements))
    split(elements, layout, planes)
    methods = [_method(plane, coder) for plane, coder in zip(planes, _float_coders(layout), strict=True)]
    if coarse != fine and not any(methods[:-2]):  # low bytes as they are: in fewer, wider planes
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
    """Write head, planes and what is left over to ``out``; returns their length.

    Planes stored as they are come first, so that they can be split off right where they belong.
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
    """Store a plane in fewer bytes, or as they are if it does not shrink; returns how, and in how many bytes."""
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


# --- decoding ---------------------------------------------------------------------------------------------------------


def _read_head(encoded: memoryview, raw_length: int) -> tuple[PlaneLayout, list[tuple[int, memoryview]], memoryview]:
    """Layout, (method, bytes) of each plane, and what is left over; every length is checked."""
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
    for first in (True, False):  # those stored as they are lie before the others
        for i, (method, length) in enumerate(table):
            if (method == RAW_PLANE) == first:
                stored[i] = (method, encoded[at : at + length])
                at += length
    if at + raw_length % layout.item_bytes != len(encoded):
        raise _corrupt(f"{at + raw_length % layout.item_bytes} bytes", f"{len(encoded)} bytes")
    return layout, stored, encoded[at:]


def _load(i: int, method: int, data: memoryview, count: int, word: int) -> Plane:
    """Plane ``i``, of ``count`` words, from its stored bytes; one stored as it is stays where it is."""
    nbytes = count * word
    lengths = {RAW_PLANE: nbytes, STRAY_PLANE: nbytes, FOLDED_PLANE: folded_bytes(nbytes), ZSTD_PLANE: len(data)}
    if lengths.get(method) != len(data):
        raise _corrupt(f"{lengths.get(method)} bytes stored by method {method}", f"{len(data)} bytes")
    if method in (RAW_PLANE, STRAY_PLANE):
        return np.frombuffer(data, word_type(word), count)
    if method == ZSTD_PLANE:
        check_frame(data, nbytes)  # before memory is taken for what it claims
    plane = SCRATCH.take(f"plane {i}", nbytes, np.uint8)
    if method == ZSTD_PLANE:
        read_frame(data, nbytes, plane.data)
    else:
        unfold(np.frombuffer(data, np.uint8), plane)
    return plane.view(word_type(word))


def _corrupt(expected: str, found: str) -> CorruptFileError:
    return CorruptFileError("a chunk of planes is not well-formed", expected=expected, found=found)
