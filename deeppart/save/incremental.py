"""Incremental: which chunks of a rank's next part refer to what earlier parts hold, level by level.

Every level refers to what lies there itself: what is removed from one level takes nothing from another.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from deeppart.model import Attempt, Level
from deeppart.part import PartSummary
from deeppart.save.transfer import Staged, Unchanged
from deeppart.save.unchanged import Holdings, choose, link_bases, raw_digests
from deeppart.state.capture.layout import ShareLayout


class Incremental:
    """Remembers where the chunks of one rank's last complete parts lie.

    Threads may share one: each level is written by one thread.
    """

    def __init__(
        self, rank: int, *, on: bool, levels: Collection[str] = (Level.LOCAL, Level.PARTNER, Level.PERSISTENT)
    ) -> None:
        self._rank, self._on, self._levels = rank, on, frozenset(levels)
        self._holdings: dict[str, Holdings | None] = dict.fromkeys((Level.LOCAL, Level.PERSISTENT))
        self._copied: frozenset[str] = frozenset()

    def digests(self, staged: Staged, due: Collection[str]) -> list[bytes] | None:
        """Digests of a share's chunks, if a sample of them tells that some have not changed; None if not."""
        known = [each for level, each in self._holdings.items() if each is not None and level in due]
        return raw_digests(staged.data.data, staged.layout.chunks, known)

    def refer(
        self, level: str, due: Collection[str], digests: Sequence[bytes] | None, layout: ShareLayout, directory: Path
    ) -> Unchanged:
        """The chunks of a part that need not be written; the files with these chunks get names in the part's
        directory.

        A local part that is to be copied refers to what was copied, too. One that is to be encoded refers to nothing:
        to compute it from the others of its parity set, the bases of all of these would have to be kept.
        """
        holdings = self._holdings[level]
        if digests is None or holdings is None or (level == Level.LOCAL and Level.PARITY in due):
            return Unchanged(digests)
        allowed = self._copied if level == Level.LOCAL and Level.PARTNER in due else None
        references = choose(digests, layout.chunks, holdings, allowed)
        kept, names = link_bases(references, holdings, directory)
        return Unchanged(digests, kept, names)

    def completed(self, level: str, directory: Path, attempt: Attempt, summary: PartSummary) -> None:
        """A level of a step is complete on all ranks: the next part there may refer to this rank's."""
        if not self._on or level not in self._levels:
            return
        if level == Level.PARTNER:
            self._copied = frozenset({summary.index_digest, *(base.index_digest for base in summary.bases)})
        else:
            self._holdings[level] = Holdings.of(directory, attempt, self._rank, summary)

    def failed(self, level: str) -> None:
        """A level of a step failed: on the partner's node, something may not be where this rank takes it to be."""
        if level == Level.PARTNER:
            self._copied = frozenset()
