"""Runs: a list, tuple or large dict that holds small values and nothing else is one value, not one for each item.

A million integers would otherwise be a million leaves, each with a path, a digest and a place in every document. A run
is encoded as a whole, in as few bytes as its items allow:

========================================== ==============================================================
``["run", "list", column]``                a list; also ``"tuple"``
``["run", "dict", column, column]``        a dict: its keys and its values; also ``"odict"``, ``"counter"``
========================================== ==============================================================

A column is the items in order, in one of these forms. Base64 of little-endian bytes where a form says ``data``:

========================================== ==============================================================
``["i1" | "i2" | "i4" | "i8", data]``      int, all within that many bytes
``["f8", data]``                           float, by its bits
``["bool", data]``                         bool, a byte each
``["numpy", dtype string, data]``          numpy scalars of one dtype
``["items", [...]]``                       anything else, each encoded as in :mod:`deeppart.state.values`
========================================== ==============================================================
"""

from __future__ import annotations

import base64
import binascii
import json
import sys
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

from deeppart.errors import CorruptFileError, UnsupportedLeafError
from deeppart.part.format import short
from deeppart.state.values import (
    Encoded,
    decode_value,
    describe_value,
    encode_key,
    encode_value,
    is_value,
    is_value_type,
    plain_dtype,
    same_value,
)

#: Lists and tuples of small values are runs from this length on. Shorter ones (betas, a version) keep a path per item.
LEAST_ITEMS = 8
#: A dict of small values is a run from this size on: a table of counts or of words, and no longer a record with names.
LEAST_ENTRIES = 256

_SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple"}
_TABLES: dict[type, str] = {dict: "dict", OrderedDict: "odict", Counter: "counter"}
_MAKERS: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple}
_TABLE_MAKERS: dict[str, Callable[[Any], Any]] = {
    "dict": dict,
    "odict": OrderedDict,
    "counter": lambda items: Counter(dict(items)),
}
#: What :func:`run_kind` answers.
RUN_KINDS = frozenset(_SEQUENCES.values()) | frozenset(_TABLES.values())
_TAG = "run"
_NUMPY_KINDS = frozenset("biufc")
#: numpy's long doubles: their bytes hold some that no bit of the number is in.
_PADDED = "gG"
_PLAIN = frozenset({str, int, float, bool, type(None)})
#: Forms of a column of ints and their type codes in Python's ``array``, narrowest first.
_INT_FORMS = {"i1": "b", "i2": "h", "i4": "i", "i8": "q"}
_NUMBER_FORMS = {**_INT_FORMS, "f8": "d"}


def is_run(item: object) -> bool:
    """Whether a container is saved as one value."""
    kind = type(item)
    if kind is list or kind is tuple:
        assert isinstance(item, (list, tuple))
        return len(item) >= LEAST_ITEMS and _all_values(item)
    if kind in _TABLES:
        assert isinstance(item, dict)
        return len(item) >= LEAST_ENTRIES and not hasattr(item, "_metadata") and _all_values(item.values())
    return False


def is_leaf_value(item: object) -> bool:
    """Whether this is what a value leaf may hold: a small value or a run of them."""
    return is_value(item) or is_run(item)


def run_kind(value: object) -> str | None:
    """Kind of the container that a leaf's value is: "list", "tuple", "dict", "odict", "counter"; None: no container."""
    return _SEQUENCES.get(type(value)) or _TABLES.get(type(value))


