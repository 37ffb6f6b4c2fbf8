"""The senders and receivers of parts: partner copies and parity sets, for parts that lie on nodes.

At a save, the parts on a node are those of its ranks. After a restore on another number of ranks, a node may hold any
parts, and the same functions place their copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deeppart.plan.redundancy.node_groups import Nodes, parity_groups, partner_nodes


@dataclass(frozen=True, slots=True)
class Copy:
    """Part ``part`` goes from the storage of rank ``source``'s node to that of rank ``target``'s."""

    part: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Member:
    """One node's place in a parity set.

    Attributes:
        rank: reads the part, encodes one stripe of each row, and stores a share of the parity.
        part: the part protected; None where the node has no part for this set and only stores parity.
    """

    rank: int
    part: int | None


@dataclass(frozen=True, slots=True)
class ParitySet:
    """Parts of different nodes that are encoded together.

    Attributes:
        members: one per node of the group, at least two.
        tolerate: how many of them may be lost.
    """

    members: tuple[Member, ...]
    tolerate: int

    def place_of(self, rank: int) -> int:
        """The place of a rank among the members."""
        for place, member in enumerate(self.members):
            if member.rank == rank:
                return place
        raise ValueError(f"rank {rank} is not in this set")


def own_parts(nodes: Nodes) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Per node, (part, rank that has it): at a save, every rank has its own."""
    return tuple(tuple((rank, rank) for rank in ranks) for ranks in nodes.ranks)


def partner_copies(nodes: Nodes, parts: Sequence[Sequence[tuple[int, int]]] | None = None) -> tuple[Copy, ...]:
    """A copy of every part on its node's partner, by ascending part; receiving is spread over the partner's ranks."""
    partners = partner_nodes(nodes)
    copies = []
    for node, held in enumerate(own_parts(nodes) if parts is None else parts):
        receivers = nodes.ranks[partners[node]]
        copies += [Copy(part, source, receivers[place % len(receivers)]) for place, (part, source) in enumerate(held)]
    return tuple(sorted(copies, key=lambda copy: copy.part))


def parity_sets(
    nodes: Nodes,
    group_size: int,
    tolerate: int,
    parts: Sequence[Sequence[tuple[int, int]]] | None = None,
) -> tuple[ParitySet, ...]:
    """The parity sets of all groups: set number c of a group takes the c-th part of each of its nodes.

    A node with fewer parts than others takes part in all sets all the same: every node of a group stores an equal
    share of the parity and does an equal share of the work.
    """
    if not 1 <= tolerate < group_size:
        raise ValueError(f"of {group_size} nodes, 1 to {group_size - 1} can be lost, not {tolerate}")
    held = own_parts(nodes) if parts is None else parts
    sets = []
    for group in parity_groups(nodes, group_size):
        for column in range(max(len(held[node]) for node in group)):
            sets.append(ParitySet(tuple(_member(nodes, held[node], node, column) for node in group), tolerate))
    return tuple(sets)


def _member(nodes: Nodes, held: Sequence[tuple[int, int]], node: int, column: int) -> Member:
    if column < len(held):
        part, rank = held[column]
        return Member(rank, part)
    ranks = nodes.ranks[node]
    return Member(ranks[column % len(ranks)], None)
