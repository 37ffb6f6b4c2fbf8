"""The modes of ``Config.replicated``: which leaves are replicated, by globs over their paths.

The first pattern that covers a leaf (:mod:`deeppart.state.tree.patterns`) decides; where none does, leaves are compared
("auto").
"""

from __future__ import annotations

from collections.abc import Mapping

from deeppart.state.tree.paths import Path, component, readable
from deeppart.state.tree.patterns import covers, may_match_below

AUTO, ALL, NONE, VERIFY, RANK0 = "auto", "all", "none", "verify", "rank0"
#: As "auto", and dicts may have other keys on other ranks: each has a part of the state.
PARTS = "parts"


class Replication:
    """Decides how leaves are treated.

    Args:
        setting: ``Config.replicated``: a mode for all leaves, or glob -> mode.

    Attributes:
        uniform: the mode of all leaves; None if it depends on the path. "auto" stands for "parts", too.
        used: patterns that have matched something.
    """

    def __init__(self, setting: str | Mapping[str, str]) -> None:
        self.uniform = _of_leaves(setting) if isinstance(setting, str) else None
        self._all_in_parts = setting == PARTS
        self._rules = () if isinstance(setting, str) else tuple(setting.items())
        self.used: set[str] = set()

    @property
    def patterns(self) -> tuple[str, ...]:
        """The globs, in order."""
        return tuple(pattern for pattern, _ in self._rules)

    @property
    def has_rank0(self) -> bool:
        """True if anything is saved by rank 0 for all."""
        return any(mode == RANK0 for _, mode in self._rules)

    def mode(self, path: Path) -> str:
        """The mode of a leaf; "auto" for "parts"."""
        return self.uniform if self.uniform is not None else _of_leaves(self._declared(path))

    def in_parts(self, path: Path) -> bool:
        """True if an item of a dict may be on some ranks alone, as a part of one state."""
        return self._all_in_parts or (self.uniform is None and self._declared(path) == PARTS)

    def _declared(self, path: Path) -> str:
        places = _places(path)
        for pattern, mode in self._rules:
            if _hits(pattern, places):
                self.used.add(pattern)
                return mode
        return AUTO

    def is_rank0(self, path: Path, container: bool) -> bool:
        """True if what is at a path, and everything below it if it is a container, is rank 0's."""
        if self.mode(path) != RANK0:
            return False
        places = _places(path)
        for pattern, mode in self._rules if container else ():
            if _hits(pattern, places):
                break
            if mode != RANK0 and may_match_below(places[-1], pattern):
                return False
        return True

    def splits(self, path: Path) -> bool:
        """True if something below a path may be treated differently from the rest there."""
        places = _places(path)
        for pattern, _ in self._rules:
            if _hits(pattern, places):
                return False
            if may_match_below(places[-1], pattern):
                return True
        return False


def _of_leaves(mode: str) -> str:
    return AUTO if mode == PARTS else mode


def _places(path: Path) -> list[str]:
    """A path and every container above it, the state itself left out."""
    if not path:
        return [readable(path)]
    texts = [component(key) for key in path]
    return ["/".join(texts[: length + 1]) for length in range(len(texts))]


def _hits(pattern: str, places: list[str]) -> bool:
    return any(covers(place, (pattern,)) for place in places)
