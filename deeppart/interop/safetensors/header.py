"""The header of a safetensors file: names, types and places of tensors, as JSON before the bytes.

    8 bytes: length of the header, little endian | header, JSON, padded with blanks | the bytes of all tensors

Format: https://github.com/huggingface/safetensors ("Format"). Checked here is what the reader of that library checks:
the places lie end to end and fill the file, so no byte belongs to two tensors or to none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from deeppart.errors import CorruptFileError
from deeppart.part.format import short
from deeppart.state.tree.leaves import MOST_DIMENSIONS, TORCH_DTYPES

LENGTH_BYTES = 8
#: As the library has it: a longer header is refused.
MOST_HEADER_BYTES = 100_000_000
METADATA = "__metadata__"
#: Of the metadata: what wrote the file, "pt" as a rule. It is no second name of a tensor "pt".
FORMAT = "format"
#: Names of dtypes in torch -> in a header.
NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "float4_e2m1fn_x2": "F4",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_DTYPES = {name: TORCH_DTYPES[dtype] for dtype, name in NAMES.items() if dtype in TORCH_DTYPES}
_PAIRS = "F4"  # two elements in a byte, which torch counts as one


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor in a file.

    Attributes:
        dtype, shape: as torch has them.
        offset: of its first byte, in the file.
        nbytes: how many.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself.

    Attributes:
        entries: by name.
        metadata: texts by name.
    """

    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]


def check_length(prefix: bytes, file_bytes: int, where: str) -> int:
    """Length of the header, of a file that begins with these bytes."""
    length = int.from_bytes(prefix, "little")
    most = min(MOST_HEADER_BYTES, file_bytes - LENGTH_BYTES)
    if len(prefix) < LENGTH_BYTES or not 2 <= length <= most:
        raise CorruptFileError(
            "this is no safetensors file, or a damaged one",
            expected=f"a header of 2 to {max(2, most)} bytes",
            found=f"{length} bytes, in a file of {file_bytes}",
            where=where,
        )
    return length


def decode_header(data: bytes, payload_bytes: int, where: str) -> Header:
    """A header, checked."""
    try:
        if not data.startswith(b"{"):
            raise ValueError(f"begins with {data[:8]!r}")
        found = json.loads(data.decode("utf-8"), object_pairs_hook=_without_doubles)
        metadata = found.pop(METADATA, None)
        metadata = {} if metadata is None else metadata  # which the library takes for none, too
        if type(metadata) is not dict or not all(type(text) is str for text in metadata.values()):
            raise ValueError("metadata that is no table of texts")
        entries = {name: _entry(name, entry, LENGTH_BYTES + len(data)) for name, entry in found.items()}
        _check_places(entries, LENGTH_BYTES + len(data), payload_bytes)
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError) as error:
        raise CorruptFileError(
            "the header of a safetensors file is damaged",
            found=f"{type(error).__name__}: {short(str(error))}",
            where=where,
            todo="it was not copied or downloaded completely, or something has written over it: fetch it again",
        ) from error
    return Header(entries, metadata)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _entry(name: str, found: Any, payload_offset: int) -> Entry:
    if found.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name}: fields {short(list(found))}")
    shape, places = found["shape"], found["data_offsets"]
    if type(shape) is not list or len(shape) > MOST_DIMENSIONS or any(not _is_count(each) for each in shape):
        raise ValueError(f"{name}: shape {short(str(shape))}")
    if type(places) is not list or len(places) != 2 or any(not _is_count(each) for each in places):
        raise ValueError(f"{name}: places {short(str(places))}")
    if type(found["dtype"]) is not str or found["dtype"] not in _DTYPES:
        raise ValueError(f"{name}: dtype {short(found['dtype'])}, which this torch does not have")
    dtype = _DTYPES[found["dtype"]]
    if found["dtype"] == _PAIRS:
        if not shape or shape[-1] % 2:
            raise ValueError(f"{name}: an odd number of half bytes")
        shape = [*shape[:-1], shape[-1] // 2]
    nbytes = math.prod(shape) * dtype.itemsize
    if places[1] - places[0] != nbytes:
        raise ValueError(f"{name}: {places[1] - places[0]} bytes for {dtype}{shape}")
    return Entry(dtype, tuple(shape), payload_offset + places[0], nbytes)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _check_places(entries: Mapping[str, Entry], offset: int, payload_bytes: int) -> None:
    end = offset + payload_bytes
    for entry in sorted(entries.values(), key=lambda entry: (entry.offset, entry.nbytes)):
        if entry.offset != offset:
            raise ValueError(f"bytes {min(offset, entry.offset)} to {max(offset, entry.offset)} are nobody's, or two's")
        offset += entry.nbytes
    if offset != end:
        raise ValueError(f"the tensors end at byte {offset}, the file at {end}")


def encode_header(
    tensors: Iterable[tuple[str, str, tuple[int, ...], int]], metadata: Mapping[str, str]
) -> tuple[bytes, int]:
    """The first bytes of a file, and the number of those that come after them."""
    document: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    offset = 0
    for name, dtype, shape, nbytes in tensors:
        listed = [*shape[:-1], shape[-1] * 2] if NAMES[dtype] == _PAIRS else list(shape)
        document[name] = {"dtype": NAMES[dtype], "shape": listed, "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    data = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    data += b" " * (-len(data) % LENGTH_BYTES)
    if len(data) > MOST_HEADER_BYTES:
        raise ValueError(f"a header of {len(data)} bytes")
    return len(data).to_bytes(LENGTH_BYTES, "little") + data, offset
