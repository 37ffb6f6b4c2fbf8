"""Runs: a list, tuple or large dict that holds small values and nothing else is one value, not one for each item.

A million integers would otherwise be a million leaves, each with a path, a digest and a place in every document. A
*nested* run is one of many items, some of which are containers themselves, with nothing but small values in them, to
any depth: a table of records, say. A run is encoded as a whole, by columns (:mod:`deeppart.state.tree.columns`):

========================================== ==============================================================
``["run", "list", column]``                a list; also ``"tuple"``
``["run", "dict", column, column]``        a dict: its keys and its values; also ``"odict"``, ``"counter"``,
                                           ``"defaultdict"``
========================================== ==============================================================
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from deeppart.errors import CorruptFileError, UnsupportedLeafError
from deeppart.part.format import short
from deeppart.state.tree.columns import (
    CONTAINERS,
    MOST_LEVELS,
    NEW_TABLE,
    SEQUENCE_MAKERS,
    SEQUENCES,
    TABLE_MAKERS,
    TABLES,
    decode_column,
    encode_column,
    is_extended_column,
    make_table,
)
from deeppart.state.tree.naming import name_kind
from deeppart.state.tree.value_kinds import MUTABLE
from deeppart.state.tree.values import (
    Encoded,
    decode_value,
    describe_value,
    encode_key,
    encode_value,
    is_extended,
    is_value_type,
    same_value,
)

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
_PLAIN = frozenset({str, int, float, bool, type(None)})


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
    if type(encoded) in _PLAIN:
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
