"""Globs over readable paths, and the settings made of them: ``exclude``, ``replicated`` and ``per_rank``.

A glob that matches a container covers everything below it, and one that ends in ``/*`` also covers the container
before it: ``best/*`` also covers ``best`` on a rank that has None there. It does not cover the whole state.

Components of a path are joined by ``/``; inside a component ``~`` is written ``~0`` and ``/`` is written ``~1`` (RFC
6901). ``*`` matches any text, ``/`` included, ``?`` one character, ``[seq]`` one of several, as in Python's
``fnmatch``; case counts. Of several globs in a table, the first that covers a leaf decides.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from deeppart.errors import ConfigError, PerRankError, UnsupportedLeafError
from deeppart.state.paths.keys import Naming, Path, readable, some_names

_WILDCARD = re.compile(r"[*?\[]")
#: With more paths than this, no similar ones are searched: it would take seconds.
_MOST_COMPARED = 5000
_MOST_TOLD = 3
#: Respelt globs that are tried, at most.
_MOST_TRIED = 12
_SEPARATOR = re.compile(r"([/.])")
AUTO, ALL, NONE, VERIFY, ROTATE, RANK0 = "auto", "all", "none", "verify", "rotate", "rank0"
#: Like "auto", but dicts may have different keys on different ranks: each has a part of the state.
PARTS = "parts"
#: ``fn(path, values of the old ranks in rank order, new rank, new world size) -> value for the new rank``
PerRankFunction = Callable[[str, Sequence[Any], int, int], Any]
#: "strict", "drop", "rank0" or a function.
PerRankPolicy = str | PerRankFunction
#: The ``per_rank`` setting: one policy for all leaves, or glob -> policy.
PerRank = PerRankPolicy | Mapping[str, PerRankPolicy]
STRICT, DROP = "strict", "drop"
_MOST_NAMES = 10


def covers(path: str, patterns: Iterable[str], *, container: bool = True) -> bool:
    """True if any of the globs covers the item at a readable path, and everything below it if it is a container.

    False if only a container above the item is covered: a walk over a tree checks each container itself.
    """
    return any(
        fnmatch.fnmatchcase(path, pattern)
        or (container and pattern.endswith("/*") and len(pattern) > 2 and fnmatch.fnmatchcase(path, pattern[:-2]))
        for pattern in patterns
    )


def first_hit(name: str, patterns: Iterable[str]) -> str | None:
    """The first glob that covers the item at a readable path or a container above it; None if none does."""
    places = list(accumulate(name.split("/"), "{}/{}".format))
    return next((pattern for pattern in patterns if any(covers(place, (pattern,)) for place in places)), None)


def may_match_below(path: str, pattern: str) -> bool:
    """True if a glob may match a path below another path; no false negatives."""
    literal = _WILDCARD.split(pattern, maxsplit=1)[0]
    return literal.startswith(path) or path.startswith(literal) or path == "(root)"


# --- similar globs and paths, for error messages ----------------------------------------------------------------------


def nearest_paths(wanted: str, paths: Iterable[str]) -> list[str]:
    """At most three paths spelt like a missing one, most similar first; or those with the same last key."""
    known = list(dict.fromkeys(paths))
    near = difflib.get_close_matches(wanted, known, _MOST_TOLD) if len(known) <= _MOST_COMPARED else []
    return near or [path for path in known if path.endswith(f"/{wanted.rpartition('/')[2]}")][:_MOST_TOLD]


def nearest_globs(glob: str, paths: Iterable[str]) -> list[str]:
    """At most three globs that cover something and are spelt like one that covers nothing, most similar first.

    The text before the first wildcard is compared with the begins of paths, the text after the last one with the ends.
    """
    known = list(dict.fromkeys(prefix for path in paths for prefix in _prefixes(path)))
    # In other libraries a.b.c is one key; here it is a path a/b/c.
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
    """The paths of the containers of an item, then its own."""
    end = path.find("/")
    while end >= 0:
        yield path[:end]
        end = path.find("/", end + 1)
    yield path


def _respelt(glob: str, path: str) -> Iterator[str]:
    """The glob with its words replaced by those of a path, if both have the same separators."""
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


# --- exclude ----------------------------------------------------------------------------------------------------------


class Excluded:
    """The ``exclude`` setting: which items are left out.

    Attributes:
        patterns: the globs.
        used: those that have matched something.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        self.used: set[str] = set()

    def covers(self, path: Path) -> bool:
        """True if the item of a dict at a path is left out."""
        text = readable(path)
        hits = [pattern for pattern in self.patterns if covers(text, (pattern,))]
        self.used.update(hits)
        return bool(hits)

    def splits(self, path: Path) -> bool:
        """True if something below a path may be left out."""
        return any(may_match_below(readable(path), pattern) for pattern in self.patterns)

    def refuse(self, path: Path, what: str) -> None:
        """Raise if an item that cannot be left out on its own is covered."""
        if self.covers(path):
            raise UnsupportedLeafError(
                f"exclude covers {what}, which cannot be left out alone",
                found=", ".join(sorted(pattern for pattern in self.patterns if covers(readable(path), (pattern,)))),
                where=f"path {readable(path)}",
                todo="leave out the container in which it is; or put it into a dict",
            )


# --- replicated -------------------------------------------------------------------------------------------------------


