"""Writes one part file, front to back, into a sink.

Invariants
----------
* Bytes go to the sink once, in file order: any pipe, file or buffer can be a sink. For chunks in an earlier part, a
  *base*, only the rows of the table are written.
* Chunk payload is never copied: digests are computed on the caller's memory, and the sink gets the same memory.
* The digest of the whole file is computed while it is written; nothing is read back.
* After a sink error the writer is unusable, so an incomplete write cannot become a file that looks complete.

The storage levels create, name and sync files. Not thread-safe; chunks may be encoded on other threads.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from deeppart.codec import EncodedChunk, RawCodec
from deeppart.errors import FormatError
from deeppart.model import Attempt, BaseRecord, PartRecord
from deeppart.part import format as fmt
from deeppart.part.format import BASE_DTYPE, CHUNK_DTYPE, SPAN_DTYPE, PartFooter, PartHeader, Table
from deeppart.part.index import NO_STRONG, PartIndex
from deeppart.part.signing import PART, STRONG_DIGEST_BYTES, Signing, strong_digest

_CHUNK_ROW = struct.Struct("<QQQHHI16s16s16s")  # CHUNK_DTYPE, one row


class Sink(Protocol):
    """The destination of the bytes of a part."""

    def write(self, buffer: memoryview | bytes, /) -> object:
        """Write all of ``buffer``, or raise. The caller may reuse the memory after the call."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PartSummary:
    """The digests and lengths of a part that was written.

    Attributes:
        nbytes: length of the file.
        raw_bytes: length of the raw stream.
        encoded_bytes: encoded length of the raw stream, including chunks in bases.
        referenced_bytes: the part of ``encoded_bytes`` that is in bases.
        chunks: array of CHUNK_DTYPE.
        bases: the bases, in the order of the base table.
        digest: xxh3-128 of the whole file, 32 hex digits (``xxhsum -H2``).
        index_digest: xxh3-128 of the index, 32 hex digits.
        strong: sha256 of the encoded bytes of each chunk, 32 bytes a row; empty if the part is not signed.
    """

    nbytes: int
    raw_bytes: int
    encoded_bytes: int
    referenced_bytes: int
    chunks: Table
    bases: tuple[BaseRecord, ...]
    digest: str
    index_digest: str
    strong: npt.NDArray[np.uint8] = field(default_factory=lambda: NO_STRONG)

    def record(self, attempt: Attempt, rank: int, on_node: PartSummary | None = None) -> PartRecord:
        """Return the manifest's record of this part; ``on_node``: summary of the same part as stored on the node."""
        name = fmt.part_file_name(rank, attempt.world_size)
        node_digest = "" if on_node is None or on_node.index_digest == self.index_digest else on_node.index_digest
        digests = (self.digest, self.index_digest, node_digest)
        return PartRecord(rank, name, self.nbytes, self.raw_bytes, *digests, self.referenced_bytes, self.bases)


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """The location of the encoded bytes of a chunk.

    Attributes:
        offset: offset of the first byte in its file.
        encoded: codec and digests, without the bytes.
        nbytes: encoded length.
        base: the earlier part whose file has the bytes; None for the part itself.
    """

    offset: int
    encoded: EncodedChunk
    nbytes: int
    base: BaseRecord | None = None


