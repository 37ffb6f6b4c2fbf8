"""From what survives to what is read: candidate steps, newest first, and who reads which part from where.

Pure and deterministic: every rank plans alone and gets the same answer. Parts of different attempts (another session,
another ``checkpoint()`` call of the same step number) never meet in one plan.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from pathlib import PurePath

from deeppart.model import Attempt
from deeppart.restart.inventory import Committed, Inventory, StoredPart


@dataclass(frozen=True, slots=True)
class Source:
    """One place a part can be read from.

    Attributes:
        level: "local" or "persistent".
        path: the file.
        readers: ranks that can read it, ascending; one tuple for all parts that the same ranks can read.
        nbytes: length of the file.
        index_digest: what the part's index must hash to.
    """

    level: str
    path: str
    readers: tuple[int, ...]
    nbytes: int
    index_digest: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """An attempt that could be restored.

    Attributes:
        attempt: which checkpoint.
        sources: part number -> places to read it from, cheapest first; every part has at least one.
    """

    attempt: Attempt
    sources: tuple[tuple[Source, ...], ...]

    def without(self, failed: Iterable[tuple[int, str]]) -> Candidate | int:
        """The candidate less some (part, path) sources; the number of a part that has none left, if there is one."""
        bad = set(failed)
        sources = tuple(
            tuple(source for source in places if (part, source.path) not in bad)
            for part, places in enumerate(self.sources)
        )
        for part, places in enumerate(sources):
            if not places:
                return part
        return Candidate(self.attempt, sources)


@dataclass(frozen=True, slots=True)
class Read:
    """Part ``part`` is read by rank ``reader`` from ``source``."""

    part: int
    reader: int
    source: Source


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a restart can do.

    Attributes:
        candidates: recoverable attempts, best first.
        rejected: step -> why it cannot be recovered.
    """

    candidates: tuple[Candidate, ...]
    rejected: tuple[tuple[int, str], ...]


def survey(inventory: Inventory, step: int | None = None) -> Outlook:
    """Find every recoverable attempt.

    Args:
        step: only this one; None for all.

    Returns:
        Candidates by descending step; of two attempts at one step the committed one comes first.
    """
    everyone = tuple(range(len(inventory.node_of)))
    local = _local_parts(inventory)
    committed = {entry.attempt: entry for entry in inventory.committed}
    candidates: list[tuple[int, int, str, Candidate]] = []
    rejected: list[tuple[int, str]] = []
    for attempt in sorted(set(local) | set(committed), key=lambda a: (a.step, a.session, a.sequence)):
        if step is not None and attempt.step != step:
            continue
        places = _places(attempt, local.get(attempt, {}), committed.get(attempt), everyone)
        lacking = [part for part, sources in enumerate(places) if not sources]
        if lacking:
            rejected.append((attempt.step, _why_lacking(attempt, lacking, attempt in committed)))
        else:
            order = (attempt.step, int(attempt in committed), attempt.session)
            candidates.append((*order, Candidate(attempt, tuple(places))))
    candidates.sort(key=lambda entry: (entry[0], entry[1], entry[3].attempt.sequence, entry[2]), reverse=True)
    return Outlook(tuple(entry[3] for entry in candidates), tuple(sorted(rejected, reverse=True)))


def assign(candidate: Candidate, ranks: int) -> tuple[Read, ...]:
    """Give every part to one reader: its cheapest source, the least loaded of the ranks that reach it.

    Returns:
        One read per part, in part order.
    """
    load = [0] * ranks
    idlest: dict[
        int, list[tuple[int, int]]
    ] = {}  # per group of readers, a heap of (load, rank), brought up to date late
    reads: dict[int, Read] = {}
    order = sorted(range(len(candidate.sources)), key=lambda part: (-candidate.sources[part][0].nbytes, part))
    for part in order:
        source = candidate.sources[part][0]
        if id(source.readers) not in idlest:
            idlest[id(source.readers)] = [(load[rank], rank) for rank in source.readers]
            heapify(idlest[id(source.readers)])
        reader = _idlest(idlest[id(source.readers)], load)
        # The rank that will own the part's per-rank leaves spares a message.
        if part < ranks and load[part] == load[reader] and _contains(source.readers, part):
            reader = part
        load[reader] += source.nbytes
        reads[part] = Read(part, reader, source)
    return tuple(reads[part] for part in range(len(candidate.sources)))


def _idlest(heap: list[tuple[int, int]], load: list[int]) -> int:
    """The rank with the least load, of equals the lowest; loads have only grown since they were put on the heap."""
    while heap[0][0] != load[heap[0][1]]:
        rank = heap[0][1]
        heapreplace(heap, (load[rank], rank))
    return heap[0][1]


def _contains(ranks: tuple[int, ...], rank: int) -> bool:
    """Whether a rank is among ascending ranks."""
    place = bisect_left(ranks, rank)
    return place < len(ranks) and ranks[place] == rank


def explain(candidate: Candidate, reads: Sequence[Read]) -> str:
    """One readable line: ``step 1200: 6 of 8 parts local, 2 of 8 persistent``."""
    counts: dict[str, int] = {}
    for read in reads:
        counts[read.source.level] = counts.get(read.source.level, 0) + 1
    shares = ", ".join(f"{count} of {len(reads)} parts {level}" for level, count in sorted(counts.items()))
    saved = candidate.attempt.world_size
    return f"step {candidate.attempt.step}: {shares}; saved by {saved} rank{'s' if saved != 1 else ''}"


def _local_parts(inventory: Inventory) -> dict[Attempt, dict[int, list[tuple[StoredPart, tuple[int, ...]]]]]:
    """attempt -> part -> (file, ranks of the node that has it), each file of a node once."""
    parts: dict[Attempt, dict[int, list[tuple[StoredPart, tuple[int, ...]]]]] = {}
    seen: set[tuple[int, str]] = set()
    members: dict[int, list[int]] = {}
    for rank, node in enumerate(inventory.node_of):
        members.setdefault(node, []).append(rank)
    mates_of = {node: tuple(ranks) for node, ranks in members.items()}
    for rank, found in enumerate(inventory.found):
        node = inventory.node_of[rank]
        mates = mates_of[node]
        for part in found:
            if (node, part.path) not in seen:
                seen.add((node, part.path))
                parts.setdefault(part.attempt, {}).setdefault(part.rank, []).append((part, mates))
    return parts


def _places(
    attempt: Attempt,
    local: dict[int, list[tuple[StoredPart, tuple[int, ...]]]],
    committed: Committed | None,
    everyone: tuple[int, ...],
) -> list[tuple[Source, ...]]:
    places: list[tuple[Source, ...]] = []
    for part in range(attempt.world_size):
        sources = [
            Source("local", stored.path, mates, stored.nbytes, stored.index_digest)
            for stored, mates in local.get(part, [])
            if committed is None or stored.index_digest == committed.parts[part].index_digest
        ]
        if committed is not None:
            record = committed.parts[part]
            path = str(PurePath(committed.directory) / record.file)
            sources.append(Source("persistent", path, everyone, record.nbytes, record.index_digest))
        places.append(tuple(sources))
    return places


def _why_lacking(attempt: Attempt, lacking: list[int], committed: bool) -> str:
    names = ", ".join(map(str, lacking[:8])) + (" ..." if len(lacking) > 8 else "")
    noun = "part" if len(lacking) == 1 else "parts"
    return f"{noun} {names} of {attempt.world_size} found on no node, and " + (
        "unreadable" if committed else "not committed to the persistent level"
    )
