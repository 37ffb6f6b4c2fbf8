"""Columns: many small values, or plain containers of them, in a row and in few bytes.

A column is a list of its form and what the form takes. Base64 of little-endian bytes where it says ``data``:

========================================== ==============================================================
``["i1" | "i2" | "i4" | "i8", data]``      int, all within that many bytes
``["f8", data]``                           float, by its bits
``["bool", data]``                         bool, a byte each
``["numpy", dtype string, data]``          numpy scalars of one dtype
``["texts", column, text]``                str: the length of each; all of them joined
``["mixed", data, [column, ...]]``         items of several kinds: a byte each says which column has it, in order
``["rows", kind, column, column]``         lists or tuples: the length of each; the items of all, one after the other
``["rows", kind, column, column, column]`` dicts: the size of each; the keys of all; the items of all
``["records", kind, column, [column, ...]]`` dicts with the same keys in the same order: the keys; a column for each
``["items", [...]]``                       anything else, each encoded as in :mod:`deeppart.state.tree.values`
========================================== ==============================================================

Which form is written depends on nothing but the values, so that equal ones have equal encodings.
"""

from __future__ import annotations

import base64
import binascii
import sys
from array import array
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import accumulate, chain, compress
from typing import Any

import numpy as np

from deeppart.part.format import short
from deeppart.state.tree.values import (
    Encoded,
    decode_value,
    encode_key,
    encode_value,
    is_extended,
    is_unicode,
    is_value_type,
    plain_dtype,
)

#: Containers of a run inside each other, at most, the outermost included.
MOST_LEVELS = 16
#: Shorter columns of texts, or of values of several types, are left to JSON, which people can read.
LEAST_PACKED = 64

SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple"}
TABLES: dict[type, str] = {dict: "dict", OrderedDict: "odict", Counter: "counter", defaultdict: "defaultdict"}
#: What readers before structure version 5 do not know.
NEW_TABLE = TABLES[defaultdict]
CONTAINERS = frozenset(SEQUENCES) | frozenset(TABLES)
SEQUENCE_MAKERS: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple}
TABLE_MAKERS: dict[str, Callable[[Any], Any]] = {
    "dict": dict,
    "odict": OrderedDict,
    "counter": lambda items: Counter(dict(items)),
    "defaultdict": lambda items: defaultdict(None, items),  # what makes the defaults is code
}
#: Columns of one container's items in each other: of several types, then of several sets of keys, then its own.
_COLUMNS_PER_LEVEL = 3
_MOST_COLUMNS = _COLUMNS_PER_LEVEL * MOST_LEVELS
#: Dicts with more sets of keys than this are no records.
_MOST_SHAPES = 16
#: Items of more types than this are left to JSON; a byte has to tell them apart.
_MOST_KINDS = 200
_NUMPY_KINDS = frozenset("biufc")
#: numpy's long doubles: their bytes hold some that no bit of the number is in.
_PADDED = "gG"
_PLAIN = frozenset({str, int, float, bool, type(None)})
#: Forms of a column of ints and their type codes in Python's ``array``, narrowest first.
_INT_FORMS = {"i1": "b", "i2": "h", "i4": "i", "i8": "q"}
_NUMBER_FORMS = {**_INT_FORMS, "f8": "d"}


# --- encoding ---------------------------------------------------------------------------------------------------------


def encode_column(items: Sequence[Any], *, keys: bool = False) -> Encoded:
    """The items as one column."""
    kinds = set(map(type, items))
    if len(kinds) == 1:
        packed = _pack(items, kinds.pop(), keys)
        if packed is not None:
            return packed
    elif not keys and not kinds.isdisjoint(CONTAINERS):
        classes = map(type, items)
        return _mixed(items, [kind if kind in CONTAINERS or len(kinds) <= _MOST_KINDS else None for kind in classes])
    elif len(items) >= LEAST_PACKED and len(kinds) <= _MOST_KINDS:
        return _mixed(items, list(map(type, items)), keys=keys)
    encode = encode_key if keys else encode_value
    return ["items", [encode(item, "") for item in items]]


