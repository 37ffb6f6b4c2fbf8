"""The index of a part file (chunks, spans, bases, meta document): encoding, decoding and validation.

Invariants of a sound index
---------------------------
* Chunks in this file fill the payload without gap or overlap, and end where the index begins. Each other chunk is
  within its base, and each base in the table has at least one chunk.
* The concatenated chunks are the *raw stream*; the concatenated spans are the same bytes. Chunk and span borders are
  independent of each other: a span may cover many chunks, a chunk may have many spans.
* No chunk or span is empty. No byte of a leaf, or of a box of a leaf, is in two spans.
* All lengths are within the limits of ``format.py``, so no sum of two of them overflows.

Writer and reader run the same checks, so the writer never writes a file that the reader would refuse.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from deeppart.codec import RawCodec, codec_by_id
from deeppart.errors import NewerFormatError
from deeppart.part import format as fmt
from deeppart.part.format import BASE_DTYPE, CHUNK_DTYPE, INDEX_HEAD_BYTES, INDEX_MAGIC, SPAN_DTYPE, Table, corrupt
from deeppart.part.signing import STRONG_DIGEST_BYTES, TAG_BYTES

_HEAD = struct.Struct("<8sQQQQ8sI12s")
NO_BASES = np.zeros(0, dtype=BASE_DTYPE)
NO_STRONG = np.zeros((0, STRONG_DIGEST_BYTES), dtype=np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class PartIndex:
    """The tables of a part file: its chunks, the spans of leaves in them, and its document.

    Attributes:
        chunks: array of CHUNK_DTYPE in the order of the payload.
        spans: array of SPAN_DTYPE in the order of the raw stream.
        meta: UTF-8 JSON document of the package ``state``, not interpreted here.
        raw_bytes: length of the raw stream.
        bases: array of BASE_DTYPE: the earlier parts that store chunks of this one.
        strong: a row of 32 bytes for each chunk, the sha256 of its encoded bytes; empty if the part is not signed.
    """

    chunks: Table
    spans: Table
    meta: bytes
    raw_bytes: int
    bases: Table = field(default_factory=lambda: NO_BASES)
    strong: npt.NDArray[np.uint8] = field(default_factory=lambda: NO_STRONG)

    def encode(self, header_digest: bytes) -> bytes:
        """Return the bytes of the index, without its tag; ``header_digest`` (8 bytes) ties it to the file's header."""
        counts = (len(self.chunks), len(self.spans), len(self.meta), self.raw_bytes)
        head = _HEAD.pack(INDEX_MAGIC, *counts, header_digest, len(self.bases), bytes(12))
        tables = (self.chunks.tobytes(), self.spans.tobytes(), self.bases.tobytes(), self.strong.tobytes())
        return b"".join((head, *tables, self.meta))

    @classmethod
    def decode(cls, data: bytes, *, payload_end: int, header_digest: bytes, where: str, signed: bool) -> PartIndex:
        """Read and check an index whose digest has been checked; the arrays are read-only views of ``data``."""
        magic, n_chunks, n_spans, n_meta, raw_bytes, tied_to, n_bases, reserved = _HEAD.unpack_from(data)
        if magic != INDEX_MAGIC or reserved != bytes(12):
            raise corrupt("the index has no valid head", expected=repr(INDEX_MAGIC), found=repr(magic), where=where)
        if tied_to != header_digest:
            raise corrupt(
                "the index belongs to another header: parts of two files were mixed",
                expected=tied_to.hex(),
                found=header_digest.hex(),
                where=where,
            )
        _check_limits(n_chunks, n_spans, n_meta, n_bases, raw_bytes, where)
        chunks_end = INDEX_HEAD_BYTES + n_chunks * CHUNK_DTYPE.itemsize
        spans_end = chunks_end + n_spans * SPAN_DTYPE.itemsize
        bases_end = spans_end + n_bases * BASE_DTYPE.itemsize
        n_strong = n_chunks if signed else 0
        strong_end = bases_end + n_strong * STRONG_DIGEST_BYTES
        meta_end = strong_end + n_meta
        whole = meta_end + (TAG_BYTES if signed else 0)
        if whole != len(data):  # Python integers: no overflow, whatever the counts claim
            counted = f"{n_chunks} chunks, {n_spans} spans, {n_bases} bases, {n_meta} bytes of meta"
            raise corrupt(
                "the counts of the index do not add up to its length",
                expected=f"{whole} bytes for {counted}",
                found=f"{len(data)} bytes",
                where=where,
            )
        chunks = np.frombuffer(data, CHUNK_DTYPE, n_chunks, INDEX_HEAD_BYTES)
        spans = np.frombuffer(data, SPAN_DTYPE, n_spans, chunks_end)
        bases = np.frombuffer(data, BASE_DTYPE, n_bases, spans_end)
        strong = np.frombuffer(data, np.uint8, n_strong * STRONG_DIGEST_BYTES, bases_end)
        strong = strong.reshape(n_strong, STRONG_DIGEST_BYTES)
        index = cls(chunks, spans, data[strong_end:meta_end], raw_bytes, bases, strong)
        index.check(payload_end=payload_end, where=where)
        return index

    def check(self, *, payload_end: int, where: str) -> None:
        """Check the tables against each other and against the payload; see the module's invariants."""
        _check_limits(len(self.chunks), len(self.spans), len(self.meta), len(self.bases), self.raw_bytes, where)
        _check_chunk_values(self.chunks, where)
        _check_bases(self.chunks, self.bases, where)
        _check_chunk_places(self.chunks, self.raw_bytes, payload_end, where)
        _check_spans(self.spans, self.raw_bytes, where)


