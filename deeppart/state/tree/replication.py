"""The modes of ``Config.replicated``: which leaves are replicated, by globs over their paths.

The first pattern that covers a leaf (:mod:`deeppart.state.tree.patterns`) decides; where none does, leaves are compared
("auto").
"""

from __future__ import annotations

from collections.abc import Mapping

from deeppart.state.tree.paths import Path, readable
from deeppart.state.tree.patterns import first_hit, may_match_below

AUTO, ALL, NONE, VERIFY, RANK0 = "auto", "all", "none", "verify", "rank0"
#: As "auto", and dicts may have other keys on other ranks: each has a part of the state.
PARTS = "parts"


class Replication:
    """Decides how leaves are treated.

    Attributes:
        uniform: the mode of all leaves; None if it depends on the path. "auto" stands for "parts", too.
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
        """True if anything is saved by rank 0 for all."""
        return RANK0 in self._rules.values()

    def mode(self, path: Path) -> str:
        """The mode of a leaf; "auto" for "parts"."""
        return self.uniform if self.uniform is not None else _of_leaves(self._declared(path))

    def in_parts(self, path: Path) -> bool:
        """True if an item of a dict may be on some ranks alone, as a part of one state."""
        return self._all_in_parts or (self.uniform is None and self._declared(path) == PARTS)

    def _declared(self, path: Path) -> str:
        hit = first_hit(readable(path), self._rules)
        if hit is None:
            return AUTO
        self.used.add(hit)
        return self._rules[hit]

    def is_rank0(self, path: Path, container: bool) -> bool:
        """True if what is at a path, and everything below it if it is a container, is rank 0's."""
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
        """True if something below a path may be treated differently from the rest there."""
        name = readable(path)
        for pattern in self._rules:
            if first_hit(name, [pattern]):
                return False
            if may_match_below(name, pattern):
                return True
        return False


def _of_leaves(mode: str) -> str:
    return AUTO if mode == PARTS else mode
