"""The partner of each node, and the parity groups.

Nodes that share a *domain* (a switch, a rack) may fail together, so partners and the members of a group are taken
from different domains as far as there are enough of them. With one domain, or one per node, this is the plain ring.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of a job.

    Attributes:
        ranks: per node, its ranks, ascending; every node has at least one.
        domains: per node, the name of what it shares with other nodes (a switch); "" where nothing is known.
    """

    ranks: tuple[tuple[int, ...], ...]
    domains: tuple[str, ...]

    @classmethod
    def of(cls, node_of: Sequence[int], domains: Sequence[str] = ()) -> Nodes:
        """From the node number of each rank; nodes are numbered from 0 without gaps."""
        ranks: list[list[int]] = [[] for _ in range(max(node_of, default=-1) + 1)]
        for rank, node in enumerate(node_of):
            ranks[node].append(rank)
        return cls(tuple(map(tuple, ranks)), tuple(domains) or ("",) * len(ranks))

    def __len__(self) -> int:
        return len(self.ranks)

    def by_domain(self) -> list[int]:
        """Node numbers, those of one domain next to each other, otherwise in order."""
        first = {domain: place for place, domain in reversed(list(enumerate(self.domains)))}
        return sorted(range(len(self)), key=lambda node: (first[self.domains[node]], node))

    def largest_domain(self) -> int:
        """Number of nodes in the largest domain; 1 where no domains are known."""
        counts = Counter(self.domains)
        return 1 if len(counts) < 2 else max(counts.values())


def partner_nodes(nodes: Nodes) -> tuple[int, ...]:
    """For each node, the node that keeps a copy of its parts.

    Every node has one partner and is the partner of one node. With nodes ordered by domain, the partner is as many
    places further as the largest domain has nodes: then it is in another domain, unless that domain has more than
    half of all nodes.
    """
    if len(nodes) < 2:
        raise ValueError("a partner needs a second node")
    order = nodes.by_domain()
    shift = nodes.largest_domain()
    partners = [0] * len(order)
    for place, node in enumerate(order):
        partners[node] = order[(place + shift) % len(order)]
    return tuple(partners)


def parity_groups(nodes: Nodes, group_size: int) -> tuple[tuple[int, ...], ...]:
    """Divide the nodes into groups of at least ``group_size``; what is left over is spread over the groups.

    Group sizes differ by at most one. The nodes of one domain are dealt to different groups as far as possible.
    """
    if len(nodes) < group_size:
        raise ValueError(f"{len(nodes)} nodes cannot make a group of {group_size}")
    count = len(nodes) // group_size
    groups: list[list[int]] = [[] for _ in range(count)]
    for place, node in enumerate(nodes.by_domain()):
        groups[place % count].append(node)
    return tuple(tuple(sorted(group)) for group in groups)
