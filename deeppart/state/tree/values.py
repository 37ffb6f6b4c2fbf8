"""Small values as JSON: everything in a state that is not an array, and the keys of its dicts.

The encoding is exact and executes nothing when read. A JSON scalar stands for itself; what JSON cannot hold is a list
``[tag, ...]``:

=========== ======================================= =========================================
tag         Python                                  arguments
=========== ======================================= =========================================
int         int beyond 64 bits                      hexadecimal text
str         str that is not valid Unicode           its UTF-8, surrogates passed through, base64
float       float that is NaN or infinite           8 bytes, big endian IEEE 754, hexadecimal
complex     complex                                 16 bytes, hexadecimal
bytes       bytes                                   base64
tuple       tuple (keys only)                       the encoded items
dtype       torch.dtype                             name
device      torch.device                            name
size        torch.Size                              the integers
numpy       numpy scalar                            dtype string, bytes in hexadecimal
=========== ======================================= =========================================

Those of the standard library, enums and sets are in :mod:`deeppart.state.tree.value_kinds`.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
import re
import struct
import sys
from typing import Any

import numpy as np
import torch

from deeppart.errors import CorruptFileError, UnsupportedLeafError
from deeppart.part.format import short
from deeppart.state.tree.conversions import conversion
from deeppart.state.tree.value_kinds import DECODERS, encoder_of, is_kind

#: JSON-like value: None, bool, int, float, str, or a tagged list.
Encoded = Any

_INT64_LIMIT = 1 << 63
_SURROGATES = "surrogatepass"
_PLAIN = frozenset({type(None), bool})
_NUMPY_KINDS = frozenset("biufcSUmM")
#: ``dtype.str`` of these kinds: a few digits, and the unit of a time.
_NUMPY_DTYPE = re.compile(r"[<>|][biufcSU][0-9]{1,9}|[<>][mM]8(\[[0-9]{0,9}[A-Za-z]{1,2}\])?", re.ASCII)
#: What decoding raises where a file holds something else; RuntimeError also covers RecursionError.
_UNDECODABLE = (
    *(KeyError, ValueError, TypeError, AttributeError, RuntimeError, ArithmeticError, IndexError),
    *(struct.error, binascii.Error, UnsupportedLeafError),
)
#: By the name that a file holds. An attribute of torch would do as well, but some import what they name.
_DTYPES = {str(item).removeprefix("torch."): item for item in vars(torch).values() if isinstance(item, torch.dtype)}


def is_value(value: object) -> bool:
    """True if this is one of the small values that :func:`encode_value` takes (tuples are containers, not values)."""
    return is_value_type(type(value))


def is_value_type(kind: type) -> bool:
    """True if objects of this type are small values."""
    return kind in _VALUE_TYPES or is_kind(kind) or (issubclass(kind, np.generic) and kind.__module__ == np.__name__)


def encode_value(value: Any, where: str) -> Encoded:
    """Encode one small value."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is str:
        return (
            value
            if is_unicode(value)
            else ["str", base64.b64encode(value.encode("utf-8", _SURROGATES)).decode("ascii")]
        )
    if kind is int:
        return value if -_INT64_LIMIT <= value < _INT64_LIMIT else ["int", format(value, "x")]
    if kind is float:
        return value if math.isfinite(value) else ["float", struct.pack(">d", value).hex()]
    if kind is complex:
        return ["complex", struct.pack(">dd", value.real, value.imag).hex()]
    if kind is bytes:
        return ["bytes", base64.b64encode(value).decode("ascii")]
    if kind is torch.dtype:
        return ["dtype", str(value).removeprefix("torch.")]
    if kind is torch.device:
        return ["device", str(value)]
    if kind is torch.Size:
        return ["size", list(value)]
    if is_value_type(kind) and isinstance(value, np.generic) and value.dtype.kind in _NUMPY_KINDS:
        return ["numpy", value.dtype.str, value.tobytes().hex()]
    encode = encoder_of(kind)
    if encode is not None:
        try:
            return encode(value, lambda item: encode_key(item, where))
        except UnsupportedLeafError as error:
            error.where = error.where or f"path {where}"
            raise
    raise UnsupportedLeafError(
        f"the state holds a {kind.__module__}.{kind.__qualname__}, which cannot be stored exactly",
        expected="tensors, numpy arrays and scalars, numbers, texts, bytes, None, dates, paths, enums, in dicts, "
        "lists, tuples, sets, deques, namespaces, dataclasses, objects with state_dict() and load_state_dict(), or "
        "of a type that deeppart.register() was told of",
        where=f"path {where}",
        todo=conversion(value),
    )


def encode_key(key: Any, where: str) -> Encoded:
    """Encode one dict key, or what is inside a value: any small value or a tuple of them."""
    kind = type(key)
    if kind is tuple:
        return ["tuple", [encode_key(item, where) for item in key]]
    if kind is io.BytesIO:
        raise UnsupportedLeafError(
            "the state holds an io.BytesIO as a key or within a value", where=f"path {where}", todo="use its content"
        )
    return encode_value(key, where)


