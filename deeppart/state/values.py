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
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from typing import Any

import numpy as np
import torch

from deeppart.errors import CorruptFileError, UnsupportedLeafError

#: JSON-like value: None, bool, int, float, str, or a tagged list.
Encoded = Any

_INT64_LIMIT = 1 << 63
_SURROGATES = "surrogatepass"
_PLAIN = frozenset({type(None), bool})
_NUMPY_KINDS = frozenset("biufcSUmM")


def is_value(value: object) -> bool:
    """Whether this is one of the small values that :func:`encode_value` takes (tuples are containers, not values)."""
    return is_value_type(type(value))


def is_value_type(kind: type) -> bool:
    """Whether objects of this type are small values."""
    return kind in _VALUE_TYPES or issubclass(kind, np.generic)


def encode_value(value: Any, where: str) -> Encoded:
    """Encode one small value.

    Args:
        where: the value's path, for the error.

    Raises:
        UnsupportedLeafError: the type has no exact encoding.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is str:
        return (
            value
            if _is_unicode(value)
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
    if isinstance(value, np.generic) and value.dtype.kind in _NUMPY_KINDS:
        return ["numpy", value.dtype.str, value.tobytes().hex()]
    raise UnsupportedLeafError(
        f"the state holds a {kind.__module__}.{kind.__qualname__}, which cannot be stored exactly",
        expected="tensors, numpy arrays and scalars, int, float, complex, bool, str, bytes, None, torch.dtype, "
        "torch.device, torch.Size, in dicts, lists, tuples or objects with state_dict() and load_state_dict()",
        where=f"path {where}",
        todo="convert the value, or give the object state_dict() and load_state_dict()",
    )


def encode_key(key: Any, where: str) -> Encoded:
    """Encode one dict key: any small value or a tuple of them."""
    if type(key) is tuple:
        return ["tuple", [encode_key(item, where) for item in key]]
    return encode_value(key, where)


def decode_value(encoded: Encoded, where: str) -> Any:
    """Inverse of :func:`encode_value` and :func:`encode_key`.

    Raises:
        CorruptFileError: not an encoding that this module makes.
    """
    if not isinstance(encoded, list):
        return encoded
    try:
        tag, *arguments = encoded
        return _DECODERS[tag](*arguments)
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError, struct.error, binascii.Error) as error:
        raise CorruptFileError(
            "a stored value cannot be decoded", found=f"{encoded!r:.200}: {error}", where=where
        ) from error


def same_value(one: Any, other: Any) -> bool:
    """Whether two small values are one and the same, to the last bit: -0.0 is not 0.0, True is not 1."""
    return type(one) is type(other) and json.dumps(encode_value(one, "")) == json.dumps(encode_value(other, ""))


def describe_value(value: Any) -> str:
    """A small value in at most 80 characters, whatever it is."""
    if type(value) is int and value.bit_length() > 256:  # Python refuses to print those of thousands of digits
        return f"an int of {value.bit_length()} bits"
    return f"{value!r:.80}"


def _is_unicode(text: str) -> bool:
    """JSON readers may join two lone surrogates into one character, so a text with any is not left to them."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _decode_numpy(dtype_text: str, data: str) -> Any:
    dtype = np.dtype(dtype_text)
    if dtype.kind not in _NUMPY_KINDS:
        raise ValueError(f"numpy dtype {dtype_text!r}")
    return np.frombuffer(bytes.fromhex(data), dtype=dtype, count=1)[0] if dtype.itemsize else dtype.type()


def _decode_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"not a dtype: {name!r}")
    return dtype


def _decode_complex(data: str) -> complex:
    return complex(*struct.unpack(">dd", bytes.fromhex(data)))


_VALUE_TYPES = _PLAIN | {str, int, float, complex, bytes, torch.dtype, torch.device, torch.Size}
_DECODERS: dict[str, Any] = {
    "int": lambda text: int(text, 16),
    "str": lambda text: base64.b64decode(text, validate=True).decode("utf-8", _SURROGATES),
    "float": lambda data: struct.unpack(">d", bytes.fromhex(data))[0],
    "complex": _decode_complex,
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "tuple": lambda items: tuple(decode_value(item, "a key") for item in items),
    "dtype": _decode_dtype,
    "device": lambda text: torch.device(text),
    "size": lambda items: torch.Size(items),
    "numpy": _decode_numpy,
}
