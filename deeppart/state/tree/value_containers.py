"""Value containers: a list, tuple or large dict of small values alone is one value, not one for each item.

A million integers would otherwise be a million leaves, each with a path, a digest and a place in every document. A
*nested* value container is one of many items, some of which are containers themselves, with nothing but small values
in them, to any depth: a table of records, say.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
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

SEQUENCE_MAKERS: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple}
#: Lists and tuples of small values are value containers from this length on. Shorter ones (betas, a version) keep a
#: path per item.
LEAST_ITEMS = 8
#: A dict of small values is a value container from this size on: a table of counts or of words, and no longer a record
#: with names.
LEAST_ENTRIES = 256
#: A container of plain containers is a value container from this length on: many rows, and no longer a configuration,
#: in which a single value may differ between ranks.
LEAST_ROWS = 256
#: What :func:`container_kind` answers.
CONTAINER_KINDS = frozenset(SEQUENCES.values()) | frozenset(TABLES.values())


def container_levels(item: Any) -> int:
    """The number of containers inside each other in a value container, it included; 0 if it is no value container."""
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
    return container_levels(item) > 0


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
    if not all(kind in CONTAINERS or _fits_in_a_value(kind) for kind in kinds):
        return None
    if kinds.isdisjoint(CONTAINERS):
        return []
    # By identity: a container inside itself comes to an end at the last level, and is left to the walk to refuse.
    return list({id(each): each for each in items if type(each) in CONTAINERS}.values())


def _items(container: Any) -> Collection[Any]:
    items: Collection[Any] = container.values() if isinstance(container, dict) else container
    return items


def _all_values(items: Collection[Any]) -> bool:
    return all(map(_fits_in_a_value, set(map(type, items))))


def _fits_in_a_value(kind: type) -> bool:
    """True for values that are replaced as a whole: those that change stay the objects that they are in a restore."""
    return is_value_type(kind) and kind not in MUTABLE


def container_kind(value: object) -> str | None:
    """Kind of the container that a leaf's value is, such as "list" or "odict"; None: no container."""
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
    if kind in SEQUENCE_MAKERS:
        return SEQUENCE_MAKERS[kind](items)
    return TABLE_MAKERS[kind](zip(keys, items, strict=True))


def paths_inside(value: Any) -> Iterator[tuple[Any, ...]]:
    """The paths of all small values and containers in a value container, from it."""
    for key, item in zip(*container_items(value), strict=True):
        yield (key,)
        if type(item) in CONTAINERS:
            yield from ((key, *path) for path in paths_inside(item))


def describe_leaf_value(value: Any, room: int = 50, most: int = 4, what: str = "") -> str:
    """The content of a leaf in at most 80 characters: of a container the first items, none cut unless it is alone."""
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
    """A value's encoding, that of dicts with their entries in canonical order, of ordered dicts in their own."""
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