def is_extended_column(column: Encoded) -> bool:
    """True if readers before structure version 5 do not know something in a column that :func:`encode_column` made."""
    form, *rest = column
    if form == "items":
        return list in map(type, rest[0]) and any(map(is_extended, rest[0]))
    if form == "mixed":
        return any(map(is_extended_column, rest[1]))
    if form == "rows":
        return rest[0] == NEW_TABLE or any(map(is_extended_column, rest[2:]))
    if form == "records":
        return rest[0] == NEW_TABLE or any(map(is_extended_column, (rest[1], *rest[2])))
    return False


def _mixed(items: Sequence[Any], classes: Sequence[Hashable], *, keys: bool = False) -> Encoded:
    """A column for each class of items."""
    numbers = {each: number for number, each in enumerate(dict.fromkeys(classes))}
    which = np.frombuffer(bytes(map(numbers.__getitem__, classes)), dtype=np.uint8)
    chosen = [list(compress(items, (which == number).tobytes())) for number in range(len(numbers))]
    return ["mixed", _text(which.tobytes()), [encode_column(each, keys=keys) for each in chosen]]


def _pack(items: Sequence[Any], kind: type, keys: bool) -> Encoded | None:
    """The items, all of one type, in few bytes; None where they are better as a list."""
    if kind is int:
        return _pack_ints(items)
    if kind is float:
        return ["f8", _text(_little(array("d", items)))]
    if kind is bool:
        return ["bool", _text(bytes(items))]
    if kind is str:
        return _pack_texts(items)
    if kind in CONTAINERS and (not keys or _are_flat_keys(items)):
        return _pack_rows(items) if kind in SEQUENCES else _pack_tables(items, kind)
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


def _pack_texts(items: Sequence[str]) -> Encoded | None:
    if not is_unicode("\n".join(items)):
        return None
    if len(items) < LEAST_PACKED:
        return ["items", list(items)]
    return ["texts", _pack_ints(list(map(len, items))), "".join(items)]


def _pack_rows(items: Sequence[Sequence[Any]]) -> Encoded:
    return ["rows", SEQUENCES[type(items[0])], _lengths(items), encode_column(list(chain.from_iterable(items)))]


def _pack_tables(items: Sequence[dict[Any, Any]], kind: type) -> Encoded:
    """Records where there are many of a few sets of keys, else the keys of each."""
    kinds_of_keys = set(map(type, chain.from_iterable(items)))
    if kinds_of_keys == {str}:  # of other types, equal ones may be different keys: 1, 1.0 and True
        shapes = dict.fromkeys(map(tuple, items))
        if len(shapes) <= _MOST_SHAPES and len(items) >= sum(map(len, shapes)):
            if len(shapes) > 1:
                return _mixed(items, list(map(tuple, items)))
            (names,) = shapes
            columns = [encode_column([item[name] for item in items]) for name in names]
            return ["records", TABLES[kind], encode_column(names, keys=True), columns]
    all_keys = encode_column(list(chain.from_iterable(items)), keys=True)
    values = encode_column(list(chain.from_iterable(item.values() for item in items)))
    return ["rows", TABLES[kind], _lengths(items), all_keys, values]


def _lengths(items: Sequence[Any]) -> Encoded:
    return _pack_ints(list(map(len, items)))


def _are_flat_keys(items: Sequence[Any]) -> bool:
    return len(items) >= LEAST_PACKED and all(map(is_value_type, set(map(type, chain.from_iterable(items)))))


