"""Part files and manifests made by hand, after docs/format.md, without one line of the library under test.

With its default arguments a function makes what is sound; a test replaces one value and gets a file that is wrong
in that one place while every digest in it holds.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import xxhash

LINEAGE = bytes.fromhex("000102030405060708090a0b0c0d0e0f")
SESSION = bytes.fromhex("f0e1d2c3b4a5968778695a4b3c2d1e0f")


def header(
    *,
    magic: bytes = b"\x89DPP\r\n\x1a\n",
    version: int = 1,
    length: int = 4096,
    sequence: int = 7,
    step: int = 1200,
    rank: int = 0,
    world_size: int = 2,
    padding: bytes = b"",
) -> bytes:
    fields = magic + struct.pack("<II", version, length) + LINEAGE + SESSION
    fields += struct.pack("<QQII", sequence, step, rank, world_size) + padding
    body = fields.ljust(4088, b"\0")
    return body + xxhash.xxh3_64_digest(body)


def chunk_row(
    encoded: bytes,
    *,
    offset: int = 4096,
    encoded_length: int | None = None,
    raw_length: int | None = None,
    codec: int = 0,
    flags: int = 0,
    reserved: int = 0,
    dtype: bytes = b"uint8",
    encoded_digest: bytes | None = None,
    raw_digest: bytes | None = None,
) -> bytes:
    digest = xxhash.xxh3_128_digest(encoded)
    encoded_length = len(encoded) if encoded_length is None else encoded_length
    return (
        struct.pack("<QQ", offset, encoded_length)
        + struct.pack("<Q", encoded_length if raw_length is None else raw_length)
        + struct.pack("<HHI", codec, flags, reserved)
        + dtype.ljust(16, b"\0")
        + (digest if encoded_digest is None else encoded_digest)
        + (digest if raw_digest is None else raw_digest)
    )


def span_row(leaf: int, start: int, length: int, raw_offset: int, *, table: int = 0) -> bytes:
    return struct.pack("<IIQQQ", leaf, table, start, length, raw_offset)


def part(
    payload: bytes,
    chunk_rows: list[bytes],
    span_rows: list[bytes],
    *,
    meta: bytes = b"{}",
    head: bytes | None = None,
    raw_bytes: int | None = None,
    counts: tuple[int, int, int] | None = None,
    index_magic: bytes = b"DPPINDEX",
    index_reserved: bytes = bytes(16),
    header_digest: bytes | None = None,
    footer_magic: bytes = b"DPPFOOTR",
    footer_reserved: bytes = bytes(8),
    index_offset: int | None = None,
    index_length: int | None = None,
    file_length: int | None = None,
) -> bytes:
    head = header() if head is None else head
    n_chunks, n_spans, n_meta = counts or (len(chunk_rows), len(span_rows), len(meta))
    raw_bytes = len(payload) if raw_bytes is None else raw_bytes
    index = index_magic + struct.pack("<QQQQ", n_chunks, n_spans, n_meta, raw_bytes)
    index += (head[-8:] if header_digest is None else header_digest) + index_reserved
    index += b"".join(chunk_rows) + b"".join(span_rows) + meta
    end = footer_magic + struct.pack(
        "<QQQ",
        len(head) + len(payload) if index_offset is None else index_offset,
        len(index) if index_length is None else index_length,
        len(head) + len(payload) + len(index) + 64 if file_length is None else file_length,
    )
    end += xxhash.xxh3_128_digest(index) + footer_reserved
    return head + payload + index + end + xxhash.xxh3_64_digest(end)


def simple_part(payload: bytes = bytes(range(200)), **wrong: Any) -> bytes:
    """A sound part of one raw chunk and one span, with whatever is given put in its place."""
    rows = {"chunk_rows": [chunk_row(payload)], "span_rows": [span_row(0, 0, len(payload), 0)]}
    return part(payload, **{**rows, **wrong})


def seal(document: Any, *, version: int = 1, digest: str | None = None, nbytes: int | None = None) -> bytes:
    """A manifest file around ``document``: bytes as they are, anything else as canonical JSON."""
    body = document
    if not isinstance(body, bytes):
        body = json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii")
    digest = xxhash.xxh3_128_hexdigest(body) if digest is None else digest
    return (
        f"deeppart-manifest {version} xxh3-128={digest} bytes={len(body) if nbytes is None else nbytes}\n".encode()
        + body
    )


def manifest_document(world_size: int = 2) -> dict[str, Any]:
    """The JSON document of a sound manifest."""
    return {
        "attempt": {
            "lineage": LINEAGE.hex(),
            "session": SESSION.hex(),
            "sequence": 7,
            "step": 1200,
            "world_size": world_size,
        },
        "created": "2026-11-21T04:05:06+00:00",
        "library": "deeppart 0.1.0",
        "parts": [
            {
                "rank": rank,
                "file": f"part-{rank:05d}-of-{world_size:05d}.dpp",
                "nbytes": 5000 + rank,
                "raw_bytes": 200,
                "digest": f"{rank:032x}",
                "index_digest": f"{rank + 16:032x}",
            }
            for rank in range(world_size)
        ],
        "structure": {"leaves": [["w", 1, -2.5, None, True, "\u00e9\u2603"]], "kind": "dict"},
    }
