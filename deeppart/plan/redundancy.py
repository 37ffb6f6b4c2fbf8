"""Which nodes store copies and parity for each other, and the layout of parity.

Nodes that share a *domain* (a switch, a rack) may fail together, so partners and the members of a parity group are
in different domains if there are enough of them. With one domain, or one per node, this is the plain ring. At a save,
the parts on a node are those of its ranks; after a restore on another number of ranks a node may have any parts, and
the same functions place their copies.

A parity set has G members, of which m may be lost; k = G - m. Each part is cut into rows of k blocks. In every row are
G stripes; stripe s takes block i of its row from member (s + m + i) mod G, for i = 0 .. k-1, and the m blocks of
parity computed from these k blocks are stored by members s, s+1, ..., s+m-1 (mod G). So

* a stripe never has two blocks on one member: the loss of a member costs every stripe at most one block;
* every block of every part is in exactly one stripe;
* every member encodes one stripe per row (number s is encoded by member s) and stores m blocks of parity per row:
  the overhead is m / k of the longest part, and the work is equal.

Parts shorter than the longest count as padded with zeros, which are neither sent nor stored. The blocks of the
last row are only as long as needed, so that rounding costs less than :data:`ALIGNMENT` times m bytes per member.
This is the rotated layout of RAID-5 and RAID-6 (Patterson, Gibson and Katz, 1988), with nodes for disks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of a job.

    Attributes:
        ranks: per node, its ranks, ascending; every node has at least one.
        domains: per node, the name of the domain that it shares with others (a switch); "" if unknown.
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
        """Node numbers, with those of one domain next to each other, otherwise in order."""
        first = {domain: place for place, domain in reversed(list(enumerate(self.domains)))}
        return sorted(range(len(self)), key=lambda node: (first[self.domains[node]], node))

    def largest_domain(self) -> int:
        """Number of nodes in the largest domain; 1 if no domains are known."""
        counts = Counter(self.domains)
        return 1 if len(counts) < 2 else max(counts.values())


def partner_nodes(nodes: Nodes) -> tuple[int, ...]:
    """For each node, the node that keeps a copy of its parts.

    Every node has one partner and is the partner of one node. With nodes ordered by domain, the partner is as many
    positions further as the largest domain has nodes: then it is in another domain, unless that domain has more than
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
    """Divide the nodes into groups of at least ``group_size``; remaining nodes are spread over the groups.

    Group sizes differ by at most one. The nodes of one domain are dealt to different groups as far as possible.
    """
    if len(nodes) < group_size:
        raise ValueError(f"{len(nodes)} nodes cannot make a group of {group_size}")
    count = len(nodes) // group_size
    groups: list[list[int]] = [[] for _ in range(count)]
    for place, node in enumerate(nodes.by_domain()):
        groups[place % count].append(node)
    return tuple(tuple(sorted(group)) for group in groups)


@dataclass(frozen=True, slots=True)
class Copy:
    """Part ``part`` is copied from the storage of rank ``source``'s node to that of rank ``target``'s."""

    part: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a parity set, on one node.

    Attributes:
        rank: reads the part, encodes one stripe of each row, and stores a share of the parity.
        part: the protected part; None if the node has no part for this set and only stores parity.
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
        """The position of a rank among the members."""
        for place, member in enumerate(self.members):
            if member.rank == rank:
                return place
        raise ValueError(f"rank {rank} is not in this set")


def own_parts(nodes: Nodes) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Per node, (part, rank with it): at a save, every rank has its own part."""
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

    A node with fewer parts than others still takes part in all sets: every node of a group stores an equal share of
    the parity and does an equal share of the work.
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


#: Blocks are multiples of this many bytes, for the vector units.
ALIGNMENT = 64
#: Longest block. Shorter ones make messages too small to be fast in shared memory, longer ones leave the links of a
#: network idle between them (docs/benchmarks.md).
MOST_BLOCK_BYTES = 2 << 20
#: Memory for blocks that encoding may take, in bytes.
MEMORY_BYTES = 64 << 20
#: Rows of blocks in transfer, or being encoded, at a time.
ROWS_AT_ONCE = 4
_BLOCK_STEP_BYTES = 64 << 10
#: The code works over bytes, in the field of 256 elements, which allows this many members.
MOST_MEMBERS = 255


def block_bytes_for(members: int) -> int:
    """Length of a full block, such that :data:`ROWS_AT_ONCE`, sent and received, fit into :data:`MEMORY_BYTES`."""
    fitting = MEMORY_BYTES // (2 * members * ROWS_AT_ONCE) // _BLOCK_STEP_BYTES * _BLOCK_STEP_BYTES
    return max(_BLOCK_STEP_BYTES, min(MOST_BLOCK_BYTES, fitting))


@dataclass(frozen=True, slots=True)
class Stripes:
    """The stripes of one parity set.

    Attributes:
        members: G.
        tolerate: m.
        block_bytes: length of the blocks of every row but the last, a multiple of ALIGNMENT.
        longest_bytes: length of the longest part.
    """

    members: int
    tolerate: int
    block_bytes: int
    longest_bytes: int

    @property
    def data_blocks(self) -> int:
        """k: blocks of data in a stripe, and blocks of a part in a row."""
        return self.members - self.tolerate

    @property
    def rows(self) -> int:
        """Number of rows."""
        return -(-self.longest_bytes // (self.data_blocks * self.block_bytes))

    def length(self, row: int) -> int:
        """Length of the blocks of a row, in bytes."""
        rest = self.longest_bytes - row * self.data_blocks * self.block_bytes
        each = -(-rest // self.data_blocks)
        return min(self.block_bytes, -(-each // ALIGNMENT) * ALIGNMENT)

    def start(self, row: int, block: int) -> int:
        """The first byte of a block in its part."""
        return row * self.data_blocks * self.block_bytes + block * self.length(row)

    def parity_start(self, row: int, index: int) -> int:
        """The first byte of parity block ``index`` of a row in a member's parity."""
        return row * self.tolerate * self.block_bytes + index * self.length(row)

    @property
    def parity_bytes(self) -> int:
        """Parity that each member stores, in bytes."""
        return 0 if not self.rows else self.parity_start(self.rows - 1, self.tolerate)

    def source(self, stripe: int, block: int) -> int:
        """The member whose block is block ``block`` of a stripe."""
        return (stripe + self.tolerate + block) % self.members

    def stripe_of(self, member: int, block: int) -> int:
        """The stripe with block ``block`` of a member."""
        return (member - self.tolerate - block) % self.members

    def keeper(self, stripe: int, index: int) -> int:
        """The member that stores parity block ``index`` of a stripe."""
        return (stripe + index) % self.members

    def kept_stripe(self, member: int, index: int) -> int:
        """The stripe whose parity block ``index`` a member stores."""
        return (member - index) % self.members

    def filled(self, row: int, block: int, part_bytes: int) -> int:
        """The number of bytes of a block within its part; the rest counts as zeros."""
        return max(0, min(self.length(row), part_bytes - self.start(row, block)))

    def can_rebuild(self, lost: int, data: Collection[int], parity: Collection[int]) -> bool:
        """True if a member's part can be computed."""
        k = self.data_blocks
        for block in range(k):
            stripe = self.stripe_of(lost, block)
            found = sum(self.source(stripe, i) in data for i in range(k) if i != block)
            found += sum(self.keeper(stripe, j) in parity for j in range(self.tolerate))
            if found < k:
                return False
        return True
