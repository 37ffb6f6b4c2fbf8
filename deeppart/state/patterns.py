"""Globs over readable paths: which leaves ``keys`` of a load and ``replicated`` of a configuration mean.

Components of a path are joined by ``/``; inside a component ``~`` is written ``~0`` and ``/`` is written ``~1`` (RFC
6901). ``*`` matches any text, ``/`` included, ``?`` one character, ``[seq]`` one of several, as in Python's
``fnmatch``; case counts.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

_WILDCARD = re.compile(r"[*?\[]")


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether any of the globs matches a readable path."""
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def may_match_below(path: str, pattern: str) -> bool:
    """Whether a glob may match a path that lies below another; never False where it does."""
    literal = _WILDCARD.split(pattern, maxsplit=1)[0]
    return literal.startswith(path) or path.startswith(literal) or path == "(root)"
