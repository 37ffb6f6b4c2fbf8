"""The nodes of a job, and which files survive a failure, decided by the library's restart planner.

A campaign knows which nodes' storage was lost since each checkpoint. The planner is asked about the parts that this
concerns: those of the lost nodes, and all that could give them back. All other parts are on their own nodes. Ranks of
one node live and die together, so one part stands for the parts of a node.

A *place* is where a node stands: number n of the machine, with its switch, its rack and its power. What fails strikes a
place, whatever node is there now.
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

#: Bytes of a part, as far as the planner is concerned: all parts are alike.
_PART_BYTES = 1 << 20
#: Numbers of nodes that stand, one after the other, at the same place differ by multiples of this.
PLACES = 1 << 32


def place_of(node: int) -> int:
    """Where a node stands."""
    return node % PLACES


@dataclass(slots=True, eq=False)
class Stored:
    """One checkpoint, wherever it is."""

    sequence: int
    progress_s: float  # training that it holds
    nodes: tuple[int, ...]  # that saved it; the place of a node is its number in the world then
    levels: set[str] = field(default_factory=set)  # on which it is complete, and still there
    lost: set[int] = field(default_factory=set)  # nodes whose storage was lost since


@dataclass(frozen=True, slots=True)
class Recovery:
    """The choice of the planner."""

    stored: Stored  # the checkpoint
    parts: dict[str, int]  # level -> nodes whose parts come from there

    @property
    def level(self) -> str:
        """The costliest level that was needed."""
        return max(self.parts, key=LEVELS.index)


@dataclass(frozen=True, slots=True)
class Placement:
    """The places of copies and parity among the nodes of a world."""

    #: per place, that of the node with its copies; empty without such a level, or with one node
    partner: tuple[int, ...]
    group: tuple[tuple[int, ...], ...]  # per place, the places of its parity group; empty without such a level


@lru_cache(maxsize=64)
def placement(nodes: tuple[int, ...], protection: Protection, domain_nodes: int) -> Placement:
    """The places of copies and parity, as the library chooses them."""
    standing = tuple(map(place_of, nodes))
    if standing != nodes:  # whoever stands there
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
    """The newest checkpoint that can be had, and from where; None where there is none."""
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
    """Places of nodes that are lost, or no longer the job's; most often few."""
    gone = stored.lost | (set(stored.nodes) - here)
    return [place for place, node in enumerate(stored.nodes) if node in gone] if gone else []


def _concerned(gone: list[int], places: Placement) -> list[int]:
    """Places whose parts the planner is asked about: those of nodes that are gone and what could give these back."""
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
    """Put what is left of one checkpoint into the inventory."""
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
        self._made = 0  # how often nodes have taken places that others had before
        self._fresh = spares  # spare nodes on which nothing of the job is stored
        self._back: list[int] = []  # of the job before, with what is stored on them
        self._empty: list[int] = []  # places of lost nodes, ascending
        self.used = list(range(places))  # in the order of their places
        self.turn = 0  # how often the job has got other nodes

    @property
    def waiting(self) -> int:
        """Spare nodes, of whatever kind."""
        return self._fresh + len(self._back)

    @property
    def missing(self) -> int:
        """Places that are empty."""
        return self._places - len(self.used)

    def at(self, places: Iterable[int]) -> list[int]:
        """The job's nodes at some places."""
        found = ((place, bisect_left(self.used, place, key=place_of)) for place in sorted(set(places)))
        return [self.used[at] for place, at in found if at < len(self.used) and place_of(self.used[at]) == place]

    def lose(self, places: Iterable[int]) -> list[int]:
        """Those nodes are gone; returns them."""
        struck = self.at(places)
        gone = set(struck)
        self.used = [node for node in self.used if node not in gone]
        self._empty = sorted([*self._empty, *map(place_of, struck)])
        return struck

    def repaired(self) -> None:
        """A lost node is back, empty."""
        self._fresh += 1

    def take(self) -> None:
        """Fill empty places, first with nodes that the job had there before."""
        filled, self._empty = self._empty[: self._fresh], self._empty[self._fresh :]
        self._fresh -= len(filled)
        fresh = [place + PLACES * (self._made + number) for number, place in enumerate(filled, 1)]
        self._made += len(fresh)
        if self._back or fresh:
            self.used = sorted([*self.used, *self._back, *fresh], key=place_of)
        self._back = []

    def keep(self, count: int) -> None:
        """The job goes on with so many; the others wait."""
        self._back += self.used[count:]
        self.used = self.used[:count]

    def renew(self) -> None:
        """The scheduler has given the job other nodes, as many as at the beginning."""
        self._made += 1
        self.turn += 1
        self.used = [place + PLACES * self._made for place in range(self._places)]
        self._fresh, self._back, self._empty = self._spares, [], []