class PartWriter:
    """Writes a part: ``add_chunk`` for each chunk in raw-stream order, then ``finish``."""

    def __init__(self, sink: Sink, attempt: Attempt, rank: int, *, signing: Signing | None = None) -> None:
        self._sink = sink
        self._where = f"step {attempt.step}, part of rank {rank}, being written"
        self._hash = xxhash.xxh3_128()
        self._offset = 0
        self._raw_bytes = 0
        self._rows, self._strong = bytearray(), bytearray()
        self._usable = True
        self._bases: dict[BaseRecord, int] = {}
        self._signing = signing
        self._header = PartHeader(attempt, rank, signing is not None).encode()
        self._write(self._header)

    def add_chunk(self, raw_length: int, encoded: EncodedChunk, *, dtype: str = "", flags: int = 0) -> ChunkPlace:
        """Append the next chunk of the raw stream, and compute the missing digests of its encoded bytes.

        Hashing releases the GIL, and so should the sink. Measured, one core, stored raw in chunks of 4 MiB: 8 GB/s.
        """
        data = memoryview(encoded.data).cast("B")
        digest = encoded.digest or xxhash.xxh3_128_digest(data)
        strong = encoded.strong_digest
        if self._signing is not None and strong is None:
            strong = strong_digest(data)
        raw_digest = digest if encoded.codec_id == RawCodec.codec_id else encoded.raw_digest
        hashed = replace(encoded, data=b"", digest=digest, raw_digest=raw_digest, strong_digest=strong)
        place = ChunkPlace(self._offset, hashed, data.nbytes)
        row = self._row(raw_length, place, dtype, flags)
        self._write(data)
        self._note(row, raw_length, place)
        return place

    def add_reference(self, raw_length: int, place: ChunkPlace, *, dtype: str = "", flags: int = 0) -> ChunkPlace:
        """Append a reference to the next chunk of the raw stream, which is in a base."""
        self._check_usable()
        if place.base is None:
            raise FormatError("a chunk cannot be referred to", found="no base", where=self._where)
        self._note(self._row(raw_length, place, dtype, flags), raw_length, place)
        return place

    def _note(self, row: bytes, raw_length: int, place: ChunkPlace) -> None:
        self._rows += row
        self._raw_bytes += raw_length
        if self._signing is not None:
            self._strong += place.encoded.strong_digest or b""

    def _row(self, raw_length: int, place: ChunkPlace, dtype: str, flags: int) -> bytes:
        """Encode a row of the chunk table. :meth:`finish` checks the table."""
        encoded, tag = place.encoded, dtype.encode("ascii", "replace")
        wrong = None if len(tag) <= CHUNK_DTYPE["dtype"].itemsize else f"dtype tag {tag!r}"  # would be truncated
        if encoded.digest is None or encoded.raw_digest is None:
            wrong = wrong or "no digest of it"
        if self._signing is not None and len(encoded.strong_digest or b"") != STRONG_DIGEST_BYTES:
            wrong = wrong or "no strong digest of it, and the part is to be signed"
        if wrong is not None:
            raise FormatError("a chunk cannot be written", found=wrong, where=self._where)
        base = 0 if place.base is None else self._bases.setdefault(place.base, len(self._bases) + 1)
        sizes, digests = (place.offset, place.nbytes, raw_length), (encoded.digest, encoded.raw_digest)
        return _CHUNK_ROW.pack(*sizes, encoded.codec_id, flags, base, tag, *digests)

    def finish(self, spans: Table, meta: bytes) -> PartSummary:
        """Write index and footer. Raises FormatError, before writing them, if the reader would refuse the part."""
        self._check_usable()
        if spans.dtype != SPAN_DTYPE or spans.ndim != 1:
            raise FormatError("spans must be a one-dimensional array of SPAN_DTYPE", found=str(spans.dtype))
        chunks = np.frombuffer(bytes(self._rows), CHUNK_DTYPE)
        bases = np.zeros(len(self._bases), BASE_DTYPE)
        for row, base in zip(bases, self._bases, strict=True):
            row["index_digest"] = np.frombuffer(bytes.fromhex(base.index_digest), np.uint8)
            row["nbytes"], row["step"], row["sequence"] = base.nbytes, base.step, base.sequence
        strong = np.frombuffer(bytes(self._strong), np.uint8).reshape(-1, STRONG_DIGEST_BYTES)
        index = PartIndex(chunks, spans, meta, self._raw_bytes, bases, strong)
        try:
            index.check(payload_end=self._offset, where=self._where)
        except FormatError as error:  # the same text in another type: no file is damaged
            summary = f"a part cannot be written: {error.summary}"
            raise FormatError(summary, expected=error.expected, found=error.found, where=self._where) from error
        index_offset = self._offset
        index_data = index.encode(self._header[-8:])
        if self._signing is not None:
            index_data += self._signing.tag(PART, self._header, index_data)
        index_digest = xxhash.xxh3_128_digest(index_data)
        file_length = index_offset + len(index_data) + fmt.FOOTER_BYTES
        self._write(index_data)
        self._write(PartFooter(index_offset, len(index_data), file_length, index_digest).encode())
        self._usable = False
        referenced = int(chunks["encoded_length"][chunks["base"] > 0].sum())
        return PartSummary(
            nbytes=self._offset,
            raw_bytes=self._raw_bytes,
            encoded_bytes=index_offset - fmt.HEADER_BYTES + referenced,
            referenced_bytes=referenced,
            chunks=chunks,
            bases=tuple(self._bases),
            digest=self._hash.hexdigest(),
            index_digest=index_digest.hex(),
            strong=strong,
        )

    def _write(self, data: memoryview | bytes) -> None:
        """Write, hash and count ``data``. If the sink raises, the writer stays unusable."""
        self._check_usable()
        self._usable = False
        self._sink.write(data)
        self._hash.update(data)
        self._offset += len(data)
        self._usable = True

    def _check_usable(self) -> None:
        if not self._usable:
            raise FormatError("this part is finished, or a write to it failed", where=self._where, todo="start over")
