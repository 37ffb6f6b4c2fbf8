"""Value containers: a list, tuple or large dict of nothing but small values is saved as one value.

Otherwise a million integers would be a million leaves, each with a path, a digest and an entry in every document. A
*nested* value container has many items, some of which are containers of small values themselves, to any depth: a table
of records, say.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from itertools import chain, islice
from typing import Any

from deeppart.state.paths import canonical_order, name_kind
from deeppart.state.values import (
    CONTAINERS,
    MOST_LEVELS,
    MUTABLE,
    SEQUENCES,
    TABLE_MAKERS,
    TABLES,
    Encoded,
    describe_value,
    encode_value,
    is_value_type,
)

#: Least length of a list or tuple that is a value container. Each item of a shorter one (betas, a version) keeps a
#: path of its own.
LEAST_ITEMS = 8
#: Least size of a dict that is a value container: a table of counts or of words rather than a record with names.
LEAST_ENTRIES = 256
#: Least length of a container of containers that is a value container: many rows rather than a configuration, in which
#: a single value may differ between ranks.
LEAST_ROWS = 256
#: What :func:`container_kind` returns.
CONTAINER_KINDS = frozenset(SEQUENCES.values()) | frozenset(TABLES.values())


def container_levels(item: Any) -> int:
    """The number of nested levels of a value container, itself included; 0 if it is no value container."""
    kind = type(item)
    if kind not in CONTAINERS:
        return 0
    if len(item) < (LEAST_ITEMS if kind in SEQUENCES else LEAST_ENTRIES):
        return 0
    if _all_values(_items(item)):
        return 0 if hasattr(item, "_metadata") else 1
    return _plain_levels(item) if len(item) >= LEAST_ROWS else 0


def _plain_levels(item: Any) -> int:
    """The number of nested levels of a container with only small values inside; 0 if it has anything else."""
    level = [next(iter(_items(item)))]  # shortcut: a container of tensors often has one in the first row
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
    """The containers inside containers, each once; None if they have items other than containers and small values."""
    if any(hasattr(each, "_metadata") for each in level if type(each) in TABLES and type(each) is not dict):
        return None
    items = list(chain.from_iterable(map(_items, level)))
    kinds = set(map(type, items))
    if not all(kind in CONTAINERS or _fits_in_a_value(kind) for kind in kinds):
        return None
    if kinds.isdisjoint(CONTAINERS):
        return []
    # By identity: a container that contains itself ends at the last level, and the walk refuses it.
    return list({id(each): each for each in items if type(each) in CONTAINERS}.values())


def _items(container: Any) -> Collection[Any]:
    items: Collection[Any] = container.values() if isinstance(container, dict) else container
    return items


def _all_values(items: Collection[Any]) -> bool:
    return all(map(_fits_in_a_value, set(map(type, items))))


def _fits_in_a_value(kind: type) -> bool:
    """True for immutable values: a restore changes mutable ones in place, so they keep a path of their own."""
    return is_value_type(kind) and kind not in MUTABLE


def container_kind(value: object) -> str | None:
    """Kind of a leaf's value that is a container, such as "list" or "odict"; None if it is no container."""
    return SEQUENCES.get(type(value)) or TABLES.get(type(value))


def container_items(value: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """Keys and items of a value container; the keys of a list or tuple are its indices."""
    if isinstance(value, dict):
        return list(value), list(value.values())
    return range(len(value)), value


def holds_containers(container: Any) -> bool:
    """True if a value container is a nested one."""
    return not CONTAINERS.isdisjoint(map(type, _items(container)))


def make_container(kind: str, keys: Iterable[Any], items: Iterable[Any]) -> Any:
    """A container of a kind from its keys and items."""
    if kind in TABLE_MAKERS:
        return TABLE_MAKERS[kind](zip(keys, items, strict=True))
    return list(items) if kind == "list" else tuple(items)


def describe_leaf_value(value: Any, room: int = 50, most: int = 4, what: str = "") -> str:
    """A leaf's value in at most 80 characters; for a container its first items, none cut unless it is the only one."""
    kind = container_kind(value)
    if kind is None:
        return describe_value(value)
    shown, left = list[str](), room
    for key, item in islice(zip(*container_items(value), strict=True), most):
        text = _short_kind(item) if type(item) in CONTAINERS else describe_value(item)
        text = f"{describe_value(key)}: {text}" if isinstance(value, dict) else text
        if shown and len(text) > left:
            break
        shown.append(text if len(text) <= room else f"{text[: room - 3]}...")
        left -= len(text) + len(", ")
    more = " ..." if len(shown) < len(value) else ""
    return f"{', '.join(shown)}{more} ({len(value)} in {what or name_kind(kind)})"


def _short_kind(container: Any) -> str:
    return f"{name_kind(container_kind(container) or '')} of {len(container)}"


def in_order(value: Any) -> Encoded:
    """The encoding of a value in which dicts are in canonical order; ordered dicts keep theirs."""
    return encode_value(_ordered(value), "")


def _ordered(value: Any) -> Any:
    kind = container_kind(value)
    if kind is None:
        return value
    if isinstance(value, OrderedDict):
        keys: Any = list(value)  # two of them in other orders are not equal
    else:
        keys = canonical_order(value) if isinstance(value, dict) else range(len(value))
    return make_container(kind, keys, [_ordered(value[key]) for key in keys])