def run_items(value: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """Keys and items of a run; the keys of a list or tuple are its indices."""
    if isinstance(value, dict):
        return list(value), list(value.values())
    return range(len(value)), value


def make_run(kind: str, keys: Iterable[Any], items: Iterable[Any]) -> Any:
    """A container of a kind from its keys and items."""
    if kind in _MAKERS:
        return _MAKERS[kind](items)
    return _TABLE_MAKERS[kind](zip(keys, items, strict=True))


def encode_leaf_value(value: Any, where: str) -> Encoded:
    """Encode what a value leaf holds. What is returned does not change when the container does.

    Args:
        where: the leaf's path, for the error.

    Raises:
        UnsupportedLeafError: an item has no exact encoding; the message names its path.
    """
    kind = type(value)
    if kind in _SEQUENCES:
        return [_TAG, _SEQUENCES[kind], _encode_column(value, where, encode_value)]
    if kind in _TABLES:
        keys = _encode_column(list(value), f"{where}, a dict key", encode_key)
        return [_TAG, _TABLES[kind], keys, _encode_column(list(value.values()), where, encode_value)]
    return encode_value(value, where)


def same_leaf_value(one: Any, other: Any) -> bool:
    """Whether two leaves hold the same, to the last bit; dicts in the same order."""
    if run_kind(one) is None:
        return run_kind(other) is None and same_value(one, other)
    if type(one) is not type(other):
        return False
    return json.dumps(encode_leaf_value(one, "")) == json.dumps(encode_leaf_value(other, ""))


def describe_leaf_value(value: Any) -> str:
    """What a leaf holds in at most 80 characters."""
    kind = run_kind(value)
    if kind is None:
        return describe_value(value)
    keys, items = run_items(value)
    texts = [describe_value(item) for item in items[:4]]
    if isinstance(value, dict):
        texts = [f"{describe_value(key)}: {text}" for key, text in zip(keys, texts, strict=False)]
    return f"{', '.join(texts):.50} ... ({len(value)} in a {kind})"


def decode_leaf_value(encoded: Encoded, where: str) -> Any:
    """Inverse of :func:`encode_leaf_value`.

    Raises:
        CorruptFileError: not an encoding that this module makes.
    """
    if type(encoded) in _PLAIN:
        return encoded
    if not isinstance(encoded, list) or encoded[:1] != [_TAG]:
        return decode_value(encoded, where)
    try:
        _, kind, *columns = encoded
        decoded = [_decode_column(column, where) for column in columns]
        if kind in _MAKERS:
            (items,) = decoded
            return _MAKERS[kind](items)
        keys, items = decoded
        made = _TABLE_MAKERS[kind](zip(keys, items, strict=True))
        if len(made) != len(keys):
            raise ValueError("dict keys are repeated")
        return made
    except (KeyError, ValueError, TypeError, binascii.Error) as error:
        found = f"{short(encoded)}: {type(error).__name__}: {error}"[:400]
        raise CorruptFileError("a stored run of values cannot be decoded", found=found, where=where) from error


def _all_values(items: Collection[Any]) -> bool:
    return all(map(is_value_type, set(map(type, items))))


def _encode_column(items: Sequence[Any], where: str, encode: Callable[[Any, str], Encoded]) -> Encoded:
    kinds = set(map(type, items))
    if len(kinds) == 1:
        packed = _pack(items, kinds.pop())
        if packed is not None:
            return packed
    try:
        return ["items", [encode(item, where) for item in items]]
    except UnsupportedLeafError:
        for place, item in enumerate(items):
            encode(item, f"{where}, item {place}")
        raise


def _pack(items: Sequence[Any], kind: type) -> Encoded | None:
    """The items, all of one type, as bytes; None where they are better as a list."""
    if kind is int:
        return _pack_ints(items)
    if kind is float:
        return ["f8", _text(_little(array("d", items)))]
    if kind is bool:
        return ["bool", _text(bytes(items))]
    if kind is str:
        return ["items", list(items)] if _are_unicode(items) else None
    if issubclass(kind, np.generic):
        dtype = np.dtype(kind)
        if dtype.kind in _NUMPY_KINDS and dtype.char not in _PADDED:
            return ["numpy", dtype.str, _text(np.array(items, dtype=dtype).tobytes())]
    return None


def _pack_ints(items: Sequence[int]) -> Encoded | None:
    least, most = min(items), max(items)
    for form, code in _INT_FORMS.items():
        limit = 1 << (8 * array(code).itemsize - 1)
        if -limit <= least and most < limit:
            return [form, _text(_little(array(code, items)))]
    return None


def _little(numbers: array[Any]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _text(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def _are_unicode(texts: Sequence[str]) -> bool:
    """Whether all can be left to JSON as they are (lone surrogates cannot: see ``values.py``)."""
    joined = "\n".join(texts)
    if joined.isascii():
        return True
    try:
        joined.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _decode_column(column: Any, where: str) -> Sequence[Any]:
    if type(column) is not list:
        raise TypeError(f"a column that is {short(column)}")
    form, *arguments = column
    if form == "items":
        (items,) = arguments
        if type(items) is not list:
            raise ValueError("no list of items")
        if _PLAIN.issuperset(map(type, items)):
            return items
        return [decode_value(item, where) for item in items]
    if form == "numpy":
        dtype = plain_dtype(arguments.pop(0))
        if dtype.kind not in _NUMPY_KINDS:
            raise ValueError(f"numpy dtype {dtype.str!r}")
        return list(np.frombuffer(_data(arguments), dtype=dtype))
    if form == "bool":
        found = np.frombuffer(_data(arguments), dtype=np.uint8)
        if found.max(initial=0) > 1:
            raise ValueError("a bool that is neither 0 nor 1")
        flags: list[bool] = found.astype(np.bool_).tolist()
        return flags
    numbers = array(_NUMBER_FORMS[form])
    numbers.frombytes(_data(arguments))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def _data(arguments: list[Any]) -> bytes:
    (text,) = arguments
    return base64.b64decode(text, validate=True)
