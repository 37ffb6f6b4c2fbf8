"""Slurm's lists of nodes: ``node[001-004,7],login1`` and ``rack[1-2]n[1-3]``."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import product

#: More nodes no list has; a range written by mistake may have more names than there is memory.
MOST_NODES = 1 << 20
_ITEM = re.compile(r"(?:[^,\[\]]|\[[0-9,-]+\])+")
_PIECE = re.compile(r"\[([0-9,-]+)\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
#: What Slurm writes where a job never had nodes.
NONE = "None assigned"


@lru_cache(maxsize=65_536)
def node_names(text: str) -> tuple[str, ...]:
    """The names in a list, in its order; none for a job that never had nodes.

    Example:
        >>> node_names("node[008-010,1],login1")
        ('node008', 'node009', 'node010', 'node1', 'login1')
    """
    if text in ("", NONE, "(null)"):
        return ()
    if _ITEM.sub("", text).strip(",") or not _ITEM.search(text) or ",," in text or text[0] == "," or text[-1] == ",":
        raise ValueError("a list of nodes, such as node[001-004,7]")
    names: list[str] = []
    for item in _ITEM.findall(text):
        parts = _PIECE.split(item)  # text, range, text, range, ..., text
        choices = [[part] if number % 2 == 0 else _numbers(part) for number, part in enumerate(parts)]
        count = 1
        for choice in choices:
            count *= len(choice)
        if len(names) + count > MOST_NODES:
            raise ValueError(f"a list of at most {MOST_NODES} nodes")
        names += ["".join(pieces) for pieces in product(*choices)]
    return tuple(names)


def _numbers(text: str) -> list[str]:
    """``001-003,7`` -> ``001``, ``002``, ``003``, ``7``: as wide as the first of each range is written."""
    found: list[str] = []
    for word in text.split(","):
        match = _RANGE.fullmatch(word)
        if match is None:
            raise ValueError("numbers and ranges in brackets, such as [001-004,7]")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= MOST_NODES:
            raise ValueError(f"ranges upwards, of at most {MOST_NODES} nodes")
        found += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return found
