"""Incremental: which chunks of a rank's next part refer to what earlier parts hold, level by level.

A chunk whose raw bytes have the digest of one that is there is not written again: its row refers to the file that holds
it, the *base*, which gets a second name, a hard link, beside the new part. So every step directory is complete in
itself, and a base lives as long as any step that needs it, whichever of the others are removed. Every level refers to
what lies there itself: what is removed from one level takes nothing from another.

A base is kept whole for the chunks that are still needed of it; ``choose`` sees that they are worth it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from deeppart.codec import EncodedChunk
from deeppart.model import Attempt, BaseRecord, Level
from deeppart.part import ChunkPlace, PartSummary, base_file_name, part_file_name
from deeppart.save.job import Staged, Unchanged
from deeppart.state.capture import ChunkPlan, ShareLayout
from deeppart.storage import link

#: A base must hold at least this share of bytes that are still needed.
LEAST_LIVE = 1 / 8
#: All files of a part together may be this many times as long as what is needed of them.
SPACE_FACTOR = 2.0
MOST_BASES = 8
#: Chunks that are looked at to see whether it is worth looking at all of them. If a quarter is unchanged, all of these
#: have changed once in 10,000 times; less than an eighth is not referred to anyway.
SAMPLED_CHUNKS = 32


class Incremental:
    """Remembers where the chunks of one rank's last complete parts lie.

    Threads may share one: each level is written by one thread.
    """

    def __init__(self, rank: int, *, on: bool) -> None:
        self._rank, self._on = rank, on
        self._holdings: dict[str, Holdings | None] = dict.fromkeys((Level.LOCAL, Level.PERSISTENT))
        self._copied: frozenset[str] = frozenset()

    def digests(self, staged: Staged, due: Collection[str]) -> list[bytes] | None:
        """Digests of a share's chunks, if a sample of them tells that some have not changed; None if not."""
        known = [each for level, each in self._holdings.items() if each is not None and level in due]
        return raw_digests(staged.data.data, staged.layout.chunks, known)

    def refer(
        self,
        level: str,
        due: Collection[str],
        digests: Sequence[bytes] | None,
        layout: ShareLayout,
        directory: Path | None,
    ) -> Unchanged:
        """The chunks of a part that need not be written; the files with these chunks get names in the part's
        directory.

        A local part that is to be copied refers to what was copied, too. One that is to be encoded refers to nothing:
        to compute it from the others of its parity set, the bases of all of these would have to be kept.
        """
        holdings = self._holdings[level]
        if digests is None or holdings is None or directory is None or (level == Level.LOCAL and Level.PARITY in due):
            return Unchanged(digests)
        allowed = self._copied if level == Level.LOCAL and Level.PARTNER in due else None
        references = choose(digests, layout.chunks, holdings, allowed)
        kept, names = link_bases(references, holdings, directory)
        return Unchanged(digests, kept, names)

    def completed(self, level: str, directory: Path, attempt: Attempt, summary: PartSummary) -> None:
        """A level of a step is complete on all ranks: the next part there may refer to this rank's."""
        if not self._on:
            return
        if level == Level.PARTNER:
            self._copied = frozenset({summary.index_digest, *(base.index_digest for base in summary.bases)})
        else:
            self._holdings[level] = Holdings.of(directory, attempt, self._rank, summary)

    def failed(self, level: str) -> None:
        """A level of a step failed: on the partner's node, something may not be where this rank takes it to be."""
        if level == Level.PARTNER:
            self._copied = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Holdings:
    """The chunks of the last complete part of a rank at a level.

    Attributes:
        directory: its step directory.
        rank, world_size: whose it is.
        own: the part file itself, as a base.
        places: digest of raw bytes -> their length, and where they are.
    """

    directory: Path
    rank: int
    world_size: int
    own: BaseRecord
    places: Mapping[bytes, tuple[int, ChunkPlace]]

    @classmethod
    def of(cls, directory: Path, attempt: Attempt, rank: int, summary: PartSummary) -> Holdings:
        """After a part was completed."""
        own = BaseRecord(summary.index_digest, summary.nbytes, attempt.step)
        bases = (own, *summary.bases)
        names = ("offset", "encoded_length", "raw_length", "codec", "base")
        columns = [summary.chunks[name].tolist() for name in names]
        digests = [summary.chunks[name].tobytes() for name in ("encoded_digest", "raw_digest")]
        strong = [row.tobytes() for row in summary.strong] or [None] * len(summary.chunks)
        places = {}
        for number, (offset, nbytes, length, codec, base) in enumerate(zip(*columns, strict=True)):
            encoded, raw = (each[16 * number : 16 * (number + 1)] for each in digests)
            stored = EncodedChunk(codec, b"", encoded, raw, strong[number])
            places[raw] = (length, ChunkPlace(offset, stored, nbytes, bases[base]))
        return cls(directory, rank, attempt.world_size, own, places)

    def path(self, base: BaseRecord) -> Path:
        """The present path of a base."""
        if base == self.own:
            return self.directory / part_file_name(self.rank, self.world_size)
        return self.directory / base_file_name(self.rank, self.world_size, base.index_digest)


