"""Selects the chunks of a rank's next part on the persistent level that refer to earlier parts there.

A chunk whose raw bytes have the digest of a stored chunk is not written again: its row refers to the part with the
bytes, the *base*, of the same rank and session. References always name the part with the bytes, so no reader follows a
chain. A base is kept, whole, as long as a committed step refers to it (:mod:`deeppart.save.keeping`); ``choose``
makes sure that enough of it is still needed. Parts on nodes have no references: they are written over, copied and
encoded as files.

Only the last complete checkpoint and its bases are referred to: these stay until a newer one is complete, and the
thread that writes a part knows by then how the one before has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import xxhash

from deeppart.codec import EncodedChunk
from deeppart.model import Attempt, BaseRecord, Level
from deeppart.part import ChunkPlace, PartSummary
from deeppart.save.job import Staged
from deeppart.state.capture import ChunkPlan

#: A base must have at least this share of bytes that are still needed.
LEAST_LIVE = 1 / 8
#: A part and its bases together may be this many times as long as the bytes needed of them.
SPACE_FACTOR = 2.0
MOST_BASES = 8


class Incremental:
    """Remembers the chunks of one rank's last complete part on the persistent level, and their parts.

    Threads may share it: one of them writes parts there, and learns how that ends.
    """

    def __init__(self, *, on: bool) -> None:
        self._on = on
        self._held: Held | None = None

    def digests(self, staged: Staged, due: Collection[str]) -> list[bytes] | None:
        """Digests of a share's chunks, if any may be unchanged; otherwise None."""
        if self._held is None or Level.PERSISTENT not in due:
            return None
        data = staged.data.data
        return [xxhash.xxh3_128_digest(data[each.start : each.start + each.length]) for each in staged.layout.chunks]

    def refer(
        self, digests: Sequence[bytes] | None, chunks: Sequence[ChunkPlan], is_there: Callable[[BaseRecord], bool]
    ) -> dict[int, ChunkPlace]:
        """The chunks of a part that need not be written, and their places; ``is_there`` checks that a base exists."""
        held = self._held
        if digests is None or held is None:
            return {}
        found = choose(digests, chunks, held)
        lost = {base for base in {place.base for place in found.values()} if base is None or not is_there(base)}
        return {number: place for number, place in found.items() if place.base not in lost}

    def completed(self, attempt: Attempt, summary: PartSummary) -> None:
        """A step is complete on all ranks: the next part may refer to this rank's."""
        if self._on:
            self._held = held_by(attempt, summary)

    def in_doubt(self) -> None:
        """Drop the remembered chunks: another rank may take a newer step for complete, and retire this one."""
        self._held = None


#: Digest of raw bytes -> their length, and the place of the chunk.
Held = Mapping[bytes, tuple[int, ChunkPlace]]


def held_by(attempt: Attempt, summary: PartSummary) -> Held:
    """The chunks of a complete part, with the places of their bytes."""
    bases = (BaseRecord(summary.index_digest, summary.nbytes, attempt.step, attempt.sequence), *summary.bases)
    names = ("offset", "encoded_length", "raw_length", "codec", "base")
    columns = [summary.chunks[name].tolist() for name in names]
    digests = [summary.chunks[name].tobytes() for name in ("encoded_digest", "raw_digest")]
    strong = [row.tobytes() for row in summary.strong] or [None] * len(summary.chunks)
    places = {}
    for number, (offset, nbytes, length, codec, base) in enumerate(zip(*columns, strict=True)):
        encoded, raw = (each[16 * number : 16 * (number + 1)] for each in digests)
        stored = EncodedChunk(codec, b"", encoded, raw, strong[number])
        places[raw] = (length, ChunkPlace(offset, stored, nbytes, bases[base]))
    return places


def choose(digests: Sequence[bytes], chunks: Sequence[ChunkPlan], held: Held) -> dict[int, ChunkPlace]:
    """The chunks that refer to a base: number of the chunk -> place of the base's chunk."""
    found: dict[int, ChunkPlace] = {}
    live: dict[BaseRecord, int] = {}
    for number, (digest, chunk) in enumerate(zip(digests, chunks, strict=True)):
        length, place = held.get(digest, (0, None))
        if place is not None and length == chunk.length and place.base is not None:
            found[number] = place
            live[place.base] = live.get(place.base, 0) + place.nbytes
    dropped = {base for base, nbytes in live.items() if nbytes < LEAST_LIVE * base.nbytes}
    poorest = sorted(live.keys() - dropped, key=lambda base: (live[base] / base.nbytes, base.index_digest))
    while poorest and (len(poorest) > MOST_BASES or _files(poorest, live, chunks) > SPACE_FACTOR):
        dropped.add(poorest.pop(0))
    return {number: place for number, place in found.items() if place.base not in dropped}


def _files(bases: Sequence[BaseRecord], live: Mapping[BaseRecord, int], chunks: Sequence[ChunkPlan]) -> float:
    """Length of a part and its bases as a multiple of the bytes needed; chunks written again count as raw bytes."""
    needed = sum(live[base] for base in bases)
    anew = max(0, sum(chunk.length for chunk in chunks) - needed)
    return (anew + sum(base.nbytes for base in bases)) / max(1, anew + needed)