class Replication:
    """The ``replicated`` setting: how leaves are treated.

    Attributes:
        uniform: the mode of all leaves; None if it depends on the path. "auto" also means "parts".
        used: patterns that have matched something.
    """

    def __init__(self, setting: str | Mapping[str, str]) -> None:
        self.uniform = _of_leaves(setting) if isinstance(setting, str) else None
        self._all_in_parts = setting == PARTS
        self._rules = {} if isinstance(setting, str) else dict(setting)
        self.used: set[str] = set()

    @property
    def patterns(self) -> tuple[str, ...]:
        """The globs, in order."""
        return tuple(self._rules)

    @property
    def has_rank0(self) -> bool:
        """True if rank 0 saves anything for all ranks."""
        return RANK0 in self._rules.values()

    def mode(self, path: Path) -> str:
        """The mode of a leaf; "auto" for "parts"."""
        return self.uniform if self.uniform is not None else _of_leaves(self._declared(path))

    def in_parts(self, path: Path) -> bool:
        """True if an item of a dict may exist on some ranks only, as a part of one state."""
        return self._all_in_parts or (self.uniform is None and self._declared(path) == PARTS)

    def _declared(self, path: Path) -> str:
        hit = first_hit(readable(path), self._rules)
        if hit is None:
            return AUTO
        self.used.add(hit)
        return self._rules[hit]

    def is_rank0(self, path: Path, container: bool) -> bool:
        """True if rank 0 saves the item at a path, and everything below it if it is a container."""
        if self.mode(path) != RANK0:
            return False
        name = readable(path)
        for pattern, mode in self._rules.items() if container else ():
            if first_hit(name, [pattern]):
                break
            if mode != RANK0 and may_match_below(name, pattern):
                return False
        return True

    def splits(self, path: Path) -> bool:
        """True if items below a path may be treated differently from each other."""
        name = readable(path)
        for pattern in self._rules:
            if first_hit(name, [pattern]):
                return False
            if may_match_below(name, pattern):
                return True
        return False


def _of_leaves(mode: str) -> str:
    return AUTO if mode == PARTS else mode


# --- per_rank ---------------------------------------------------------------------------------------------------------


class PerRankPolicies:
    """The ``per_rank`` setting: how each per-rank leaf is restored."""

    def __init__(self, per_rank: PerRank) -> None:
        self._rules = in_order(per_rank)

    def of(self, name: str) -> PerRankPolicy:
        """The policy for the leaf saved at a readable path."""
        hit = first_hit(name, self._rules)
        return STRICT if hit is None else self._rules[hit]

    def __str__(self) -> str:
        """The setting as ranks compare it; for a function only that there is one."""
        texts = {glob: "function" if callable(policy) else policy for glob, policy in self._rules.items()}
        return texts["*"] if texts.keys() == {"*"} else str(texts)


def in_order(*tables: PerRank) -> dict[str, PerRankPolicy]:
    """One table from several: the first table with a glob decides."""
    found: dict[str, PerRankPolicy] = {}
    for table in tables:
        for glob, policy in (table if isinstance(table, Mapping) else {"*": table}).items():
            found.setdefault(glob, policy)
    return found


def policies_or_refusal(per_rank: Any) -> tuple[PerRankPolicies, ConfigError | None]:
    """The caller's policies; or "strict" and the error, which other ranks have to receive too."""
    table = in_order(per_rank)
    if all(isinstance(glob, str) and glob and _is_policy(policy) for glob, policy in table.items()):
        return PerRankPolicies(table), None
    return PerRankPolicies(STRICT), ConfigError(
        "impossible value for per_rank",
        expected='"strict", "drop", "rank0", a function (path, old values, new rank, new world size) -> value, or a '
        'table of globs: {"rng/*": "drop", "*": "rank0"}',
        found=repr(per_rank),
    )


def _is_policy(policy: object) -> bool:
    return callable(policy) or (isinstance(policy, str) and policy in (STRICT, DROP, RANK0))


def strict_error(suggested: Mapping[str, str], saved_by: int, ranks: int, step: int) -> PerRankError:
    """The error for per-rank leaves without a policy."""
    return PerRankError(
        f"the checkpoint holds leaves of each of its {saved_by} ranks, "
        f"but {ranks} {'ranks restore' if ranks != 1 else 'rank restores'} it",
        found="per rank: " + _listed(list(suggested)),
        where=f"step {step}",
        todo=f"say what becomes of them, such as per_rank={_table(suggested)}: 'rank0' gives all what rank 0 had, "
        "which is right for metrics and running statistics, and wrong for random generators and positions in the data; "
        "'drop' keeps the live ones; a function (path, old values, new rank, new world size) -> value maps them. "
        "What per_rank says already stays there. Or "
        "restart on as many ranks as saved it",
    )


def _table(suggested: Mapping[str, str]) -> dict[str, str]:
    """A table that covers all of the paths, by their outermost keys."""
    found: dict[str, str] = {}
    for name, policy in suggested.items():
        top, inside, _ = name.partition("/")
        glob = re.sub(r"[*?[]", r"[\g<0>]", top) + "/*" * bool(inside)
        found[glob] = DROP if DROP in (found.get(glob), policy) else policy
    named = list(found.items())
    if len(named) > _MOST_NAMES:
        rest = {policy for _, policy in named[_MOST_NAMES - 1 :]}
        named[_MOST_NAMES - 1 :] = [("*", DROP if DROP in rest else RANK0)]
    return dict(named)


def dropped_notice(names: Sequence[str], saved_by: int, ranks: int, step: int) -> str:
    """A warning that names the leaves that a restore has left unchanged."""
    return (
        f"restored step {step} of {saved_by} ranks on {ranks} without what each rank had for itself "
        f'(per_rank: "drop"): {_listed(names)}. What the live state had there stays as it was; where it had nothing, '
        "an item of a dict is still missing, and one of a list is None. If you need them, restore on as many ranks as "
        'saved the step, or with "rank0" or a function'
    )


def _listed(names: Sequence[str]) -> str:
    return some_names(Naming().news(names), most=_MOST_NAMES)
