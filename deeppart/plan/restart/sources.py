"""The sources of each part of an attempt: files on nodes, a rebuild from parity, the persistent level. Pure.

Their order is fixed: staging memory that has outlived its rank, a file at local, one at partner, a rebuild from parity,
persistent. The first is read (``reading.py: assign``); one that fails is removed on all ranks
(``recovery/candidates.py: read_candidate``).

This module also decides which files have the right bytes. Files of one attempt and part with different index digests
contradict each other, unless they are two encodings of the same bytes: then the manifest names both, and their content
has one digest. The manifest decides if there is one, else the parity, which records the digests of the encoded parts;
without either, none of the contradicting files is used. Staging memory has its bytes unencoded: of a step with a
manifest it is used where that is how the part was stored, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from deeppart.model import LEVELS, MEMORY, Attempt, Level, ParityIdentity, PartRecord
from deeppart.plan.redundancy import Stripes
from deeppart.plan.restart.inventory import Committed, Inventory, Location, StoredParity, StoredPart

#: All sources of parts, cheapest first.
SOURCES: tuple[str, ...] = (MEMORY, *LEVELS)
#: Parts of one attempt without any file that are looked up and reported one by one, at most.
MOST_LOOKED_FOR = 10_000


@dataclass(frozen=True, slots=True)
class BlockFile:
    """A file with blocks that a rebuild can use.

    Attributes:
        place: position of its member in the parity set.
        path: the file; "" for a member without a part, whose blocks are zeros.
        readers: ranks that can read it, ascending.
    """

    place: int
    path: str
    readers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A plan to compute a part from other files of its parity set.

    Attributes:
        identity: the set; its ``place`` is the part's.
        data: the members' parts, all copies of them. Those of the lost part itself may be damaged, but not in every
            block.
        parity: shares of parity, of any member.
    """

    identity: ParityIdentity
    data: tuple[BlockFile, ...]
    parity: tuple[BlockFile, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """A source of a part.

    Attributes:
        level: "memory", "local", "partner", "parity" or "persistent".
        path: the file; for parity, a name of the set.
        readers: ranks that can read it, ascending; one tuple object for all parts with the same readers.
        nbytes: length of the file.
        index_digest: the required digest of the part's index.
        rebuild: for parity: the plan to rebuild it.
        raw_bytes: decoded length of the part; 0 if unknown.
        refers: true if some of its chunks are in earlier parts.
    """

    level: str
    path: str
    readers: tuple[int, ...]
    nbytes: int
    index_digest: str
    rebuild: Rebuild | None = None
    raw_bytes: int = 0
    refers: bool = False

    @property
    def load_bytes(self) -> int:
        """The bytes that a reader has to check and keep in memory, as far as known."""
        return self.raw_bytes or self.nbytes

    @property
    def location(self) -> Location:
        """The node and path of the file; other nodes may have a file with the same path."""
        return Location(self.readers[0], self.path)

    @property
    def is_on_a_node(self) -> bool:
        """True if it is a file on some node's storage."""
        return self.level in (Level.LOCAL, Level.PARTNER)


@dataclass(frozen=True, slots=True)
class Finding:
    """All sources of one part of an attempt.

    Attributes:
        sources: cheapest first; may be empty.
        remarks: files that were found and cannot be used, with the reason; for messages.
        contradictions: the remarks about files that contradict each other.
    """

    sources: tuple[Source, ...]
    remarks: tuple[str, ...]
    contradictions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Placed:
    """A file and the ranks that can read it."""

    file: StoredPart
    readers: tuple[int, ...]

    @property
    def location(self) -> Location:
        """The location of the file."""
        return Location(self.readers[0], self.file.path)

    def as_source(self) -> Source:
        file = self.file
        what = (file.nbytes, file.index_digest, None, file.raw_bytes)
        return Source(file.level, file.path, self.readers, *what)


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A part's position in a parity set, and the shares of the set's parity."""

    identity: ParityIdentity
    place: int
    shares: list[BlockFile]

    @property
    def index_digest(self) -> str:
        """The index digest of the encoded part."""
        return self.identity.members[self.place].index_digest


class FilesByAttempt:
    """The files of all nodes, by attempt."""

    def __init__(self, inventory: Inventory) -> None:
        self.everyone = tuple(range(len(inventory.node_of)))
        self._committed = {entry.attempt: entry for entry in inventory.committed}
        mates = _mates(inventory.node_of)
        self._parts: dict[Attempt, dict[int, list[_Placed]]] = {}
        self._parity: dict[Attempt, dict[ParityIdentity, list[BlockFile]]] = {}
        seen: set[tuple[int, str]] = set()
        for rank, node in enumerate(inventory.node_of):
            files = inventory.found[rank] if rank < len(inventory.found) else ()
            for part in sorted(files, key=_by_level):
                if (node, part.path) not in seen:
                    seen.add((node, part.path))
                    readers = (rank,) if part.level == MEMORY else mates[node]
                    self._parts.setdefault(part.attempt, {}).setdefault(part.rank, []).append(_Placed(part, readers))
            for parity in inventory.parity[rank] if rank < len(inventory.parity) else ():
                self._add_parity(parity, mates[node])

    def _add_parity(self, parity: StoredParity, readers: tuple[int, ...]) -> None:
        identity, place = replace(parity.identity, place=0), parity.identity.place
        shares = self._parity.setdefault(identity.attempt, {}).setdefault(identity, [])
        piece = BlockFile(place, parity.path, readers)
        if piece not in shares:
            shares.append(piece)

    def attempts(self) -> list[Attempt]:
        """All known attempts, in order of step, session and sequence."""
        known = set(self._parts) | set(self._parity) | set(self._committed)
        return sorted(known, key=lambda a: (a.step, a.session, a.sequence))

    def is_committed(self, attempt: Attempt) -> bool:
        """True if the attempt has a manifest."""
        return attempt in self._committed

    def known_parts(self, attempt: Attempt) -> set[int]:
        """Parts with any file on a node, or in a parity set there."""
        known = set(self._parts.get(attempt, ()))
        for identity in self._parity.get(attempt, {}):
            known |= {member.part for member in identity.members if member.part is not None}
        return known

    def is_hopeless(self, attempt: Attempt) -> bool:
        """True if nearly nothing is left of an attempt that was never committed, or never complete.

        If a single file's header claims one of 16 million parts, the others are not looked up one by one.
        """
        lacking = attempt.world_size - len(self.known_parts(attempt))
        return lacking > MOST_LOOKED_FOR and not self.is_committed(attempt)

    def age(self, attempt: Attempt) -> tuple[bool, str, float, int]:
        """A key by which the latest attempt at a step is the greatest; sessions have no order.

        Whether it was committed, the time of the commit, the time at which its last file was written, and the sequence.
        """
        committed = self._committed.get(attempt)
        files = (each.file.written for placed in self._parts.get(attempt, {}).values() for each in placed)
        created = committed.created if committed is not None else ""
        return committed is not None, created, max(files, default=0.0), attempt.sequence

    def was_complete(self, attempt: Attempt) -> bool:
        """True if the attempt was once complete at some level. Copies and parity are only made of complete ones."""
        copies = (each for files in self._parts.get(attempt, {}).values() for each in files)
        encoded = bool(self._parity.get(attempt))
        return self.is_committed(attempt) or encoded or any(each.file.level == Level.PARTNER for each in copies)

    def findings(self, attempt: Attempt) -> list[Finding]:
        """The files found for every part, in part order."""
        placed = self._parts.get(attempt, {})
        encoded: dict[int, list[_Encoded]] = {}
        for identity, shares in self._parity.get(attempt, {}).items():
            for place, member in enumerate(identity.members):
                if member.part is not None:
                    encoded.setdefault(member.part, []).append(_Encoded(identity, place, shares))
        committed = self._committed.get(attempt)
        return [self._finding(part, placed, encoded.get(part, []), committed) for part in range(attempt.world_size)]

    def _finding(
        self, part: int, placed: dict[int, list[_Placed]], encoded: list[_Encoded], committed: Committed | None
    ) -> Finding:
        files = sorted(placed.get(part, ()), key=lambda each: _by_level(each.file))
        record = committed.parts[part] if committed is not None else None
        digests, contradictions = _settle(part, files, encoded, record)
        sources = [each.as_source() for each in files if each.file.index_digest in digests]
        remarks = list(contradictions)
        if not files:
            remarks.append("found on no node")
        for number, each in enumerate(encoded):
            if each.index_digest in digests:
                rebuild = self._rebuild(each, placed)
                problem = lacking(rebuild)
                if problem is None:
                    which = f" no. {number + 1}" if len(encoded) > 1 else ""
                    name = f"parity set{which} {_set_name(each.identity)}"
                    nbytes = each.identity.members[each.place].nbytes
                    sources.append(Source(Level.PARITY, name, self.everyone, nbytes, each.index_digest, rebuild))
                else:
                    remarks.append(problem)
        if committed is not None and record is not None:
            path = f"{committed.directory}/{record.file}"
            what = (record.nbytes, record.index_digest, None, record.raw_bytes, bool(record.bases))
            sources.append(Source(Level.PERSISTENT, path, self.everyone, *what))
        return Finding(tuple(sources), tuple(remarks), tuple(contradictions))

    def _rebuild(self, wanted: _Encoded, placed: dict[int, list[_Placed]]) -> Rebuild:
        data = []
        for place, member in enumerate(wanted.identity.members):
            if member.part is None:
                data.append(BlockFile(place, "", self.everyone))
            else:
                files = [each for each in placed.get(member.part, ()) if each.file.index_digest == member.index_digest]
                data += [BlockFile(place, each.file.path, each.readers) for each in files]
        parity = tuple(sorted(wanted.shares, key=lambda piece: piece.place))
        return Rebuild(replace(wanted.identity, place=wanted.place), tuple(data), parity)


def _settle(
    part: int, files: Sequence[_Placed], encoded: Sequence[_Encoded], record: PartRecord | None
) -> tuple[frozenset[str], list[str]]:
    """The accepted digests, and remarks about files that contradict them."""
    best = record.index_digests if record is not None else _agreeing(files, {each.index_digest for each in encoded})
    if record is None and not best and (files or encoded):
        paths = ", ".join(sorted(str(each.location) for each in files)) or "in parity sets"
        return frozenset(), [f"files that claim to be part {part} contradict each other, and nothing decides: {paths}"]
    who = "the manifest says" if record is not None else "the parity was computed of"
    return best, [
        f"{each.location}: claims to be part {part}, but its index is not what {who}; ignored"
        for each in files
        if each.file.index_digest not in best and each.file.level != MEMORY
    ]


def _agreeing(files: Sequence[_Placed], encoded: set[str]) -> frozenset[str]:
    """Index digests of the same bytes, without a manifest; none if they contradict each other or ``encoded``."""
    contents: dict[str, set[str]] = {}
    for each in files:
        contents.setdefault(each.file.content_digest or each.file.index_digest, set()).add(each.file.index_digest)
    agreeing = [digests for digests in contents.values() if not encoded or digests & encoded]
    if len(agreeing) == 1:
        return frozenset(agreeing[0])
    return frozenset(encoded) if not agreeing and len(encoded) == 1 else frozenset()


def lacking(rebuild: Rebuild) -> str | None:
    """The reason why a part cannot be computed from the files of its set, or None if it can."""
    identity = rebuild.identity
    stripes = Stripes(len(identity.members), identity.tolerate, identity.block_bytes, identity.longest_bytes)
    data = {piece.place for piece in rebuild.data}
    parity = {piece.place for piece in rebuild.parity}
    if stripes.can_rebuild(identity.place, data, parity):
        return None
    gone = len(identity.members) - len((data - {identity.place}) & parity)
    return (
        f"parity: of the {len(identity.members)} nodes of the set, {gone} lack their part or parity; "
        f"{identity.tolerate} may be lost"
    )


def _set_name(identity: ParityIdentity) -> str:
    return "of parts " + ", ".join(str(member.part) for member in identity.members if member.part is not None)


def _mates(node_of: Sequence[int]) -> dict[int, tuple[int, ...]]:
    members: dict[int, list[int]] = {}
    for rank, node in enumerate(node_of):
        members.setdefault(node, []).append(rank)
    return {node: tuple(ranks) for node, ranks in members.items()}


def _by_level(part: StoredPart) -> int:
    return SOURCES.index(part.level)
