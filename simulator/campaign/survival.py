"""The nodes of a job, and which files survive a failure, decided by the library's restart planner.

A campaign records which nodes have lost their storage since each checkpoint. The planner is asked only about the parts
of these nodes and those from which they can be recovered; all other parts are on their nodes. Ranks of a node live and
die together, so one part represents all parts of a node.

A *place* is a slot of the machine, with its switch, rack and power. A failure strikes a place, whichever node is in it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from deeppart.model import LEVELS, Attempt, Level, ParityIdentity, ParityMember, PartRecord
from deeppart.plan.redundancy import Nodes, block_bytes_for, parity_groups, partner_nodes
from deeppart.plan.restart import Committed, Inventory, StoredParity, StoredPart, survey

from ..timing.stages import Protection

#: Size of every part in the planner's input; its value does not matter.
_PART_BYTES = 1 << 20
#: Numbers of successive nodes in the same place differ by multiples of this.
PLACES = 1 << 32


def place_of(node: int) -> int:
    """The place of a node."""
    return node % PLACES


@dataclass(slots=True, eq=False)
class Stored:
    """One checkpoint."""

    sequence: int
    progress_s: float  # seconds of training that it contains
    nodes: tuple[int, ...]  # that saved it; the index of a node is its number in the job at that time
    levels: set[str] = field(default_factory=set)  # at which it is complete and not retired
    lost: set[int] = field(default_factory=set)  # nodes that have lost their storage since


@dataclass(frozen=True, slots=True)
class Recovery:
    """The planner's choice."""

    stored: Stored  # the checkpoint to restore
    parts: dict[str, int]  # level -> number of nodes whose parts come from it

    @property
    def level(self) -> str:
        """The slowest level that is needed."""
        return max(self.parts, key=LEVELS.index)


@dataclass(frozen=True, slots=True)
class Placement:
    """The nodes with copies and parity, by their indices in the job."""

    #: per node, the node with its copies; empty without this level, or with one node
    partner: tuple[int, ...]
    group: tuple[tuple[int, ...], ...]  # per node, its parity group; empty without this level


@lru_cache(maxsize=64)
def placement(nodes: tuple[int, ...], protection: Protection, domain_nodes: int) -> Placement:
    """The placement of copies and parity that the library chooses; it depends only on the places of the nodes."""
    standing = tuple(map(place_of, nodes))
    if standing != nodes:
        return placement(standing, protection, domain_nodes)
    domains = [f"group{place_of(node) // domain_nodes}" for node in nodes] if domain_nodes else ()
    world = Nodes.of(range(len(nodes)), domains)
    partner = partner_nodes(world) if protection.partner and len(nodes) > 1 else ()
    group: list[tuple[int, ...]] = []
    if protection.parity_group and len(nodes) >= protection.parity_group:
        group = [()] * len(nodes)
        for members in parity_groups(world, protection.parity_group):
            for place in members:
                group[place] = members
    return Placement(partner, tuple(group))


def recover(
    stored: Iterable[Stored], world: Sequence[int], protection: Protection, domain_nodes: int = 0
) -> Recovery | None:
    """The newest recoverable checkpoint and its sources; None if there is none."""
    checkpoints = {each.sequence: each for each in stored if each.levels}
    here = set(world)
    gone = {number: _gone(each, here) for number, each in checkpoints.items()}
    concerned = {
        number: _concerned(gone[number], placement(each.nodes, protection, domain_nodes))
        for number, each in checkpoints.items()
    }
    nodes = sorted({checkpoints[n].nodes[place] for n, places in concerned.items() for place in places} & here)
    ranks = {node: rank for rank, node in enumerate(nodes or list(world)[:1])}
    found: list[list[StoredPart]] = [[] for _ in ranks]
    parity: list[list[StoredParity]] = [[] for _ in ranks]
    committed: list[Committed] = []
    for number, each in checkpoints.items():
        places = placement(each.nodes, protection, domain_nodes)
        _add(each, concerned[number], places, protection, ranks, found, parity, committed)
    inventory = Inventory(
        tuple(map(tuple, found)), tuple(range(len(ranks))), tuple(committed), parity=tuple(map(tuple, parity))
    )
    candidates = survey(inventory).candidates
    if not candidates:
        return None
    best = candidates[0]
    chosen = checkpoints[best.attempt.step]
    on_nodes = Level.LOCAL in chosen.levels
    parts: dict[str, int] = {}
    lost = set(gone[chosen.sequence])
    for part, place in enumerate(concerned[chosen.sequence]):
        if place in lost or not on_nodes:
            level = best.sources[part][0].level
            parts[level] = parts.get(level, 0) + 1
    others = len(chosen.nodes) - sum(parts.values())
    if others:
        level = Level.LOCAL if on_nodes else Level.PERSISTENT
        parts[level] = parts.get(level, 0) + others
    return Recovery(chosen, parts)


