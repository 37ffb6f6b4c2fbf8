"""Part, parity and manifest files made by hand, after docs/format.md, without one line of the library under test.

With its default arguments a function makes what is sound; a test replaces one value and gets a file that is wrong
in that one place while every digest in it holds.
"""

from __future__ import annotations

import functools
import hashlib
import json
import struct
from typing import Any

import xxhash

LINEAGE = bytes.fromhex("000102030405060708090a0b0c0d0e0f")
SESSION = bytes.fromhex("f0e1d2c3b4a5968778695a4b3c2d1e0f")


def key_of(secret: bytes) -> bytes:
    """The key that a key file's contents stand for."""
    return hashlib.blake2b(secret, digest_size=64, person=b"dpp key").digest()


def tag(secret: bytes, purpose: bytes, data: bytes) -> bytes:
    """What a holder of the key signs with."""
    return hashlib.blake2b(data, digest_size=32, key=key_of(secret), person=purpose).digest()


def header(
    *,
    magic: bytes = b"\x89DPP\r\n\x1a\n",
    version: int = 9,
    length: int = 4096,
    sequence: int = 7,
    step: int = 1200,
    rank: int = 0,
    world_size: int = 2,
    signed: int = 0,
    padding: bytes = b"",
) -> bytes:
    fields = magic + struct.pack("<II", version, length) + LINEAGE + SESSION
    fields += struct.pack("<QQIII", sequence, step, rank, world_size, signed) + padding
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
    base: int = 0,
    dtype: bytes = b"uint8",
    encoded_digest: bytes | None = None,
    raw_digest: bytes | None = None,
) -> bytes:
    digest = xxhash.xxh3_128_digest(encoded)
    encoded_length = len(encoded) if encoded_length is None else encoded_length
    return (
        struct.pack("<QQ", offset, encoded_length)
        + struct.pack("<Q", encoded_length if raw_length is None else raw_length)
        + struct.pack("<HHI", codec, flags, base)
        + dtype.ljust(16, b"\0")
        + (digest if encoded_digest is None else encoded_digest)
        + (digest if raw_digest is None else raw_digest)
    )


def base_row(file: bytes, *, nbytes: int | None = None, step: int = 0, sequence: int = 0) -> bytes:
    """A row of the base table, for a base with these bytes: its index digest stands in its footer."""
    return file[-32:-16] + struct.pack("<QQQ", len(file) if nbytes is None else nbytes, step, sequence)


def base_record(number: int, sequence: int) -> dict[str, Any]:
    """What a manifest says of a base."""
    return {"index_digest": f"{number:032x}", "nbytes": 5000, "step": 1100, "sequence": sequence}


def span_row(leaf: int, start: int, length: int, raw_offset: int, *, table: int = 0, box: int = 0) -> bytes:
    return struct.pack("<IIQQQQ", leaf, table, box, start, length, raw_offset)


def part(
    payload: bytes,
    chunk_rows: list[bytes],
    span_rows: list[bytes],
    *,
    bases: list[bytes] | None = None,
    meta: bytes = b"{}",
    head: bytes | None = None,
    raw_bytes: int | None = None,
    counts: tuple[int, int, int] | None = None,
    index_magic: bytes = b"DPPINDEX",
    index_reserved: bytes = bytes(12),
    header_digest: bytes | None = None,
    footer_magic: bytes = b"DPPFOOTR",
    footer_reserved: bytes = bytes(8),
    index_offset: int | None = None,
    index_length: int | None = None,
    file_length: int | None = None,
    secret: bytes | None = None,
    strong: list[bytes] | None = None,
) -> bytes:
    """A part file around ``payload``; with ``secret`` signed, and ``head`` is to say so."""
    head = header() if head is None else head
    n_chunks, n_spans, n_meta = counts or (len(chunk_rows), len(span_rows), len(meta))
    raw_bytes = len(payload) if raw_bytes is None else raw_bytes
    index = index_magic + struct.pack("<QQQQ", n_chunks, n_spans, n_meta, raw_bytes)
    index += head[-8:] if header_digest is None else header_digest
    index += struct.pack("<I", len(bases or ())) + index_reserved
    index += b"".join(chunk_rows) + b"".join(span_rows) + b"".join(bases or ()) + b"".join(strong or ()) + meta
    if secret is not None:
        index += tag(secret, b"dpp part", head + index)
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


def strong_digest(encoded: bytes) -> bytes:
    """A row of the table of strong digests."""
    return hashlib.sha256(encoded).digest()


def seal(
    document: Any,
    *,
    version: int = 9,
    digest: str | None = None,
    nbytes: int | None = None,
    secret: bytes | None = None,
) -> bytes:
    """A manifest file around ``document``: bytes as they are, anything else as canonical JSON."""
    body = document
    if not isinstance(body, bytes):
        body = json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii")
    digest = xxhash.xxh3_128_hexdigest(body) if digest is None else digest
    line = f"deeppart-manifest {version} xxh3-128={digest} bytes={len(body) if nbytes is None else nbytes}".encode()
    signature = b""
    if secret is not None:
        signature = b" blake2b=" + tag(secret, b"dpp manifest", line + b"\n" + body).hex().encode()
    return line + signature + b"\n" + body


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
        "compared": [[None, [[0, 2]]], [1100, [[5, 1], [9, 40]]]],
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
                "node_index_digest": f"{rank + 32:032x}" if rank % 2 else "",
                "referenced_bytes": 150 * rank,
                "bases": [base_record(7, 6), base_record(8, 2)][: 2 * rank],
            }
            for rank in range(world_size)
        ],
        "structure": {"leaves": [["w", 1, -2.5, None, True, "\u00e9\u2603"]], "kind": "dict"},
    }


