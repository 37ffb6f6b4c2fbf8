"""Who reads which part, or which stretch of one, over which route, and all that in words.

Pure and deterministic: every rank gets the same answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace

from deeppart.model import LEVELS, Level
from deeppart.plan.redundancy import Nodes
from deeppart.plan.restart.planner import Candidate
from deeppart.plan.restart.sources import Source

#: A file is opened, and its index read, for no stretch shorter than this.
LEAST_PORTION_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Portion:
    """A stretch of a part that one rank reads.

    Who reads what is planned before anyone has read how the part is cut into chunks: a portion is made of the chunks
    that begin in the stretch.

    Attributes:
        reader: the rank.
        first, stop: of the stretch: raw bytes, of as many as :attr:`Source.load_bytes` says. If the part turns out to
            have others, the stretch begins and ends after the same fraction of those.
    """

    reader: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class Read:
    """Part ``part`` is read from ``source``.

    Attributes:
        part: number of the part.
        reader: the rank that reads it, or the first portion of it. It tells the others what the part's index says.
        source: where from.
        portions: in order, of different readers; empty if ``reader`` reads all of it.
    """

    part: int
    reader: int
    source: Source
    portions: tuple[Portion, ...] = ()

    @property
    def readers(self) -> tuple[int, ...]:
        """The ranks that read any of it, in the order of their portions."""
        return tuple(each.reader for each in self.portions) or (self.reader,)

    def chunks(self, raw_starts: Sequence[int]) -> dict[int, range]:
        """The chunks that each reader reads: together all of them, and every one once."""
        count, raw_bytes = len(raw_starts) - 1, raw_starts[-1]
        if not self.portions:
            return {self.reader: range(count)}
        limits = [-(-each.first * raw_bytes // self.source.load_bytes) for each in self.portions]
        begins = [0, *(bisect_left(raw_starts, limit, hi=count) for limit in limits[1:]), count]
        return {each.reader: range(*begins[place : place + 2]) for place, each in enumerate(self.portions)}


def assign(candidate: Candidate, ranks: int, *, whole: bool = False) -> tuple[Read, ...]:
    """Give every part to readers, from its cheapest source.

    Each goes to the least loaded of the ranks that reach it. Where that leaves some with more to read than others, they
    hand over the ends of parts, so that none of the ranks that reach the same parts reads more than its share of them
    and 32 MiB.
    """
    reads = _whole(candidate, ranks)
    return reads if whole else _divided(reads, ranks)


def _whole(candidate: Candidate, ranks: int) -> tuple[Read, ...]:
    """The largest parts first, each to the least loaded rank."""
    load = [0] * ranks
    idlest: dict[
        int, list[tuple[int, int]]
    ] = {}  # per group of readers, a heap of (load, rank), brought up to date late
    reads: dict[int, Read] = {}
    order = sorted(range(len(candidate.sources)), key=lambda part: (-candidate.sources[part][0].load_bytes, part))
    for part in order:
        source = candidate.sources[part][0]
        if id(source.readers) not in idlest:
            idlest[id(source.readers)] = [(load[rank], rank) for rank in source.readers]
            heapify(idlest[id(source.readers)])
        reader = _idlest(idlest[id(source.readers)], load)
        # The rank that will own the part's per-rank leaves saves a message.
        if part < ranks and load[part] == load[reader] and contains(source.readers, part):
            reader = part
        load[reader] += source.load_bytes
        reads[part] = Read(part, reader, source)
    return tuple(reads[part] for part in range(len(candidate.sources)))


def _idlest(heap: list[tuple[int, int]], load: list[int]) -> int:
    """The rank with the least load, of equals the lowest; loads have only grown since they were put on the heap."""
    while heap[0][0] != load[heap[0][1]]:
        rank = heap[0][1]
        heapreplace(heap, (load[rank], rank))
    return heap[0][1]


def contains(ranks: tuple[int, ...], rank: int) -> bool:
    """True if a rank is among ascending ranks."""
    place = bisect_left(ranks, rank)
    return place < len(ranks) and ranks[place] == rank


def _divided(reads: tuple[Read, ...], ranks: int) -> tuple[Read, ...]:
    """The same parts, divided among the ranks that reach them where some would read more than others.

    Groups of few readers come first: those of many can make up for them. What is rebuilt is rebuilt as a whole.
    """
    load, groups, found = [0] * ranks, dict[int, list[Read]](), list(reads)
    for read in reads:
        if read.source.rebuild is not None:
            load[read.reader] += read.source.load_bytes
        else:
            groups.setdefault(id(read.source.readers), []).append(read)
    for group in sorted(groups.values(), key=lambda group: (len(group[0].source.readers), group[0].source.readers[0])):
        for read in _shared_out(group, load):
            found[read.part] = read
    return tuple(found)


def _shared_out(group: list[Read], load: list[int]) -> list[Read]:
    """Divide parts that the same ranks reach, so that these end with the same load; loads are kept up to date."""
    readers = group[0].source.readers
    level = _level([load[rank] for rank in readers], sum(read.source.load_bytes for read in group))
    free = {rank: level - load[rank] for rank in readers if level > load[rank]}
    portions: dict[int, list[Portion]] = {read.part: [] for read in group}

    def take(read: Read, rank: int, first: int, nbytes: int) -> int:
        portions[read.part].append(Portion(rank, first, first + nbytes))
        load[rank] += nbytes
        free[rank] = free.get(rank, 0) - nbytes
        return first + nbytes

    rest: list[tuple[Read, int]] = []
    for read in group:
        kept = _cut(read.source.load_bytes, free.get(read.reader, 0))
        if kept:
            take(read, read.reader, 0, kept)
        if kept < read.source.load_bytes:
            rest.append((read, kept))
    takers = sorted((rank for rank in free if free[rank] > 0), key=lambda rank: (-free[rank], rank))
    taker = 0
    for read, at in rest:
        while at < read.source.load_bytes:
            left = read.source.load_bytes - at
            at = take(read, takers[taker], at, _cut(left, max(free[takers[taker]], LEAST_PORTION_BYTES)))
            taker += free[takers[taker]] <= 0 and taker + 1 < len(takers)
    return [_read(read, portions[read.part]) for read in group]


def _cut(nbytes: int, wanted: int) -> int:
    """How much of so many bytes to take, so that neither this nor what is left is a portion that is too short."""
    if nbytes - wanted < LEAST_PORTION_BYTES:
        return nbytes
    return wanted if wanted >= LEAST_PORTION_BYTES else 0


def _read(read: Read, portions: list[Portion]) -> Read:
    if len(portions) < 2:
        return replace(read, reader=portions[0].reader if portions else read.reader)
    return replace(read, reader=portions[0].reader, portions=tuple(portions))


def _level(loads: list[int], nbytes: int) -> int:
    """The load up to which so many bytes fill ranks that have some already."""
    loads, filled = sorted(loads), 0
    for count, low in enumerate(loads, start=1):
        filled += low
        level = -(-(nbytes + filled) // count)
        if count == len(loads) or level <= loads[count]:
            return level
    return 0


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


_LEVEL_WORDS: dict[str, str] = {Level.PARITY: "rebuilt from parity"}
#: Ranks that are named of those that read one part together.
_MOST_NAMED = 8


def explain(candidate: Candidate, reads: Sequence[Read]) -> str:
    """One readable line: ``step 1200: 6 of 8 parts local, 2 of 8 parts rebuilt from parity; saved by 8 ranks``."""
    saved = candidate.attempt.world_size
    return f"step {candidate.attempt.step}: {explain_sources(reads)}; saved by {saved} rank{'s' if saved != 1 else ''}"


def explain_sources(reads: Sequence[Read]) -> str:
    """How many parts come from where: ``6 of 8 parts local, 2 of 8 parts rebuilt from parity``."""
    counts = Counter(read.source.level for read in reads)
    return ", ".join(
        f"{counts[level]} of {len(reads)} parts {_LEVEL_WORDS.get(level, level)}" for level in LEVELS if level in counts
    )


def explain_parts(candidate: Candidate, reads: Sequence[Read]) -> list[str]:
    """A readable line per part: who has it from where, and what comes next if that turns out bad."""
    lines = []
    for read, sources in zip(reads, candidate.sources, strict=True):
        first, *rest = [_describe(source, read.reader) for source in sources]
        otherwise = f"; otherwise {', then '.join(rest)}" if rest else "; there is no other source"
        lines.append(f"part {read.part} ({read.source.nbytes} bytes): {_takers(read)} from {first}{otherwise}")
    return lines


def _takers(read: Read) -> str:
    if not read.portions:
        return f"rank {read.reader} takes it"
    names = ", ".join(map(str, read.readers[:_MOST_NAMED])) + (", ..." if len(read.readers) > _MOST_NAMED else "")
    return f"{len(read.readers)} ranks ({names}) take a stretch of it each"


def _describe(source: Source, reader: int) -> str:
    if source.rebuild is None:
        return f"{source.level} {source.path if contains(source.readers, reader) else source.location}"
    rebuild = source.rebuild
    data = {piece.place for piece in rebuild.data if piece.path} - {rebuild.identity.place}
    shares = {piece.place for piece in rebuild.parity}
    return (
        f"{source.path} ({len(data)} other parts and {len(shares)} shares of parity are there; "
        f"{rebuild.identity.tolerate} of {len(rebuild.identity.members)} nodes may be lost)"
    )