def _check_chunk_values(chunks: Table, where: str) -> None:
    """Check the values of each row of the chunk table."""
    raw, encoded = chunks["raw_length"], chunks["encoded_length"]
    for codec_id in np.unique(chunks["codec"]).tolist():
        codec_by_id(codec_id, where=where)
    unknown = chunks["flags"] & ~np.uint16(fmt.KNOWN_FLAGS)
    if unknown.any():
        raise NewerFormatError(
            "a chunk has flags that this version of deeppart does not know",
            expected=f"flags within {fmt.KNOWN_FLAGS:#x}",
            found=f"{int(unknown.max()):#x}",
            where=where,
            todo="read the checkpoint with a newer deeppart",
        )
    _refuse((raw < 1) | (raw > fmt.MAX_CHUNK_BYTES), "chunk", f"raw length not from 1 to {fmt.MAX_CHUNK_BYTES}", where)
    _refuse((encoded < 1) | (encoded > raw), "chunk", "encoded length not from 1 to the raw length", where)
    bomb = raw > encoded * np.uint64(fmt.MAX_EXPANSION)
    _refuse(bomb, "chunk", f"more than {fmt.MAX_EXPANSION} raw bytes per encoded byte, which no codec has", where)
    stored_raw = chunks["codec"] == RawCodec.codec_id
    _refuse(stored_raw & (encoded != raw), "chunk", "stored raw, but its two lengths differ", where)
    digests_differ = (chunks["encoded_digest"] != chunks["raw_digest"]).any(axis=1)
    _refuse(stored_raw & digests_differ, "chunk", "stored raw, but its two digests differ", where)
    for tag in np.unique(chunks["dtype"]).tolist():
        if fmt.DTYPE_TAG.fullmatch(tag) is None:
            raise corrupt("a chunk has a malformed dtype tag", found=repr(tag), where=where)


def _check_bases(chunks: Table, bases: Table, where: str) -> None:
    """Check the table of bases, and that chunks in a base are within its payload."""
    nbytes = bases["nbytes"]
    _refuse((nbytes < fmt.MIN_FILE_BYTES) | (nbytes > fmt.MAX_FILE_BYTES), "base", "impossible length", where)
    impossible = (bases["step"] > fmt.MAX_COUNTER) | (bases["sequence"] > fmt.MAX_COUNTER)
    _refuse(impossible, "base", "impossible step", where)
    if len({row.tobytes() for row in bases["sequence"]}) != len(bases):
        raise corrupt("the base table of the part is not valid: a base is repeated", where=where)
    base, offset = chunks["base"], chunks["offset"]
    _refuse(base > len(bases), "chunk", "is in a base that is not in the table", where)
    if len(np.unique(base[base > 0])) != len(bases):
        raise corrupt("the base table of the part is not valid: a base without chunks", where=where)
    payload_ends = np.concatenate([[np.uint64(0)], nbytes - np.uint64(fmt.FOOTER_BYTES + INDEX_HEAD_BYTES)])[base]
    outside = (offset < fmt.HEADER_BYTES) | (offset > fmt.MAX_FILE_BYTES)
    outside |= offset + chunks["encoded_length"] > payload_ends
    _refuse((base > 0) & outside, "chunk", "is not within its base", where)


