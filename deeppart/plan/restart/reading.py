"""Plans which rank reads which part or portion, and the routes of chunks to other ranks, with readable explanations.

Pure and deterministic: every rank gets the same result.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace

from deeppart.model import MEMORY, Level
from deeppart.plan.redundancy import Nodes
from deeppart.plan.restart.planner import Candidate
from deeppart.plan.restart.sources import SOURCES, Source

#: Least length of a portion: its reader has to open the file and read the index.
LEAST_PORTION_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Portion:
    """A range of a part that one rank reads.

    Portions are planned before any rank knows the chunks of the part: a portion consists of the chunks that begin in
    its range.

    Attributes:
        reader: the rank.
        first, stop: the range, in raw bytes of :attr:`Source.load_bytes`. If the part turns out to have another length,
            the range is scaled to it.
    """

    reader: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class Read:
    """Part ``part`` is read from ``source``.

    Attributes:
        part: number of the part.
        reader: the rank that reads the part, or its first portion. It sends the part's index to the others.
        source: the source.
        portions: in order, of different readers; empty if ``reader`` reads the whole part.
    """

    part: int
    reader: int
    source: Source
    portions: tuple[Portion, ...] = ()

    @property
    def readers(self) -> tuple[int, ...]:
        """The ranks that read any portion, in the order of the portions."""
        return tuple(each.reader for each in self.portions) or (self.reader,)

    def chunks(self, raw_starts: Sequence[int]) -> dict[int, range]:
        """The chunks of each reader: together all chunks, each once."""
        count, raw_bytes = len(raw_starts) - 1, raw_starts[-1]
        if not self.portions:
            return {self.reader: range(count)}
        limits = [-(-each.first * raw_bytes // self.source.load_bytes) for each in self.portions]
        begins = [0, *(bisect_left(raw_starts, limit, hi=count) for limit in limits[1:]), count]
        return {each.reader: range(*begins[position : position + 2]) for position, each in enumerate(self.portions)}


def assign(candidate: Candidate, ranks: int, *, whole: bool = False) -> tuple[Read, ...]:
    """Assign every part to readers, from its cheapest source.

    Each part is assigned to the least loaded of the ranks that can read it. If the load is still uneven, ranks give
    away the ends of parts, so that no rank reads more than its share of the parts that the same ranks can read, and
    32 MiB.
    """
    reads = _whole(candidate, ranks)
    return reads if whole else _divided(reads, ranks)


def _whole(candidate: Candidate, ranks: int) -> tuple[Read, ...]:
    """The largest parts first, each to the least loaded rank."""
    load = [0] * ranks
    idlest: dict[int, list[tuple[int, int]]] = {}  # per group of readers, a heap of (load, rank), updated lazily
    reads: dict[int, Read] = {}
    order = sorted(range(len(candidate.sources)), key=lambda part: (-candidate.sources[part][0].load_bytes, part))
    for part in order:
        source = candidate.sources[part][0]
        if id(source.readers) not in idlest:
            idlest[id(source.readers)] = [(load[rank], rank) for rank in source.readers]
            heapify(idlest[id(source.readers)])
        reader = _idlest(idlest[id(source.readers)], load)
        # A rank that reads the part with its own per-rank leaves saves a message.
        if part < ranks and load[part] == load[reader] and contains(source.readers, part):
            reader = part
        load[reader] += source.load_bytes
        reads[part] = Read(part, reader, source)
    return tuple(reads[part] for part in range(len(candidate.sources)))


def _idlest(heap: list[tuple[int, int]], load: list[int]) -> int:
    """The rank with the least load, of equals the lowest; entries on the heap may be outdated, but loads only grow."""
    while heap[0][0] != load[heap[0][1]]:
        rank = heap[0][1]
        heapreplace(heap, (load[rank], rank))
    return heap[0][1]


def contains(ranks: tuple[int, ...], rank: int) -> bool:
    """True if a rank is among ascending ranks."""
    position = bisect_left(ranks, rank)
    return position < len(ranks) and ranks[position] == rank


def _divided(reads: tuple[Read, ...], ranks: int) -> tuple[Read, ...]:
    """The same parts, divided among the ranks that can read them, if some ranks have more load than others.

    Groups of few readers come first: larger groups can compensate for them. Parts to be rebuilt are not divided.
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
    """Divide parts with the same readers so that these end with the same load; updates ``load``."""
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
    """How many of ``nbytes`` to take so that neither this portion nor the rest is too short."""
    if nbytes - wanted < LEAST_PORTION_BYTES:
        return nbytes
    return wanted if wanted >= LEAST_PORTION_BYTES else 0


