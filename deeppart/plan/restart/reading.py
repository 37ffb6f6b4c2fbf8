"""Who reads which part, or which stretch of one. Pure and deterministic: every rank gets the same answer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace

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