def _check_chunk_places(chunks: Table, raw_bytes: int, payload_end: int, where: str) -> None:
    """Check that the chunks fill the payload and the raw stream exactly. Requires checked lengths."""
    total = int(chunks["raw_length"].sum(dtype=np.uint64))
    chunks = chunks[chunks["base"] == 0]
    offset, encoded = chunks["offset"], chunks["encoded_length"]
    _refuse(offset >= payload_end, "chunk", f"begins after the payload, which ends at {payload_end}", where)
    ends = offset + encoded
    _refuse(offset != _after(ends, fmt.HEADER_BYTES), "chunk", "does not begin where the one before ends", where)
    last_end = int(ends[-1]) if len(chunks) else fmt.HEADER_BYTES
    if last_end != payload_end:
        raise corrupt(
            "the chunks do not fill the payload",
            expected=f"a payload up to byte {payload_end}",
            found=f"chunks up to byte {last_end}",
            where=where,
        )
    if total != raw_bytes:
        raise corrupt(
            "the chunks are not as long as the raw stream",
            expected=f"{raw_bytes} bytes",
            found=f"{total} bytes",
            where=where,
        )


def _check_spans(spans: Table, raw_bytes: int, where: str) -> None:
    """Check that the spans fill the raw stream exactly and that no two overlap in their leaf."""
    start, length, raw_offset = spans["start"], spans["length"], spans["raw_offset"]
    _refuse(spans["table"] > fmt.RANK_TABLE, "span", "a leaf table that is neither 0 nor 1", where)
    _refuse((length < 1) | (length > raw_bytes), "span", "length not from 1 to that of the raw stream", where)
    _refuse(start > fmt.MAX_LEAF_BYTES, "span", f"begins after byte {fmt.MAX_LEAF_BYTES} of its leaf", where)
    _refuse(raw_offset >= raw_bytes, "span", "begins after the raw stream", where)
    ends = raw_offset + length
    _refuse(raw_offset != _after(ends, 0), "span", "does not begin where the one before ends", where)
    last_end = int(ends[-1]) if len(spans) else 0
    if last_end != raw_bytes:
        raise corrupt(
            "the spans do not fill the raw stream",
            expected=f"{raw_bytes} bytes",
            found=f"{last_end} bytes",
            where=where,
        )
    order = np.lexsort((start, spans["box"], spans["leaf"], spans["table"]))
    ordered = spans[order]
    before, after = ordered[:-1], ordered[1:]
    same = (before["leaf"] == after["leaf"]) & (before["table"] == after["table"]) & (before["box"] == after["box"])
    overlaps = np.zeros(len(spans), dtype=np.bool_)
    overlaps[order[1:]] = same & (after["start"] < before["start"] + before["length"])
    _refuse(overlaps, "span", "overlaps another span of its leaf", where)


def _after(ends: npt.NDArray[np.uint64], first: int) -> npt.NDArray[np.uint64]:
    """Return where each row must begin: the first at ``first``, the others at the end of the one before."""
    begins = np.empty_like(ends)
    begins[:1] = first
    begins[1:] = ends[:-1]
    return begins


def _check_limits(n_chunks: int, n_spans: int, n_meta: int, n_bases: int, raw_bytes: int, where: str) -> None:
    """Check the counts of the index against the format's limits."""
    for what, count, limit in (
        ("chunks", n_chunks, fmt.MAX_CHUNKS),
        ("spans", n_spans, fmt.MAX_SPANS),
        ("bytes of meta", n_meta, fmt.MAX_META_BYTES),
        ("bases", n_bases, fmt.MAX_BASES),
        ("raw bytes", raw_bytes, fmt.MAX_RAW_BYTES),
    ):
        if count > limit:
            summary = f"the index claims too many {what}"
            raise corrupt(summary, expected=f"at most {limit}", found=str(count), where=where)


def _refuse(bad: npt.NDArray[np.bool_], row: str, why: str, where: str) -> None:
    """Raise if a row is ``bad``; the error names the first one."""
    if bad.any():
        count = int(np.count_nonzero(bad))
        raise corrupt(
            f"the {row} table of the part is not valid: {why}",
            found=f"{row} {int(bad.argmax())} of {len(bad)}, and {count - 1} more",
            where=where,
        )
