"""Items of dicts that are left out of checkpoints: ``Config.exclude``."""

from __future__ import annotations

from collections.abc import Sequence

from deeppart.errors import UnsupportedLeafError
from deeppart.state.tree.paths import Path, readable
from deeppart.state.tree.patterns import covers, may_match_below


class Excluded:
    """Decides what is left out.

    Attributes:
        patterns: the same.
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
        """See that something that cannot be left out alone is not covered."""
        if self.covers(path):
            raise UnsupportedLeafError(
                f"exclude covers {what}, which cannot be left out alone",
                found=", ".join(sorted(pattern for pattern in self.patterns if covers(readable(path), (pattern,)))),
                where=f"path {readable(path)}",
                todo="leave out the container in which it is; or put it into a dict",
            )
