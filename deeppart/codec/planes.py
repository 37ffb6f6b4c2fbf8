"""Planes: the bits of many elements regrouped, so that those which are alike lie together.

The two top bytes of a float hold sign, exponent and the first bits of the mantissa. Trained weights and moments have
few different exponents; sign and mantissa are close to random. So the top is split into a plane of exponents and one
of the rest, one byte each, and lower bytes follow as they are. Source of the idea: ZipNN (Hershcovitch et al. 2024,
arXiv:2411.05239); measured in docs/benchmarks.md.

Both directions work in blocks that stay in a core's cache, with numpy's shifts and narrowing casts, which run at
several times the speed of a transposed copy. All of them release the GIL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from deeppart.codec.scratch import SCRATCH

#: Elements worked on at a time: their planes, their source and two blocks of temporary values fit into 2 MiB.
BLOCK_ELEMENTS = 128 << 10
#: A plane whose bytes are all below this can be folded.
FOLDABLE_BELOW = 0x80
#: Lengths that :func:`fold` works on are multiples of this.
_FOLD_BYTES = 64

Plane = npt.NDArray[np.unsignedinteger]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PlaneLayout:
    """The division of elements into planes.

    The planes are, in this order: the bytes below the top two, lowest first; *rest*; *exponent*. Of the 16 top bits,
    exponent has eight, from bit ``rest_bits`` on; rest has the ``rest_bits`` bits below these and, above them, the
    bits above.

    Attributes:
        layout_id: number that names it in an encoded chunk; never reused.
        item_bytes: bytes of an element: 2, 4 or 8.
        rest_bits: 7 for bfloat16 and float32, 4 for float64; 8 makes the two planes the two top bytes.
        low_words: the planes below the top have elements of these many bytes, lowest first.
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

_UNSIGNED: Mapping[int, type[np.unsignedinteger]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def elements_of(raw: memoryview | Bytes, layout: PlaneLayout) -> Plane:
    """The whole elements of ``raw`` as unsigned integers, without a copy."""
    count = len(raw) // layout.item_bytes
    return np.frombuffer(raw, _UNSIGNED[layout.item_bytes], count)


def word_type(nbytes: int) -> type[np.unsignedinteger]:
    """The unsigned integer of that many bytes."""
    return _UNSIGNED[nbytes]


def split(elements: Plane, layout: PlaneLayout, planes: list[Plane]) -> None:
    """Take elements apart."""
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
    """Put elements together again: the reverse of :func:`split`, writing to ``elements``."""
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
    """The low bits of ``values >> shift``."""
    if shift:
        np.right_shift(values, values.dtype.type(shift), out=out, casting="unsafe")
    else:
        np.copyto(out, values, casting="unsafe")
    return out


def _widen(values: Plane, shift: int, out: Plane) -> None:
    """``values << shift``, in the type of ``out``."""
    np.copyto(out, values)
    if shift:
        np.left_shift(out, out.dtype.type(shift), out=out)


# --- folding: eight values of seven bits in seven bytes ---------------------------------------------------------------


def folded_bytes(count: int) -> int:
    """Length of ``count`` bytes after :func:`fold`."""
    return count - count // _FOLD_BYTES * 8


def fold(plane: Bytes, out: Bytes) -> None:
    """Store bytes below 0x80 in 7/8 of their length: the bits of the last eighth become the top bits of the others.

    The sign of second moments, of positive weights and of counters is always 0; this saves it at a tenth of what
    entropy coding the plane costs.
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


_TOP_BITS = np.uint64(0x8080808080808080)