# --- parity files -----------------------------------------------------------------------------------------------------


def gf_multiply(a: int, b: int) -> int:
    """Product in the field of 256 elements, with the polynomial x^8 + x^4 + x^3 + x^2 + 1."""
    product = 0
    while b:
        product ^= a if b & 1 else 0
        a = a << 1 ^ (0x11D if a & 0x80 else 0)
        b >>= 1
    return product


@functools.cache
def gf_inverse(a: int) -> int:
    """The element that gives 1 with ``a``, looked for."""
    return next(b for b in range(1, 256) if gf_multiply(a, b) == 1)


@functools.cache
def gf_products(factor: int) -> bytes:
    """Of ``factor`` with every element, as a table for ``bytes.translate``."""
    return bytes(gf_multiply(factor, byte) for byte in range(256))


def parity_of(data: list[bytes], tolerate: int) -> list[bytes]:
    """Blocks of parity of one stripe: block j is the sum of all data blocks i, each times 1 / ((k + j) xor i).

    A single block of parity is their plain sum: the exclusive or.
    """
    length, blocks = len(data[0]), []
    for row in range(len(data), len(data) + tolerate):
        total = 0
        for column, block in enumerate(data):
            factor = 1 if tolerate == 1 else gf_inverse(row ^ column)
            total ^= int.from_bytes(block.translate(gf_products(factor)))
        blocks.append(total.to_bytes(length))
    return blocks


def parity_share(parts: list[bytes], *, tolerate: int, block_bytes: int, place: int) -> tuple[bytes, bytes]:
    """What the member at ``place`` stores of the parity of ``parts`` (b"" for none), and the table of digests.

    In every row, stripe s has its k blocks of data from members s + m, ..., s + m + k - 1 and its m blocks of parity on
    members s, ..., s + m - 1, counted modulo their number; so a member keeps block j of stripe ``place`` - j.
    """
    count = len(parts)
    k = count - tolerate
    rest, start = max(map(len, parts)), 0
    payload = digests = b""
    while rest > 0:
        each = min(block_bytes, (rest + 64 * k - 1) // (64 * k) * 64)
        for j in range(tolerate):
            stripe = place - j
            data = []
            for i in range(k):
                first = start + i * each
                data.append(parts[(stripe + tolerate + i) % count][first : first + each].ljust(each, b"\0"))
            parity = parity_of(data, tolerate)
            payload += parity[j]
            digests += b"".join(xxhash.xxh3_128_digest(block) for block in (*data, *parity))
        start, rest = start + k * each, rest - k * each
    return payload, digests


def parity_member(part: int | None, data: bytes = b"") -> dict[str, Any]:
    """What the index says of a member: its part file, or nothing."""
    return {"part": part, "nbytes": len(data), "index_digest": data[-32:-16].hex()}


def parity_set_id(
    members: list[dict[str, Any]], *, tolerate: int, block_bytes: int, sequence: int, step: int, world_size: int
) -> str:
    """16 hex digits for one set of one checkpoint."""
    rows = [[member["part"], member["nbytes"], member["index_digest"]] for member in members]
    attempt = [LINEAGE.hex(), SESSION.hex(), sequence, step, world_size]
    return xxhash.xxh3_64_hexdigest(json.dumps([attempt, rows, tolerate, block_bytes]).encode("ascii"))


def parity_header(
    set_id: str,
    *,
    magic: bytes = b"\x89DPY\r\n\x1a\n",
    version: int = 9,
    length: int = 4096,
    sequence: int = 7,
    step: int = 1200,
    world_size: int = 2,
    members: int = 4,
    tolerate: int = 2,
    place: int = 2,
    block_bytes: int = 1024,
    longest: int = 4825,
    id_padding: bytes = bytes(8),
    padding: bytes = b"",
) -> bytes:
    fields = magic + struct.pack("<II", version, length) + LINEAGE + SESSION
    fields += struct.pack("<QQI", sequence, step, world_size)
    fields += struct.pack("<IIIQQ", members, tolerate, place, block_bytes, longest)
    body = (fields + bytes.fromhex(set_id) + id_padding + padding).ljust(4088, b"\0")
    return body + xxhash.xxh3_64_digest(body)


def parity_file(
    payload: bytes,
    digests: bytes,
    members: Any,
    head: bytes,
    *,
    index_magic: bytes = b"DPYINDEX",
    index_reserved: bytes = bytes(32),
    members_length: int | None = None,
    table_length: int | None = None,
    header_digest: bytes | None = None,
    footer_magic: bytes = b"DPPFOOTR",
    footer_reserved: bytes = bytes(8),
    index_offset: int | None = None,
    index_length: int | None = None,
    file_length: int | None = None,
) -> bytes:
    """A parity file around ``members``: bytes as they are, anything else as JSON."""
    text = members if isinstance(members, bytes) else json.dumps(members).encode("ascii")
    index = index_magic + struct.pack(
        "<QQ",
        len(text) if members_length is None else members_length,
        len(digests) if table_length is None else table_length,
    )
    index += (head[-8:] if header_digest is None else header_digest) + index_reserved + text + digests
    end = footer_magic + struct.pack(
        "<QQQ",
        len(head) + len(payload) if index_offset is None else index_offset,
        len(index) if index_length is None else index_length,
        len(head) + len(payload) + len(index) + 64 if file_length is None else file_length,
    )
    end += xxhash.xxh3_128_digest(index) + footer_reserved
    return head + payload + index + end + xxhash.xxh3_64_digest(end)
