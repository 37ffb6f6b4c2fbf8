"""Runs: a list, tuple or large dict that holds small values and nothing else is one value, not one for each item.

A million integers would otherwise be a million leaves, each with a path, a digest and a place in every document. A
*nested* run is one of many items, some of which are containers themselves, with nothing but small values in them, to
any depth: a table of records, say. A run is encoded as a whole, by *columns*, in few bytes (docs/format.md lists their
forms). Which form is written depends on nothing but the values, so that equal ones have equal encodings.
"""

from __future__ import annotations

import base64
import binascii
import json
import sys
from array import array
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, compress, islice
from typing import Any

import numpy as np

from deeppart.errors import CorruptFileError, UnsupportedLeafError
from deeppart.part import short
from deeppart.state.tree.paths import canonical_order, name_kind
from deeppart.state.tree.values import (
    JSON_SCALARS,
    MUTABLE,
    Encoded,
    decode_value,
    describe_value,
    encode_key,
    encode_value,
    is_extended,
    is_unicode,
    is_value_type,
    plain_dtype,
    same_value,
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
#: Lists and tuples of small values are runs from this length on. Shorter ones (betas, a version) keep a path per item.
LEAST_ITEMS = 8
#: A dict of small values is a run from this size on: a table of counts or of words, and no longer a record with names.
LEAST_ENTRIES = 256
#: A container of plain containers is a run from this length on: many rows, and no longer a configuration, in which a
#: single value may differ between ranks.
LEAST_ROWS = 256
#: What :func:`run_kind` answers.
RUN_KINDS = frozenset(SEQUENCES.values()) | frozenset(TABLES.values())
_TAG = "run"
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
#: Forms of a column of ints and their type codes in Python's ``array``, narrowest first.
_INT_FORMS = {"i1": "b", "i2": "h", "i4": "i", "i8": "q"}
_NUMBER_FORMS = {**_INT_FORMS, "f8": "d"}


def run_levels(item: Any) -> int:
    """The number of containers inside each other in a run, it included; 0 if it is no run."""
    kind = type(item)
    if kind not in CONTAINERS:
        return 0
    if len(item) < (LEAST_ITEMS if kind in SEQUENCES else LEAST_ENTRIES):
        return 0
    if _all_values(_items(item)):
        return 0 if hasattr(item, "_metadata") else 1
    return _plain_levels(item) if len(item) >= LEAST_ROWS else 0


def is_run(item: object) -> bool:
    """True if a container is saved as one value."""
    return run_levels(item) > 0


def _plain_levels(item: Any) -> int:
    """The number of containers inside each other in one that has only small values in the end; 0 otherwise."""
    level = [next(iter(_items(item)))]  # what holds tensors often shows it in the first row
    if type(level[0]) in CONTAINERS and _inner(level) is None:
        return 0
    level = [item]
    for levels in range(MOST_LEVELS):
        if not level:
            return levels
        found = _inner(level)
        if found is None:
            return 0
        level = found
    return 0 if level else MOST_LEVELS


def _inner(level: list[Any]) -> list[Any] | None:
    """The containers in containers, each once; None if something else that is no small value is in them, too."""
    if any(hasattr(each, "_metadata") for each in level if type(each) in TABLES and type(each) is not dict):
        return None
    items = list(chain.from_iterable(map(_items, level)))
    kinds = set(map(type, items))
    if not all(kind in CONTAINERS or _fits_in_run(kind) for kind in kinds):
        return None
    if kinds.isdisjoint(CONTAINERS):
        return []
    # By identity: a container inside itself comes to an end at the last level, and is left to the walk to refuse.
    return list({id(each): each for each in items if type(each) in CONTAINERS}.values())


def _items(container: Any) -> Collection[Any]:
    items: Collection[Any] = container.values() if isinstance(container, dict) else container
    return items


def _all_values(items: Collection[Any]) -> bool:
    return all(map(_fits_in_run, set(map(type, items))))


def _fits_in_run(kind: type) -> bool:
    """True for values that are replaced as a whole: those that change stay the objects that they are in a restore."""
    return is_value_type(kind) and kind not in MUTABLE


def run_kind(value: object) -> str | None:
    """Kind of the container that a leaf's value is, such as "list" or "odict"; None: no container."""
    return SEQUENCES.get(type(value)) or TABLES.get(type(value))


def run_items(value: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """Keys and items of a run; the keys of a list or tuple are its indices."""
    if isinstance(value, dict):
        return list(value), list(value.values())
    return range(len(value)), value


def holds_containers(container: Any) -> bool:
    """True if a run is a nested one."""
    return not CONTAINERS.isdisjoint(map(type, _items(container)))


def make_run(kind: str, keys: Iterable[Any], items: Iterable[Any]) -> Any:
    """A container of a kind from its keys and items."""
    if kind in SEQUENCE_MAKERS:
        return SEQUENCE_MAKERS[kind](items)
    return TABLE_MAKERS[kind](zip(keys, items, strict=True))


def paths_inside(value: Any) -> Iterator[tuple[Any, ...]]:
    """The paths of all small values and containers in a run, from it."""
    for key, item in zip(*run_items(value), strict=True):
        yield (key,)
        if type(item) in CONTAINERS:
            yield from ((key, *path) for path in paths_inside(item))


def encode_leaf_value(value: Any, where: str) -> Encoded:
    """Encode what a value leaf holds. What is returned does not change when the container does."""
    kind = type(value)
    if kind not in CONTAINERS:
        return encode_value(value, where)
    try:
        if kind in SEQUENCES:
            return [_TAG, SEQUENCES[kind], encode_column(value)]
        return [_TAG, TABLES[kind], encode_column(list(value), keys=True), encode_column(list(value.values()))]
    except UnsupportedLeafError:
        _raise_unsupported(value, where)
        raise


def is_extended_value(encoded: Encoded) -> bool:
    """True if readers before structure version 5 do not know something in what a leaf holds."""
    if type(encoded) is list and encoded[0] == _TAG:
        return encoded[1] == NEW_TABLE or any(map(is_extended_column, encoded[2:]))
    return is_extended(encoded)


def _raise_unsupported(value: Any, where: str) -> None:
    """The error that names the place of the item that cannot be stored."""
    for place, (key, item) in enumerate(zip(*run_items(value), strict=True)):
        if isinstance(value, dict):
            encode_key(key, f"{where}, a dict key, item {place}")
        if type(item) in CONTAINERS:
            _raise_unsupported(item, f"{where}, item {place}")
        else:
            encode_value(item, f"{where}, item {place}")


def same_leaf_value(one: Any, other: Any) -> bool:
    """True if two leaves hold the same, to the last bit; dicts in the same order."""
    if run_kind(one) is None:
        return run_kind(other) is None and same_value(one, other)
    if type(one) is not type(other):
        return False
    return json.dumps(encode_leaf_value(one, "")) == json.dumps(encode_leaf_value(other, ""))


def describe_leaf_value(value: Any, room: int = 50, most: int = 4, what: str = "") -> str:
    """The content of a leaf in at most 80 characters: of a run the first items, none of them cut unless it is alone."""
    kind = run_kind(value)
    if kind is None:
        return describe_value(value)
    shown, left = list[str](), room
    for key, item in islice(zip(*run_items(value), strict=True), most):
        text = _short_kind(item) if type(item) in CONTAINERS else describe_value(item)
        text = f"{describe_value(key)}: {text}" if isinstance(value, dict) else text
        if shown and len(text) > left:
            break
        shown.append(text if len(text) <= room else f"{text[: room - 3]}...")
        left -= len(text) + len(", ")
    more = " ..." if len(shown) < len(value) else ""
    return f"{', '.join(shown)}{more} ({len(value)} in {what or name_kind(kind)})"


def _short_kind(container: Any) -> str:
    return f"{name_kind(run_kind(container) or '')} of {len(container)}"


def decode_leaf_value(encoded: Encoded, where: str) -> Any:
    """Inverse of :func:`encode_leaf_value`."""
    if type(encoded) in JSON_SCALARS:
        return encoded
    if not isinstance(encoded, list) or encoded[:1] != [_TAG]:
        return decode_value(encoded, where)
    try:
        _, kind, *columns = encoded
        decoded = [decode_column(column, where) for column in columns]
        if kind in SEQUENCE_MAKERS:
            (items,) = decoded
            return SEQUENCE_MAKERS[kind](items)
        keys, items = decoded
        return make_table(kind, keys, items)
    except (KeyError, IndexError, ValueError, TypeError, RecursionError, binascii.Error) as error:
        found = f"{short(encoded)}: {type(error).__name__}: {error}"[:400]
        raise CorruptFileError("a stored run of values cannot be decoded", found=found, where=where) from error


def in_order(value: Any) -> Encoded:
    """A value's encoding, that of dicts with their entries in canonical order, of ordered dicts in their own."""
    return encode_leaf_value(_ordered(value), "")


def _ordered(value: Any) -> Any:
    kind = run_kind(value)
    if kind is None:
        return value
    if isinstance(value, OrderedDict):
        keys: Any = list(value)  # two of them in other orders are not equal
    else:
        keys = canonical_order(value) if isinstance(value, dict) else range(len(value))
    return make_run(kind, keys, [_ordered(value[key]) for key in keys])


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
    if JSON_SCALARS.issuperset(map(type, items)):
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
