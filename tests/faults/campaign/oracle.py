"""What has to come back, and what the library may not lose. Works on lists of sound files only.

The bounds are lower bounds: a file that was harmed counts as lost altogether, although the library may still get good
blocks out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from tests.faults.campaign.files import NODE_KINDS, Stored

#: (session, step): one attempt at a step.
Attempt = tuple[str, int]


@dataclass(frozen=True, slots=True)
class View:
    """What of the storage a job can reach.

    Attributes:
        nodes: numbers of its nodes; none without a local_dir.
        lineage: of the persistent directory.
        unreadable: nodes that cannot be read, -1 for the persistent directory.
    """

    nodes: Collection[int]
    lineage: str
    unreadable: Collection[int] = ()

    def reaches(self, file: Stored) -> bool:
        """Whether a file is of any use."""
        if file.node in self.unreadable:
            return False
        return file.kind not in NODE_KINDS or (file.node in self.nodes and file.lineage == self.lineage)


def recoverable(files: Iterable[Stored], view: View) -> set[Attempt]:
    """The attempts that must come back if they are asked for."""
    by_attempt: dict[Attempt, list[Stored]] = {}
    for file in files:
        if view.reaches(file):
            by_attempt.setdefault((file.session, file.step), []).append(file)
    return {attempt for attempt, those in by_attempt.items() if all(parts_of(those).values())}


def parts_of(files: Sequence[Stored]) -> dict[int, set[str]]:
    """Part -> levels that give it, for the files of one attempt."""
    committed = any(each.kind == "manifest" for each in files)
    parts: dict[int, set[str]] = {part: set() for part in range(max(each.world for each in files))}
    for each in files:
        if each.kind in ("local", "partner") or (each.kind == "persistent" and committed):
            parts[each.part].add(each.kind)
    on_nodes = {(each.part, each.index_digest) for each in files if each.kind in ("local", "partner")}
    for those in _sets(files).values():
        members, tolerate = those[0].members, those[0].tolerate
        shares = {each.place for each in those}
        whole = [
            place in shares and (part is None or (part, digest) in on_nodes)
            for place, (part, digest) in enumerate(zip(members, those[0].member_digests, strict=True))
        ]
        if whole.count(False) <= tolerate:
            for part in members:
                if part is not None:
                    parts[part].add("parity")
    return parts


def _sets(files: Iterable[Stored]) -> dict[str, list[Stored]]:
    sets: dict[str, list[Stored]] = {}
    for each in files:
        if each.kind == "parity":
            sets.setdefault(each.set_name, []).append(each)
    return sets


def newest(attempts: Iterable[Attempt]) -> int | None:
    """The largest step."""
    return max((step for _, step in attempts), default=None)


def missing_at(
    level: str, files: Iterable[Stored], attempt: Attempt, world: int, home: Callable[[int], int]
) -> list[str]:
    """What an attempt that is complete at a level lacks there; copies and parity are kept together with local parts.

    Args:
        home: rank -> node that must hold its local part.
    """
    mine = [each for each in files if (each.session, each.step) == attempt]
    there = {(each.part, each.node) for each in mine if each.kind == "local"}
    local = [f"local part {part} on node {home(part)}" for part in range(world) if (part, home(part)) not in there]
    if level == "local":
        return local
    if level == "partner":
        away = {each.part for each in mine if each.kind == "partner" and each.node != home(each.part)}
        return local + [f"partner copy of part {part}" for part in range(world) if part not in away]
    if level == "persistent":
        there_too = {each.part for each in mine if each.kind == "persistent"}
        manifest = [] if any(each.kind == "manifest" for each in mine) else ["manifest"]
        return manifest + [f"persistent part {part}" for part in range(world) if part not in there_too]
    return local + _missing_parity(mine, world, home)


def _missing_parity(mine: Sequence[Stored], world: int, home: Callable[[int], int]) -> list[str]:
    covered: dict[int, int] = {}
    wrong = []
    for name, those in _sets(mine).items():
        members = those[0].members
        holders = {each.place: each.node for each in those}
        wrong += [f"share {place} of parity set {name}" for place in range(len(members)) if place not in holders]
        homes = [home(part) for part in members if part is not None]
        if len(set(homes)) != len(homes):
            wrong.append(f"parity set {name} has two parts of one node: {members}")
        if any(part is not None and holders.get(place, home(part)) != home(part) for place, part in enumerate(members)):
            wrong.append(f"parity set {name} lies on other nodes than its members' parts")
        for part in members:
            if part is not None:
                covered[part] = covered.get(part, 0) + 1
    return wrong + [f"parity over part {part}" for part in range(world) if part not in covered]


@dataclass(frozen=True, slots=True)
class Completed:
    """How the attempts of one life went at one level, in order.

    Attributes:
        done: steps that some rank reported complete.
        doubtful: steps of which nobody knows: the job was killed first.
    """

    done: tuple[int, ...]
    doubtful: tuple[int, ...]

    def must_stay(self, keep: int) -> list[int]:
        """Steps that ``keep`` protects, whatever became of the doubtful ones."""
        chain = sorted({*self.done, *self.doubtful})
        return [step for step in self.done if not keep or sum(later > step for later in chain) < keep]

    def one_of(self) -> list[int]:
        """Of these steps one must be complete: the last one done, or a later one that took its place."""
        return [step for step in (*self.done, *self.doubtful) if step >= self.done[-1]] if self.done else []