def raw_digests(data: memoryview, chunks: Sequence[ChunkPlan], known: Iterable[Holdings]) -> list[bytes] | None:
    """The digest of every chunk; None if those of a sample are held nowhere."""
    held = [each.places for each in known]

    def digest(chunk: ChunkPlan) -> bytes:
        return xxhash.xxh3_128_digest(data[chunk.start : chunk.start + chunk.length])

    sampled = {number: digest(chunks[number]) for number in _spread(len(chunks))} if held else {}
    if not any(each in places for each in sampled.values() for places in held):
        return None
    return [sampled.get(number) or digest(chunk) for number, chunk in enumerate(chunks)]


def _spread(count: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, min(count, SAMPLED_CHUNKS)).astype(int)).tolist() if count else []


def choose(
    digests: Sequence[bytes], chunks: Sequence[ChunkPlan], holdings: Holdings, allowed: frozenset[str] | None = None
) -> dict[int, ChunkPlace]:
    """The chunks that refer to a base: number of the chunk -> its place."""
    found: dict[int, ChunkPlace] = {}
    live: dict[BaseRecord, int] = {}
    for number, (digest, chunk) in enumerate(zip(digests, chunks, strict=True)):
        length, place = holdings.places.get(digest, (0, None))
        if place is None or length != chunk.length or place.base is None:
            continue
        if allowed is None or place.base.index_digest in allowed:
            found[number] = place
            live[place.base] = live.get(place.base, 0) + place.nbytes
    dropped = {base for base, nbytes in live.items() if nbytes < LEAST_LIVE * base.nbytes}
    poorest = sorted(live.keys() - dropped, key=lambda base: (live[base] / base.nbytes, base.index_digest))
    while poorest and (len(poorest) > MOST_BASES or _files(poorest, live, chunks) > SPACE_FACTOR):
        dropped.add(poorest.pop(0))
    return {number: place for number, place in found.items() if place.base not in dropped}


def _files(bases: Sequence[BaseRecord], live: Mapping[BaseRecord, int], chunks: Sequence[ChunkPlan]) -> float:
    """Length of all files, as a multiple of what is needed of them; what is written again counts before encoding."""
    needed = sum(live[base] for base in bases)
    anew = max(0, sum(chunk.length for chunk in chunks) - needed)
    return (anew + sum(base.nbytes for base in bases)) / max(1, anew + needed)


def link_bases(
    references: Mapping[int, ChunkPlace], holdings: Holdings, directory: Path
) -> tuple[dict[int, ChunkPlace], dict[str, Path]]:
    """Give the bases a name in another step's directory."""
    names: dict[str, Path] = {}
    for base in {place.base for place in references.values() if place.base is not None}:
        name = directory / base_file_name(holdings.rank, holdings.world_size, base.index_digest)
        if link(holdings.path(base), name):
            names[base.index_digest] = name
    kept = {n: place for n, place in references.items() if place.base and place.base.index_digest in names}
    return kept, names
