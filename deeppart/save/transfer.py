"""Moves one rank's share: from staging memory into a part file, and from one level's part file to another's."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import xxhash

from deeppart.codec import Chooser
from deeppart.codec.base import RawCodec
from deeppart.errors import CorruptFileError
from deeppart.model import Attempt
from deeppart.part import FLAG_PER_RANK, ChunkPlace, PartSummary, PartWriter, Signing, Sink
from deeppart.part.signing import check_strong_digest
from deeppart.save.behind import WriteBehind
from deeppart.save.encoding import Chunk, Encoders, Watch
from deeppart.save.relay import Relay
from deeppart.save.workers import Workers
from deeppart.state.capture.layout import ShareLayout
from deeppart.state.document.part_document import PartDocument


@dataclass(frozen=True, slots=True)
class Staged:
    """A captured share.

    Attributes:
        layout: its spans and chunks.
        data: the raw stream, ``layout.nbytes`` bytes of staging memory.
        document: the description of the bytes; encoded when the part is written.
    """

    layout: ShareLayout
    data: npt.NDArray[np.uint8]
    document: PartDocument


@dataclass(frozen=True, slots=True)
class Encoding:
    """The way in which chunks are encoded.

    Attributes:
        chooser: chooses the codec of each chunk.
        encoders: the threads that do it.
        watch: told how long it took, or None.
        signing: the key to sign the part with, or None.
    """

    chooser: Chooser
    encoders: Encoders
    watch: Watch | None = None
    signing: Signing | None = None


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The known chunks of a share before it is written.

    Attributes:
        digests: xxh3-128 of the raw bytes of each; None if not known.
        references: number of a chunk -> where it lies already, in a file beside the new one.
        names: index digest -> path of these files.
    """

    digests: Sequence[bytes] | None = None
    references: Mapping[int, ChunkPlace] = field(default_factory=dict)
    names: Mapping[str, Path] = field(default_factory=dict)


def write_part(
    staged: Staged,
    sink: Sink,
    encoding: Encoding,
    attempt: Attempt,
    rank: int,
    unchanged: Unchanged = Unchanged(),
) -> PartSummary:
    """Encode a share chunk by chunk into a file (not yet committed)."""
    data = staged.data.data

    def chunks() -> Iterator[Chunk]:
        for number, plan in enumerate(staged.layout.chunks):
            digest = None if unchanged.digests is None else unchanged.digests[number]
            raw = data[plan.start : plan.start + plan.length]
            yield Chunk(raw, plan.dtype, None, digest, unchanged.references.get(number))

    refers = bool(unchanged.references)
    return write_chunks(chunks(), staged.layout, staged.document, sink, encoding, attempt, rank, refers=refers)


def recode_part(
    relay: Relay,
    layout: ShareLayout,
    document: PartDocument,
    sink: Sink,
    encoding: Encoding,
    attempt: Attempt,
    rank: int,
    behind: Workers,
    references: Mapping[int, ChunkPlace] = MappingProxyType({}),
) -> PartSummary:
    """Write a part file again for another level, while it is being written: chunks stored raw in it are encoded."""
    chunks = _stored_chunks(relay, layout, encoding.encoders.most_ahead + 1, references)
    with WriteBehind(sink, behind) as ahead:
        return write_chunks(chunks, layout, document, ahead, encoding, attempt, rank, refers=bool(references))


def write_chunks(
    chunks: Iterable[Chunk],
    layout: ShareLayout,
    document: PartDocument,
    sink: Sink,
    encoding: Encoding,
    attempt: Attempt,
    rank: int,
    *,
    refers: bool = False,
) -> PartSummary:
    """Encode chunks into a file (not yet committed), in the order of the layout."""
    signing = encoding.signing
    writer = PartWriter(sink, attempt, rank, refers=refers, signing=signing)
    running = encoding.encoders.run(chunks, encoding.chooser, encoding.watch, signed=signing is not None)
    with closing(running) as encoded_chunks:
        for plan, encoded in zip(layout.chunks, encoded_chunks, strict=True):
            flags = FLAG_PER_RANK if plan.per_rank else 0
            if isinstance(encoded, ChunkPlace):
                place = writer.add_reference(plan.length, encoded, dtype=plan.dtype, flags=flags)
            elif encoded.digest is None:  # stored raw: it has not been in an encoding thread, which takes the digests
                place = writer.add_chunk(memoryview(encoded.data), encoded, dtype=plan.dtype, flags=flags)
            else:
                place = writer.add_encoded(plan.length, encoded, dtype=plan.dtype, flags=flags)
            if isinstance(sink, Relay):
                sink.note_chunk(place)
    return writer.finish(document.span_table(layout.spans), document.meta())


def _stored_chunks(
    relay: Relay, layout: ShareLayout, rooms: int, references: Mapping[int, ChunkPlace]
) -> Iterator[Chunk]:
    """The chunks of a part file as they are there, each in one of ``rooms`` buffers that are used in turn."""
    memory = [memoryview(mmap.mmap(-1, max(1, *(chunk.length for chunk in layout.chunks)))) for _ in range(rooms)]
    for number, plan in enumerate(layout.chunks):
        if number in references:
            yield Chunk(memory[0][:0], plan.dtype, place=references[number])
            continue
        place = relay.chunk(number)
        data = memory[number % rooms][: place.nbytes]
        relay.read_chunk(place, data)
        where = f"chunk {number} of {len(layout.chunks)}, bytes {place.offset} to {place.offset + place.nbytes}"
        if xxhash.xxh3_128_digest(data) != place.encoded.digest:
            raise CorruptFileError(
                "a chunk of a local part file changed between being written and being read back",
                expected=f"xxh3-128 {(place.encoded.digest or b'').hex()}",
                found=xxhash.xxh3_128_hexdigest(data),
                where=where,
                todo="suspect the node's storage or memory",
            )
        if place.encoded.strong_digest is not None:  # what is signed next must be what was captured
            check_strong_digest(data, place.encoded.strong_digest, where=where)
        stored = replace(place.encoded, data=data)
        encoded = None if stored.codec_id == RawCodec.codec_id else stored
        yield Chunk(data, plan.dtype, encoded, stored.raw_digest, strong_digest=stored.strong_digest)


def copy_part(relay: Relay, sink: Sink, behind: Workers) -> str:
    """Copy a part file to another level as it is being written."""
    digest = xxhash.xxh3_128()
    offset = 0
    with WriteBehind(sink, behind) as ahead:
        while count := relay.read_into(offset, room := ahead.room()):
            digest.update(room[:count])
            ahead.pass_on(count)
            offset += count
    return digest.hexdigest()


def check_copy(found: str, summary: PartSummary, where: str) -> None:
    """Check that a copy is what was written."""
    if found != summary.digest:
        raise CorruptFileError(
            "a local part file changed between being written and being copied",
            expected=f"xxh3-128 {summary.digest}",
            found=found,
            where=where,
            todo="suspect the node's storage or memory",
        )
