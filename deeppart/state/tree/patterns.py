"""Globs over readable paths: which leaves ``keys``, ``replicated`` and ``per_rank`` mean.

A glob that matches a container covers everything below it, and one that ends in ``/*`` covers the container before it
too: ``best/*`` holds where a rank has None instead of the dict ``best``. The state itself is no such container.

Components of a path are joined by ``/``; inside a component ``~`` is written ``~0`` and ``/`` is written ``~1`` (RFC
6901). ``*`` matches any text, ``/`` included, ``?`` one character, ``[seq]`` one of several, as in Python's
``fnmatch``; case counts.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from itertools import accumulate

_WILDCARD = re.compile(r"[*?\[]")


def covers(path: str, patterns: Iterable[str], *, container: bool = True) -> bool:
    """True if any of the globs covers what is at a readable path, and everything below that if it is a container.

    False of what only lies below a container that is covered: whoever walks a tree asks at every container.
    """
    return any(
        fnmatch.fnmatchcase(path, pattern)
        or (container and pattern.endswith("/*") and len(pattern) > 2 and fnmatch.fnmatchcase(path, pattern[:-2]))
        for pattern in patterns
    )


def first_hit(name: str, patterns: Iterable[str]) -> str | None:
    """The first glob that covers what is at a readable path, or a container above it; None if none does."""
    places = list(accumulate(name.split("/"), "{}/{}".format))
    return next((pattern for pattern in patterns if any(covers(place, (pattern,)) for place in places)), None)


def may_match_below(path: str, pattern: str) -> bool:
    """True if a glob may match a path that lies below another; never False where it does."""
    literal = _WILDCARD.split(pattern, maxsplit=1)[0]
    return literal.startswith(path) or path.startswith(literal) or path == "(root)"
