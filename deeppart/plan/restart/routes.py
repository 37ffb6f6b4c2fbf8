"""The way of a chunk from the rank that has read it to all others: once to each node, and on to its ranks. Pure.

A tree over the nodes, and one over the ranks of each node; no rank passes a chunk on to more than :data:`FANOUT` nodes
and :data:`FANOUT` ranks of its own node, so the depth grows with the logarithm of their number. Which node stands where
in the tree, and which rank receives for its node, turns from chunk to chunk: all of them carry the same load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deeppart.plan.redundancy import Nodes

#: Up to so many, sending to each directly is faster than passing on (docs/benchmarks.md).
FANOUT = 16


@dataclass(frozen=True, slots=True)
class Hop:
    """One rank's place on the way of one chunk.

    Attributes:
        source: the rank that it comes from; None for the one that has read it.
        targets: ranks that it goes to, those of other nodes first.
    """

    source: int | None
    targets: tuple[int, ...]


class Routes:
    """The ways of all chunks, as one rank sees them."""

    def __init__(self, node_of: Sequence[int], rank: int) -> None:
        self._rank, self._node, self._node_of = rank, node_of[rank], node_of
        self._ranks = Nodes.of(node_of).ranks
        self._place = self._ranks[self._node].index(rank)

    def hop(self, reader: int, number: int, *, seen: bool) -> Hop | None:
        """This rank's place on the way of a chunk."""
        root = self._node_of[reader]
        at_home = root == self._node
        head = reader if at_home else self._head(self._node, number)
        source: int | None = None
        targets: list[int] = []
        if self._rank == head:
            above, below = self._nodes_around(root, number)
            if above is not None:
                source = reader if above == root else self._head(above, number)
            targets += [self._head(node, number) for node in below]
        if not (seen and at_home):
            ranks = self._ranks[self._node]
            first = ranks.index(reader) if at_home else number % len(ranks)
            over, under = _around((self._place - first) % len(ranks), len(ranks))
            if over is not None:
                source = ranks[(over + first) % len(ranks)]
            targets += [ranks[(place + first) % len(ranks)] for place in under]
        return Hop(source, tuple(targets)) if source is not None or targets else None

    def _head(self, node: int, number: int) -> int:
        """The rank that receives a chunk for a node that is not its reader's."""
        ranks = self._ranks[node]
        return ranks[number % len(ranks)]

    def _nodes_around(self, root: int, number: int) -> tuple[int | None, list[int]]:
        """The node that a chunk comes from, and those that it goes to."""
        others = len(self._ranks) - 1
        if not others:
            return None, []

        def node_at(place: int) -> int:
            if place == 0:
                return root
            other = (place - 1 + number) % others
            return other if other < root else other + 1

        mine = self._node if self._node < root else self._node - 1
        place = 0 if self._node == root else 1 + (mine - number) % others
        above, below = _around(place, others + 1)
        return None if above is None else node_at(above), [node_at(each) for each in below]


def _around(place: int, count: int) -> tuple[int | None, range]:
    """The place above one in a tree of ``count`` places, 0 on top, and those below it."""
    above = (place - 1) // FANOUT if place else None
    first = FANOUT * place + 1
    return above, range(min(first, count), min(first + FANOUT, count))
