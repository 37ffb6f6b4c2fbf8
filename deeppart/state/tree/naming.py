"""Naming leaves in notices: a list that grows is one name, and what was said is not said again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_NUMBER = re.compile(r"(?<![^/])-?[0-9]+(?![^/])", re.ASCII)
#: So many names that differ in numbers only are given one by one; then their pattern is.
_ONE_BY_ONE = 3
_MOST_NAMES = 8
#: Kinds of containers whose name in Python is another one.
KIND_NAMES = {"odict": "OrderedDict", "counter": "Counter"}


class Naming:
    """The names that the user has been told so far."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._counts: Counter[str] = Counter()

    def news(self, names: Sequence[str]) -> list[str]:
        """Those of the names that were not said yet; many that differ in numbers only as one glob pattern."""
        new = [name for name in dict.fromkeys(names) if name not in self._said and pattern_of(name) not in self._said]
        counts = Counter(map(pattern_of, new))
        self._counts.update(counts)
        told = {}
        for name in new:
            pattern = pattern_of(name)
            folds = pattern != name and self._counts[pattern] > _ONE_BY_ONE
            told[pattern if folds else name] = f"{pattern} ({counts[pattern]} paths)" if folds else name
        self._said.update(told)
        return list(told.values())


def name_kind(kind: str) -> str:
    """A kind of container, for people, with its article."""
    name = KIND_NAMES.get(kind, kind)
    return f"{'an' if name[:1] in ('O', 'o') else 'a'} {name}"


def pattern_of(name: str) -> str:
    """A path with ``*`` for each component that is a number."""
    return _NUMBER.sub("*", name)


def some_names(names: Sequence[str], separator: str = ", ", most: int = _MOST_NAMES) -> str:
    """The first of them, and how many there are."""
    more = f"{separator}... ({len(names)} in all)" if len(names) > most else ""
    return separator.join(names[:most]) + more