def _little(numbers: array[Any]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _text(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


# --- decoding ---------------------------------------------------------------------------------------------------------


def decode_column(column: Any, where: str, room: int = _MOST_COLUMNS) -> list[Any]:
    """Inverse of :func:`encode_column`. What it makes takes memory in proportion to the column's own."""
    if type(column) is not list:
        raise TypeError(f"a column that is {short(column)}")
    if room < 0:
        raise ValueError(f"more than {_MOST_COLUMNS} columns inside each other")
    form, *arguments = column
    if form in _NUMBER_FORMS:
        numbers = array(_NUMBER_FORMS[form])
        numbers.frombytes(_data(arguments))
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers.tolist()
    return _DECODERS[form](arguments, where, room)


def make_table(kind: str, keys: Sequence[Any], items: Sequence[Any]) -> dict[Any, Any]:
    """A dict of a kind, from a file."""
    made: dict[Any, Any] = TABLE_MAKERS[kind](zip(keys, items, strict=True))
    if len(made) != len(keys):
        raise ValueError("dict keys are repeated")
    return made


def _decode_items(arguments: list[Any], where: str, room: int) -> list[Any]:
    (items,) = arguments
    if type(items) is not list:
        raise ValueError("no list of items")
    if _PLAIN.issuperset(map(type, items)):
        return items
    return [decode_value(item, where) for item in items]


def _decode_numpy(arguments: list[Any], where: str, room: int) -> list[Any]:
    name, *rest = arguments
    dtype = plain_dtype(name)
    if dtype.kind not in _NUMPY_KINDS:
        raise ValueError(f"numpy dtype {dtype.str!r}")
    return list(np.frombuffer(_data(rest), dtype=dtype))


def _decode_bools(arguments: list[Any], where: str, room: int) -> list[Any]:
    found = np.frombuffer(_data(arguments), dtype=np.uint8)
    if found.max(initial=0) > 1:
        raise ValueError("a bool that is neither 0 nor 1")
    flags: list[bool] = found.astype(np.bool_).tolist()
    return flags


def _decode_texts(arguments: list[Any], where: str, room: int) -> list[Any]:
    lengths, joined = arguments
    if type(joined) is not str or not is_unicode(joined):
        raise ValueError("no text")
    return [joined[start:end] for start, end in _pieces(lengths, len(joined), where)]


def _decode_mixed(arguments: list[Any], where: str, room: int) -> list[Any]:
    data, columns = arguments
    which = _data([data])
    if type(columns) is not list:
        raise TypeError("no list of columns")
    decoded = [decode_column(column, where, room - 1) for column in columns]
    counts = np.bincount(np.frombuffer(which, dtype=np.uint8), minlength=len(decoded)).tolist()
    if counts != list(map(len, decoded)):
        raise ValueError("columns of other lengths than those that are told")
    rest = [iter(items).__next__ for items in decoded]
    return [rest[number]() for number in which]


def _decode_rows(arguments: list[Any], where: str, room: int) -> list[Any]:
    kind, lengths, *columns = arguments
    decoded = [decode_column(column, where, room - 1) for column in columns]
    pieces = _pieces(lengths, len(decoded[0]), where)
    if kind in SEQUENCE_MAKERS:
        (items,) = decoded
        if kind == "list":
            return [items[start:end] for start, end in pieces]
        return [tuple(items[start:end]) for start, end in pieces]
    keys, items = decoded
    if kind not in TABLE_MAKERS or len(keys) != len(items):
        raise ValueError("no dicts, or not as many keys as items")
    return [make_table(kind, keys[start:end], items[start:end]) for start, end in pieces]


def _decode_records(arguments: list[Any], where: str, room: int) -> list[Any]:
    kind, names, columns = arguments
    keys = decode_column(names, where, room - 1)
    if type(columns) is not list or len(columns) != len(keys) or len(set(keys)) != len(keys) or not keys:
        raise ValueError("records whose keys are repeated or do not match the columns")
    make = TABLE_MAKERS[kind]
    decoded = [decode_column(column, where, room - 1) for column in columns]
    return [make(zip(keys, row, strict=True)) for row in zip(*decoded, strict=True)]


def _pieces(lengths: Any, total: int, where: str) -> Iterable[tuple[int, int]]:
    """First and end of pieces whose lengths a column tells."""
    if type(lengths) is not list or lengths[:1] == ["f8"] or not lengths or lengths[0] not in _INT_FORMS:
        raise ValueError("lengths that are no whole numbers")
    found = decode_column(lengths, where)
    if min(found, default=0) < 0 or sum(found) != total:
        raise ValueError(f"lengths that are not those of {total} items")
    ends = list(accumulate(found))
    return zip(chain((0,), ends), ends, strict=False)


def _data(arguments: list[Any]) -> bytes:
    (text,) = arguments
    return base64.b64decode(text, validate=True)


_DECODERS: dict[str, Callable[[list[Any], str, int], list[Any]]] = {
    "items": _decode_items,
    "numpy": _decode_numpy,
    "bool": _decode_bools,
    "texts": _decode_texts,
    "mixed": _decode_mixed,
    "rows": _decode_rows,
    "records": _decode_records,
}
