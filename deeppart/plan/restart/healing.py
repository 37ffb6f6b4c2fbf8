"""Plans how to restore the redundancy of a restored step as its levels require. Pure.

Every part gets a home: a node with a file of it. If the job has as many ranks as saved the step, that is the node of
the rank with the same number; otherwise a node that has the part already, or the one whose rank has just read it. From
there copies go to partner nodes, and parity sets with a missing share are encoded again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deeppart.model import Level, ParityIdentity, ParityMember
from deeppart.plan.redundancy import Copy, Nodes, ParitySet, block_bytes_for, parity_sets, partner_nodes
from deeppart.plan.restart.inventory import StoredParity
from deeppart.plan.restart.planner import Candidate
from deeppart.plan.restart.sources import Source


@dataclass(frozen=True, slots=True)
class Write:
    """Rank ``rank`` writes part ``part``, which it has in memory, to its node."""

    part: int
    rank: int


@dataclass(frozen=True, slots=True)
class Transfer(Copy):
    """A copy that is lacking.

    Attributes:
        level: "local" or "partner".
        path: the file to read; "" for the one that the first phase of this plan creates on its node.
    """

    level: str
    path: str


@dataclass(frozen=True, slots=True)
class Encode:
    """A parity set to be computed.

    Attributes:
        which: the members.
        paths: per member, the part's file; "" for the one that this plan creates on its node.
    """

    which: ParitySet
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Healing:
    """The repairs to make, in this order.

    Attributes:
        writes: parts that no node has, to be written from memory.
        moves: parts that their home lacks, to be copied there.
        copies: parts to be copied to the partner of their home, if that lacks them.
        encodes: parity sets to be computed.
        unprotected: parts that are only on the persistent level and refer to earlier ones: no file has all bytes.
    """

    writes: tuple[Write, ...]
    moves: tuple[Transfer, ...]
    copies: tuple[Transfer, ...]
    encodes: tuple[Encode, ...]
    unprotected: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.writes or self.moves or self.copies or self.encodes)

    def describe(self) -> str:
        """``1 part to storage, 2 copies, 1 parity set``."""
        counts = (
            (len(self.writes), "part to storage", "parts to storage"),
            (len(self.moves), "part to its node", "parts to their nodes"),
            (len(self.copies), "copy", "copies"),
            (len(self.encodes), "parity set", "parity sets"),
        )
        return ", ".join(f"{count} {one if count == 1 else many}" for count, one, many in counts if count)


@dataclass(frozen=True, slots=True)
class Wish:
    """The protection that parts should have.

    Attributes:
        nodes: the nodes of the job.
        partner: true if every part should be on two nodes.
        group_size: size of the parity groups; 0 for no parity.
        tolerate: nodes of each group that may be lost.
    """

    nodes: Nodes
    partner: bool
    group_size: int
    tolerate: int


def plan_healing(
    candidate: Candidate,
    readers: Mapping[int, int],
    parity: Sequence[tuple[int, StoredParity]],
    wish: Wish,
) -> Healing:
    """Compare the existing files with the required ones."""
    node_of = {rank: node for node, ranks in enumerate(wish.nodes.ranks) for rank in ranks}
    same_world = candidate.attempt.world_size == len(node_of)
    writes, moves, copies = [], [], []
    held: list[list[tuple[int, int]]] = [[] for _ in wish.nodes.ranks]
    paths: dict[int, str] = {}
    stored: dict[int, Source] = {}
    unprotected: list[int] = []
    partners = partner_nodes(wish.nodes) if len(wish.nodes) > 1 else (0,)
    for part, sources in enumerate(candidate.sources):
        files = _by_node(sources, node_of)
        refers = bool(sources) and not files and sources[0].refers
        if refers:
            unprotected.append(part)
        if refers or not sources:
            if same_world:
                held[node_of[part]].append((part, part))  # otherwise the others' parity would belong to other sets
            continue
        if not files:
            rank = readers[part]
            home = node_of[rank]
            writes.append(Write(part, rank))
            paths[part], stored[part] = "", sources[0]
        else:
            first = next(iter(files))
            home = node_of[part] if same_world else first
            rank = part if same_world else _rank(wish.nodes, home, part)
            paths[part] = files[home].path if home in files else ""
            stored[part] = files.get(home, files[first])
            if home not in files:
                source = _rank(wish.nodes, first, part)
                moves.append(Transfer(part, source, rank, Level.LOCAL, files[first].path))
        held[home].append((part, rank))
        if wish.partner and partners[home] != home and partners[home] not in files:
            target = _rank(wish.nodes, partners[home], part)
            copies.append(Transfer(part, rank, target, Level.PARTNER, paths[part]))
    encodes = _encodes(candidate, held, paths, stored, parity, wish) if wish.group_size else ()
    return Healing(tuple(writes), tuple(moves), tuple(copies), encodes, tuple(unprotected))


def _by_node(sources: Sequence[Source], node_of: dict[int, int]) -> dict[int, Source]:
    """The cheapest file on each node that has one, in the order of the sources."""
    files: dict[int, Source] = {}
    for source in sources:
        if source.is_on_a_node:
            files.setdefault(node_of[source.readers[0]], source)
    return files


def _rank(nodes: Nodes, node: int, part: int) -> int:
    ranks = nodes.ranks[node]
    return ranks[part % len(ranks)]


def _encodes(
    candidate: Candidate,
    held: Sequence[Sequence[tuple[int, int]]],
    paths: dict[int, str],
    stored: dict[int, Source],
    parity: Sequence[tuple[int, StoredParity]],
    wish: Wish,
) -> tuple[Encode, ...]:
    there = {(node, each.identity) for node, each in parity}
    node_of = {rank: node for node, ranks in enumerate(wish.nodes.ranks) for rank in ranks}
    encodes = []
    for which in parity_sets(wish.nodes, wish.group_size, wish.tolerate, held):
        if any(member.part is not None and member.part not in stored for member in which.members):
            continue
        members = tuple(
            ParityMember(None, 0, "")
            if member.part is None
            else ParityMember(member.part, stored[member.part].nbytes, stored[member.part].index_digest)
            for member in which.members
        )
        shares = [
            (
                node_of[member.rank],
                ParityIdentity(candidate.attempt, members, which.tolerate, block_bytes_for(len(members)), place),
            )
            for place, member in enumerate(which.members)
        ]
        if not all(share in there for share in shares):
            files = tuple("" if member.part is None else paths[member.part] for member in which.members)
            encodes.append(Encode(which, files))
    return tuple(encodes)