def _read(read: Read, portions: list[Portion]) -> Read:
    if len(portions) < 2:
        return replace(read, reader=portions[0].reader if portions else read.reader)
    return replace(read, reader=portions[0].reader, portions=tuple(portions))


def _level(loads: list[int], nbytes: int) -> int:
    """The load to which so many bytes raise the least loaded ranks."""
    loads, filled = sorted(loads), 0
    for count, low in enumerate(loads, start=1):
        filled += low
        level = -(-(nbytes + filled) // count)
        if count == len(loads) or level <= loads[count]:
            return level
    return 0


#: Up to this many targets, sending to each directly is faster than relaying (docs/benchmarks.md).
FANOUT = 16


@dataclass(frozen=True, slots=True)
class Hop:
    """One rank's position on the route of one chunk.

    Attributes:
        source: the rank that sends the chunk to this one; None for its reader.
        targets: ranks to which this one sends it, those of other nodes first.
    """

    source: int | None
    targets: tuple[int, ...]


class Routes:
    """The routes of all chunks, as one rank sees them."""

    def __init__(self, node_of: Sequence[int], rank: int) -> None:
        self._rank, self._node, self._node_of = rank, node_of[rank], node_of
        self._ranks = Nodes.of(node_of).ranks
        self._place = self._ranks[self._node].index(rank)

    def hop(self, reader: int, number: int, *, seen: bool) -> Hop | None:
        """This rank's position on the route of a chunk; None if it is not on it."""
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
            targets += [ranks[(position + first) % len(ranks)] for position in under]
        return Hop(source, tuple(targets)) if source is not None or targets else None

    def _head(self, node: int, number: int) -> int:
        """The rank that receives a chunk for a node other than its reader's."""
        ranks = self._ranks[node]
        return ranks[number % len(ranks)]

    def _nodes_around(self, root: int, number: int) -> tuple[int | None, list[int]]:
        """The node from which a chunk comes, and those to which it goes."""
        others = len(self._ranks) - 1
        if not others:
            return None, []

        def node_at(position: int) -> int:
            if position == 0:
                return root
            other = (position - 1 + number) % others
            return other if other < root else other + 1

        mine = self._node if self._node < root else self._node - 1
        position = 0 if self._node == root else 1 + (mine - number) % others
        above, below = _around(position, others + 1)
        return None if above is None else node_at(above), [node_at(each) for each in below]


def _around(position: int, count: int) -> tuple[int | None, range]:
    """The parent of a position in a tree of ``count`` positions, 0 at the top, and its children."""
    above = (position - 1) // FANOUT if position else None
    first = FANOUT * position + 1
    return above, range(min(first, count), min(first + FANOUT, count))


_LEVEL_WORDS: dict[str, str] = {MEMORY: "in memory", Level.PARITY: "rebuilt from parity"}
#: Ranks named among those that read one part together, at most.
_MOST_NAMED = 8


def explain(candidate: Candidate, reads: Sequence[Read]) -> str:
    """One readable line: ``step 1200: 6 of 8 parts local, 2 of 8 parts rebuilt from parity; saved by 8 ranks``."""
    saved = candidate.attempt.world_size
    return f"step {candidate.attempt.step}: {explain_sources(reads)}; saved by {saved} rank{'s' if saved != 1 else ''}"


def explain_sources(reads: Sequence[Read]) -> str:
    """How many parts come from each kind of source: ``6 of 8 parts local, 2 of 8 parts rebuilt from parity``."""
    counts, found = Counter(read.source.level for read in reads), []
    for level in SOURCES:
        if level in counts:
            found.append(f"{counts[level]} of {len(reads)} parts {_LEVEL_WORDS.get(level, level)}")
    return ", ".join(found)


def explain_parts(candidate: Candidate, reads: Sequence[Read]) -> list[str]:
    """A readable line per part: its reader and source, and the next source if that one turns out bad."""
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
    return f"{len(read.readers)} ranks ({names}) read a range of it each"


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