def is_extended(encoded: Encoded) -> bool:
    """True if an encoded value or key is one that readers before structure version 5 do not know."""
    if type(encoded) is not list:
        return False
    return encoded[0] in DECODERS or (encoded[0] == "tuple" and any(map(is_extended, encoded[1])))


def decode_value(encoded: Encoded, where: str) -> Any:
    """Inverse of :func:`encode_value` and :func:`encode_key`."""
    try:
        return _decode_list(encoded, where) if isinstance(encoded, list) else _plain(encoded)
    except _UNDECODABLE as error:
        found = f"{short(encoded)}: {type(error).__name__}: {error}"[:300]
        raise CorruptFileError("a stored value cannot be decoded", found=found, where=where) from error


def _plain(encoded: Encoded) -> Any:
    """A value that JSON has itself; nothing else stands for itself."""
    kind = type(encoded)
    plain = kind in _PLAIN or (kind is str and is_unicode(encoded)) or (kind is float and math.isfinite(encoded))
    if not plain and not (kind is int and -_INT64_LIMIT <= encoded < _INT64_LIMIT):
        raise ValueError("no value that stands for itself")
    return encoded


def _decode_list(encoded: list[Any], where: str) -> Any:
    tag, *arguments = encoded
    if tag in DECODERS:
        value = DECODERS[tag](arguments, lambda item: decode_value(item, where))
    else:
        value = _DECODERS[tag](*arguments)
    # What is written otherwise than the library writes it was not written by it.
    if tag != "numpy" and (encode_key if tag == "tuple" else encode_value)(value, where) != encoded:
        raise ValueError("not as this library writes it")
    return value


def same_value(one: Any, other: Any) -> bool:
    """True if two small values are one and the same, to the last bit: -0.0 is not 0.0, True is not 1."""
    return type(one) is type(other) and json.dumps(encode_value(one, "")) == json.dumps(encode_value(other, ""))


def describe_value(value: Any) -> str:
    """A small value in at most 80 characters, whatever it is."""
    if type(value) is int and value.bit_length() > 256:  # Python refuses to print those of thousands of digits
        return f"an int of {value.bit_length()} bits"
    if type(value) is io.BytesIO:
        return f"io.BytesIO of {len(value.getbuffer())} bytes, at {value.tell()}"
    return f"{value!r:.80}"


def is_unicode(text: str) -> bool:
    """True unless a text has lone surrogates: readers of JSON may join two of them into one character."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _decode_numpy(dtype_text: str, data: str) -> Any:
    dtype, octets = plain_dtype(dtype_text), bytes.fromhex(data)
    # An empty text of numpy has no bytes by its dtype, and one zero character by its memory.
    if len(octets) != dtype.itemsize and (dtype.itemsize or len(octets) > 4 or any(octets)):
        raise ValueError(f"{len(octets)} bytes of a {dtype}")
    if dtype.kind in "SU":  # an item of an array would lose the zeros that end it
        order = "big" if dtype.byteorder == ">" or (dtype.byteorder == "=" and sys.byteorder == "big") else "little"
        octets = octets[: dtype.itemsize]
        text = octets if dtype.kind == "S" else octets.decode(f"utf-32-{order[0]}e", "surrogatepass")
        return dtype.type(text)
    return np.frombuffer(octets, dtype=dtype, count=1)[0]


def plain_dtype(text: str) -> np.dtype[Any]:
    """The numpy dtype that a file names, of a plain kind.

    numpy would understand far more, Python source of tuples among it: only what is written as ``dtype.str`` gets there.
    """
    if _NUMPY_DTYPE.fullmatch(text) is None:
        raise ValueError(f"numpy dtype {short(text)}")
    dtype = np.dtype(text)
    if dtype.str != text:
        raise ValueError(f"numpy dtype {short(text)}")
    return dtype


def _decode_size(items: list[int]) -> torch.Size:
    if type(items) is not list or not all(type(item) is int and abs(item) < _INT64_LIMIT for item in items):
        raise ValueError("not a list of lengths")
    return torch.Size(items)


def _decode_device(text: str) -> torch.device:
    if type(text) is not str:  # a number would make torch look for accelerators
        raise ValueError("not the name of a device")
    return torch.device(text)


def _decode_complex(data: str) -> complex:
    return complex(*struct.unpack(">dd", bytes.fromhex(data)))


_VALUE_TYPES = _PLAIN | {str, int, float, complex, bytes, torch.dtype, torch.device, torch.Size}
_DECODERS: dict[str, Any] = {
    "int": lambda text: int(text, 16),
    "str": lambda text: base64.b64decode(text, validate=True).decode("utf-8", _SURROGATES),
    "float": lambda data: struct.unpack(">d", bytes.fromhex(data))[0],
    "complex": _decode_complex,
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "tuple": lambda items: tuple([decode_value(item, "a key") for item in items]),
    "dtype": lambda name: _DTYPES[name],
    "device": _decode_device,
    "size": _decode_size,
    "numpy": _decode_numpy,
}
