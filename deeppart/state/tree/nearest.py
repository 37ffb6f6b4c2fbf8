"""Paths and globs that are nearest to one that meets nothing: what was meant, most likely."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from deeppart.state.tree.patterns import covers

#: Of more than so many the nearest would take seconds to find.
_MOST_COMPARED = 5000
_MOST_TOLD = 3
#: Before the ones that cover nothing are left out.
_MOST_TRIED = 12
_SEPARATOR = re.compile(r"([/.])")
_WILDCARD = re.compile(r"[*?\[]")


def nearest_paths(wanted: str, paths: Iterable[str]) -> list[str]:
    """At most three paths spelt like a missing one, most similar first; or those with its last key."""
    known = list(dict.fromkeys(paths))
    near = difflib.get_close_matches(wanted, known, _MOST_TOLD) if len(known) <= _MOST_COMPARED else []
    return near or [path for path in known if path.endswith(f"/{wanted.rpartition('/')[2]}")][:_MOST_TOLD]


def nearest_globs(glob: str, paths: Iterable[str]) -> list[str]:
    """At most three globs that cover something, and are spelt like one that does not, the most alike first.

    What stands before the first wildcard is spelt as paths begin, what stands behind the last one as they end.
    """
    known = list(dict.fromkeys(prefix for path in paths for prefix in _prefixes(path)))
    # What others call a.b.c is a key of that name, and a path a/b/c of ours.
    swapped = [each for each in (glob.replace("/", "."), glob.replace(".", "/")) if each != glob]
    if found := [each for each in swapped if any(covers(path, [each]) for path in known)]:
        return found
    candidates = list(dict.fromkeys(each for path in known for each in _respelt(glob, path)))
    near: list[str] = []
    if len(candidates) <= _MOST_COMPARED:
        for each in difflib.get_close_matches(glob, candidates, _MOST_TRIED):
            if len(near) < _MOST_TOLD and any(covers(path, [each]) for path in known):
                near.append(each)
    return near if near or _WILDCARD.search(glob) else nearest_paths(glob, known)


def _prefixes(path: str) -> Iterator[str]:
    """A path, after those of what contains it."""
    end = path.find("/")
    while end >= 0:
        yield path[:end]
        end = path.find("/", end + 1)
    yield path


def _respelt(glob: str, path: str) -> Iterator[str]:
    """A glob with words of a path in the place of its own, where both have them between the same separators."""
    theirs, mine = _SEPARATOR.split(path), _SEPARATOR.split(glob)
    wild = [place for place, word in enumerate(mine) if _WILDCARD.search(word)]
    first, last = (wild[0], wild[-1] + 1) if wild else (len(mine), len(mine))
    head, middle, tail = mine[:first], "".join(mine[first:last]), mine[last:]
    begins, ends = theirs[: len(head)], theirs[len(theirs) - len(tail) :]
    is_begun, is_ended = begins[1::2] == head[1::2], ends[::2] == tail[::2]  # a tail begins with a separator
    for start in (begins, head) if is_begun else (head,):
        for end in (ends, tail) if is_ended else (tail,):
            if (start, end) != (head, tail):
                yield f"{''.join(start)}{middle}{''.join(end)}"
