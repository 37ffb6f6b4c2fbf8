"""The ways in which a restore treats per-rank leaves if the world size has changed: globs over paths -> ways.

A single way is the table ``{"*": way}``. The first glob that matches decides, as with ``replicated``; what none matches
is strict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deeppart.errors import ConfigError, PerRankError
from deeppart.state.tree.naming import Naming, some_names
from deeppart.state.tree.patterns import first_hit

#: ``fn(path, values of the old ranks in rank order, new rank, new world size) -> value for the new rank``
PerRankFunction = Callable[[str, Sequence[Any], int, int], Any]
#: "strict", "drop", "rank0" or a function.
Way = str | PerRankFunction
#: What is taken for ``per_rank``: one way for all leaves, or glob -> way.
PerRank = Way | Mapping[str, Way]

STRICT, DROP, RANK0 = "strict", "drop", "rank0"
_MOST_NAMES = 10


class Ways:
    """Decides how each per-rank leaf is treated."""

    def __init__(self, per_rank: PerRank) -> None:
        self._rules = in_order(per_rank)

    def of(self, name: str) -> Way:
        """The way of what was saved at a readable path."""
        hit = first_hit(name, self._rules)
        return STRICT if hit is None else self._rules[hit]

    def __str__(self) -> str:
        """What ranks must have in common: of functions only where they are."""
        texts = {glob: "function" if callable(way) else way for glob, way in self._rules.items()}
        return texts["*"] if texts.keys() == {"*"} else str(texts)


def in_order(*tables: PerRank) -> dict[str, Way]:
    """One table of several: the first that has a glob decides."""
    found: dict[str, Way] = {}
    for table in tables:
        for glob, way in (table if isinstance(table, Mapping) else {"*": table}).items():
            found.setdefault(glob, way)
    return found


def ways_or_refusal(per_rank: Any) -> tuple[Ways, ConfigError | None]:
    """The ways that a caller asks for; or those of "strict", and why not: other ranks are to hear of it."""
    table = in_order(per_rank)
    if all(isinstance(glob, str) and glob and _is_way(way) for glob, way in table.items()):
        return Ways(table), None
    return Ways(STRICT), ConfigError(
        "impossible value for per_rank",
        expected='"strict", "drop", "rank0", a function (path, old values, new rank, new world size) -> value, or a '
        'table of globs: {"rng/*": "drop", "*": "rank0"}',
        found=repr(per_rank),
    )


def _is_way(way: object) -> bool:
    return callable(way) or (isinstance(way, str) and way in (STRICT, DROP, RANK0))


def strict_error(suggested: Mapping[str, str], saved_by: int, ranks: int, step: int) -> PerRankError:
    """That there are per-rank leaves, and nothing says what is to be done with them."""
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
    for name, way in suggested.items():
        top, inside, _ = name.partition("/")
        glob = re.sub(r"[*?[]", r"[\g<0>]", top) + "/*" * bool(inside)
        found[glob] = DROP if DROP in (found.get(glob), way) else way
    named = list(found.items())
    if len(named) > _MOST_NAMES:
        rest = {way for _, way in named[_MOST_NAMES - 1 :]}
        named[_MOST_NAMES - 1 :] = [("*", DROP if DROP in rest else RANK0)]
    return dict(named)


def dropped_notice(names: Sequence[str], saved_by: int, ranks: int, step: int) -> str:
    """A notice of the leaves that a restore has left alone."""
    return (
        f"restored step {step} of {saved_by} ranks on {ranks} without what each rank had for itself "
        f'(per_rank: "drop"): {_listed(names)}. What the live state had there stays as it was; where it had nothing, '
        "an item of a dict is still missing, and one of a list is None. If you need them, restore on as many ranks as "
        'saved the step, or with "rank0" or a function'
    )


def _listed(names: Sequence[str]) -> str:
    return some_names(Naming().news(names), most=_MOST_NAMES)
