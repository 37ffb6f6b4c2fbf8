"""Names of nodes in the order of the numbers in them: node2 before node10."""

from __future__ import annotations

import re
from collections.abc import Iterable

_DIGITS = re.compile(r"([0-9]+)")


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """The different names, sorted.

    Example:
        >>> in_order(["node10", "node2", "node2"])
        ('node2', 'node10')
    """
    return tuple(sorted(set(names), key=_key))


def _key(name: str) -> tuple[tuple[int, int, str], ...]:
    pieces = _DIGITS.split(name)
    return tuple((0, int(piece), piece) if place % 2 else (1, 0, piece) for place, piece in enumerate(pieces))
