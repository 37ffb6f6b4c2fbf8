"""Whether a restore needs bytes that were left out when its step was read (:mod:`deeppart.recovery.narrow_reading`)."""

from __future__ import annotations

from dataclasses import dataclass

from deeppart.recovery.matching import Matched
from deeppart.recovery.tables import Tables


def lacks_bytes(matched: Matched, tables: Tables) -> bool:
    """True if this rank is to fill anything of which not all has been read."""
    wanted = _Wanted.of(matched)
    return any(
        wanted.any_of(index.part, piece.leaf)
        for index in tables.indexes
        for chunk in index.unread()
        for piece in index.pieces[chunk]
    )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The saved leaves from which a rank fills its live state.

    Attributes:
        anywhere: numbers of leaves, in whatever part they are.
        of_parts: pairs of a part and the number of a leaf that its rank alone had.
    """

    anywhere: frozenset[int]
    of_parts: frozenset[tuple[int, int]]

    @classmethod
    def of(cls, matched: Matched) -> _Wanted:
        saved, target = matched.saved, matched.target
        numbers = set(target.numbers())
        boxed = {index for index in numbers if index in target.boxed} | target.sharded.keys() | target.created.keys()
        tensors = saved.tensors()
        sources = [
            source
            for index in boxed
            for source in (tensors[index] if index in tensors else saved.plain_tensor(index)).sources
        ]
        own = saved.own_leaves & numbers - boxed
        mine = {(matched.rank, index) for index in own} if saved.same_world else set()
        return cls(
            frozenset(numbers - boxed - own),
            frozenset(mine | {(source.part, source.leaf) for source in sources}),
        )

    def any_of(self, part: int, leaf: int) -> bool:
        return leaf in self.anywhere or (part, leaf) in self.of_parts
