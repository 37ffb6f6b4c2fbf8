"""Paths of leaves in a state: comparing, ordering and showing their keys."""

from __future__ import annotations

import enum
import json
import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from deeppart.state.values import SavedMember, encode_key

#: The path of the state itself, for people.
ROOT = "(root)"
Key = Any
Path = tuple[Key, ...]
#: A hashable that is equal only for identical keys: a text itself; for any other key its type's name and the key.
IdKey = str | tuple[str, Key]
#: A path that distinguishes the keys 1, True and 1.0.
ExactPath = tuple[IdKey, ...]
#: numpy has two types for integers of one width and writes them alike; reading gives the first one.
_STORED_AS: dict[type, type] = {kind: np.dtype(np.dtype(kind).str).type for kind in (np.longlong, np.ulonglong)}
#: Keys that are, or may hold, members of enums.
_NESTED = frozenset({tuple, frozenset, SavedMember})
_NUMBER = re.compile(r"(?<![^/])-?[0-9]+(?![^/])", re.ASCII)
#: Up to this many names that differ only in numbers are listed one by one; more as a pattern.
_ONE_BY_ONE = 3
_MOST_NAMES = 8
#: Kinds of containers that have another name in Python.
KIND_NAMES = {"odict": "OrderedDict", "counter": "Counter"}


def exact(path: Path) -> ExactPath:
    """The path with the type of each key."""
    return tuple(map(id_key, path))


def id_keys(keys: Sequence[Key]) -> Sequence[IdKey]:
    """Applies :func:`id_key` to all keys, with a shortcut for keys that are all texts."""
    return keys if set(map(type, keys)) <= {str} else list(map(id_key, keys))


def id_key(key: Key) -> IdKey:
    """A form of a dict key that distinguishes 1, True and 1.0, and nothing that a file does not distinguish."""
    kind = type(key)
    if kind is str:
        return str(key)
    if kind is not int and (kind in _NESTED or isinstance(key, enum.Enum)):
        return "key", _stored(key)
    return _STORED_AS.get(kind, kind).__name__, key


def _stored(key: Key) -> Key:
    """A key with each enum member replaced by what ``load`` returns for it: its class may have moved since."""
    if isinstance(key, (enum.Enum, SavedMember)):
        of = key.enum if isinstance(key, SavedMember) else type(key).__qualname__
        return "enum", of, key.name is None, key.value if key.name is None else key.name
    if type(key) is frozenset:
        return "frozenset", frozenset(map(_stored, key))
    return ("tuple", *map(id_key, key)) if type(key) is tuple else id_key(key)


def readable(path: Path) -> str:
    """The path as text: components joined by ``/``, with ``~`` and ``/`` inside them escaped as in RFC 6901."""
    text = "/".join(map(component, path)) or ROOT
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def component(key: Key) -> str:
    """A dict key as one component of a path: its text, with ``~`` and ``/`` escaped as in RFC 6901."""
    return _key_text(key).replace("~", "~0").replace("/", "~1")


def _key_text(key: Key) -> str:
    if isinstance(key, enum.Enum):
        return f"{type(key).__name__}.{key.value if key.name is None else key.name}"
    if type(key) is SavedMember:
        return str(key)
    try:
        return str(key) if not _is_unordered(key) else json.dumps(encode_key(key, "a dict key"))
    except ValueError:  # an int of thousands of digits
        return json.dumps(encode_key(key, "a dict key"))


def canonical_order(container: Collection[Key]) -> list[Key]:
    """The keys of a dict in an order that depends only on the keys: by type name, then by value or text."""
    kinds = {type(key) for key in container}
    if kinds == {str} or kinds == {int}:
        return sorted(container)
    return sorted(container, key=lambda key: (type(key).__name__, _sortable(key)))


def _is_unordered(key: Key) -> bool:
    """True if the repr of a key may differ between ranks: sets and enum members."""
    if type(key) is tuple:
        return any(map(_is_unordered, key))
    return type(key) is frozenset or isinstance(key, (enum.Enum, SavedMember))


def _sortable(key: Key) -> str:
    try:
        return repr(key) if not _is_unordered(key) else json.dumps(encode_key(key, "a dict key"))
    except ValueError:  # an int of thousands of digits
        return _key_text(key)


# --- names in warnings ------------------------------------------------------------------------------------------------


class Naming:
    """Remembers the names that warnings have already given to the user."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._counts: Counter[str] = Counter()

    def news(self, names: Sequence[str]) -> list[str]:
        """The names that are new; many that differ only in numbers as one glob pattern."""
        new = [name for name in dict.fromkeys(names) if name not in self._said and pattern_of(name) not in self._said]
        counts = Counter(map(pattern_of, new))
        self._counts.update(counts)
        shown = {}
        for name in new:
            pattern = pattern_of(name)
            folds = pattern != name and self._counts[pattern] > _ONE_BY_ONE
            shown[pattern if folds else name] = f"{pattern} ({counts[pattern]} paths)" if folds else name
        self._said.update(shown)
        return list(shown.values())


def name_kind(kind: str) -> str:
    """A kind of container for messages, with its article."""
    name = KIND_NAMES.get(kind, kind)
    return f"{'an' if name[:1] in ('O', 'o') else 'a'} {name}"


def pattern_of(name: str) -> str:
    """A path with ``*`` in place of each component that is a number."""
    return _NUMBER.sub("*", name)


def some_names(names: Sequence[str], separator: str = ", ", most: int = _MOST_NAMES) -> str:
    """The first few names, and how many there are."""
    more = f"{separator}... ({len(names)} in all)" if len(names) > most else ""
    return separator.join(names[:most]) + more