def _gone(stored: Stored, here: set[int]) -> list[int]:
    """Indices of nodes that are lost or no longer part of the job; usually few."""
    gone = stored.lost | (set(stored.nodes) - here)
    return [place for place, node in enumerate(stored.nodes) if node in gone] if gone else []


def _concerned(gone: list[int], places: Placement) -> list[int]:
    """Indices of the nodes whose parts the planner is asked about: lost ones, and those that can recover them."""
    found = set(gone)
    for place in gone:
        found.update(places.group[place] if places.group else ())
        found.update({places.partner[place]} if places.partner else ())
    return sorted(found) or [0]


def _add(
    stored: Stored,
    concerned: list[int],
    places: Placement,
    protection: Protection,
    ranks: dict[int, int],
    found: list[list[StoredPart]],
    parity: list[list[StoredParity]],
    committed: list[Committed],
) -> None:
    """Add the surviving files of one checkpoint to the inventory."""
    attempt = Attempt("0" * 32, "0" * 32, stored.sequence, stored.sequence, len(concerned))
    number_of = {place: number for number, place in enumerate(concerned)}
    digests = {place: f"{number:032x}" for place, number in number_of.items()}

    def reader(place: int) -> int | None:
        node = stored.nodes[place]
        return None if node in stored.lost else ranks.get(node)

    def part(level: str, place: int) -> StoredPart:
        path = f"{level}/{stored.sequence}/{place}"
        return StoredPart(level, attempt, number_of[place], path, _PART_BYTES, digests[place])

    for place in concerned:
        own = reader(place)
        if Level.LOCAL in stored.levels and own is not None:
            found[own].append(part(Level.LOCAL, place))
        keeper = reader(places.partner[place]) if Level.PARTNER in stored.levels and places.partner else None
        if keeper is not None:
            found[keeper].append(part(Level.PARTNER, place))
    if Level.PARITY in stored.levels and places.group:
        for members in {places.group[place] for place in concerned}:
            if not number_of.keys() >= set(members):
                continue
            records = tuple(ParityMember(number_of[place], _PART_BYTES, digests[place]) for place in members)
            for number, place in enumerate(members):
                keeper = reader(place)
                if keeper is not None:
                    identity = ParityIdentity(
                        attempt, records, protection.parity_tolerate, block_bytes_for(len(members)), number
                    )
                    parity[keeper].append(StoredParity(identity, f"parity/{stored.sequence}/{place}", _PART_BYTES))
    if Level.PERSISTENT in stored.levels:
        records_of = tuple(
            PartRecord(number, f"part-{number}", _PART_BYTES, _PART_BYTES, digests[place], digests[place])
            for place, number in number_of.items()
        )
        committed.append(Committed(attempt, f"persistent/{stored.sequence}", records_of))


class JobNodes:
    """The nodes of a job."""

    def __init__(self, places: int, spares: int) -> None:
        self._places, self._spares = places, spares
        self._made = 0  # number of nodes that have replaced others
        self._fresh = spares  # spare nodes that store nothing of the job
        self._back: list[int] = []  # nodes that the job has left, with their files
        self._empty: list[int] = []  # places of lost nodes, ascending
        self.used = list(range(places))  # by place
        self.turn = 0  # number of times that the scheduler has given the job other nodes

    @property
    def waiting(self) -> int:
        """The number of spare nodes of any kind."""
        return self._fresh + len(self._back)

    @property
    def missing(self) -> int:
        """The number of empty places."""
        return self._places - len(self.used)

    def at(self, places: Iterable[int]) -> list[int]:
        """The job's nodes at some places."""
        found = ((place, bisect_left(self.used, place, key=place_of)) for place in sorted(set(places)))
        return [self.used[at] for place, at in found if at < len(self.used) and place_of(self.used[at]) == place]

    def lose(self, places: Iterable[int]) -> list[int]:
        """Remove the nodes at these places, and return them."""
        struck = self.at(places)
        gone = set(struck)
        self.used = [node for node in self.used if node not in gone]
        self._empty = sorted([*self._empty, *map(place_of, struck)])
        return struck

    def repaired(self) -> None:
        """Add a repaired node, which stores nothing."""
        self._fresh += 1

    def take(self) -> None:
        """Fill empty places with the nodes that the job has left, and with spare ones."""
        filled, self._empty = self._empty[: self._fresh], self._empty[self._fresh :]
        self._fresh -= len(filled)
        fresh = [place + PLACES * (self._made + number) for number, place in enumerate(filled, 1)]
        self._made += len(fresh)
        if self._back or fresh:
            self.used = sorted([*self.used, *self._back, *fresh], key=place_of)
        self._back = []

    def keep(self, count: int) -> None:
        """Continue with the first ``count`` nodes; the others wait."""
        self._back += self.used[count:]
        self.used = self.used[:count]

    def renew(self) -> None:
        """Replace all nodes by others, as many as at the beginning."""
        self._made += 1
        self.turn += 1
        self.used = [place + PLACES * self._made for place in range(self._places)]
        self._fresh, self._back, self._empty = self._spares, [], []
