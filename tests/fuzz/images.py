"""Part files and manifests as records whose fields can be changed, and to bytes again, digests right.

Written after docs/format.md, like ``tests/golden/forge.py``; the library refuses to write most of what is wanted here.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import xxhash
import zstandard

#: Texts that stand for what Python's JSON does not write: put into a document, and replaced in its text.
RAW_JSON = {
    "@NaN@": "NaN",
    "@huge@": "1e999",
    "@digits@": "9" * 5000,
    "@deep@": "[" * 3000 + "]" * 3000,
    "@surrogate@": '"\\ud800"',
    "@minus zero@": "-0.0",
}
#: As a key: the key behind it stands twice.
TWICE = "@twice@"

_HEADER = struct.Struct("<8sII16s16sQQIII")
_INDEX = struct.Struct("<8sQQQQ8sI12s")
_CHUNK = struct.Struct("<QQQHHI16s16s16s")
_SPAN = struct.Struct("<IIQQQQ")
_BASE = struct.Struct("<16sQQQ")
_FOOTER = struct.Struct("<8sQQQ16s8s")

HEADER_FIELDS = tuple("magic version length lineage session sequence step rank world_size signed".split())
CHUNK_FIELDS = tuple("offset encoded_length raw_length codec flags base dtype encoded_digest raw_digest".split())
SPAN_FIELDS = ("leaf", "table", "box", "start", "length", "raw_offset")
BASE_FIELDS = ("index_digest", "nbytes", "step", "sequence")

Row = dict[str, Any]


def to_json(document: Any) -> bytes:
    """JSON text, with the odd things in it that have no Python value."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    for mark, raw in RAW_JSON.items():
        text = text.replace(f'"{mark}"', raw)
    return text.replace(f'"{TWICE}":', '"values":[],"values":').encode()


def of_width(value: int, bits: int) -> int:
    """A number as a field of so many bits has it."""
    return value & ((1 << bits) - 1)


@dataclass
class PartImage:
    """A part file, taken apart.

    Attributes:
        head, chunks, spans, bases: fields by name. A chunk has its ``encoded`` bytes too; an ``offset``,
            ``encoded_length`` or digest of None follows from these.
        meta: the JSON document, or bytes.
        tag: the signature of a signed file, which a forger cannot make; the strong digests he can.
        raw_bytes, counts, index_offset, index_length, file_length: None for what is right.
    """

    head: Row
    chunks: list[Row]
    spans: list[Row]
    bases: list[Row]
    meta: Any
    tag: bytes = b""
    raw_bytes: int | None = None
    counts: list[int | None] = field(default_factory=lambda: [None] * 4)
    index_offset: int | None = None
    index_length: int | None = None
    file_length: int | None = None

    @classmethod
    def parse(cls, data: bytes) -> PartImage:
        """Take a sound file apart; of others, any error may come."""
        head = dict(zip(HEADER_FIELDS, _HEADER.unpack_from(data), strict=True))
        _, index_offset, index_length, *_ = _FOOTER.unpack_from(data, len(data) - 64)
        index = data[index_offset : index_offset + index_length]
        _, n_chunks, n_spans, _, _, _, n_bases, _ = _INDEX.unpack_from(index)
        if max(n_chunks * 80, n_spans * 40, n_bases * 40) > len(index):
            raise ValueError("not sound")
        at = _INDEX.size
        chunks = []
        for i in range(n_chunks):
            row = dict(zip(CHUNK_FIELDS, _CHUNK.unpack_from(index, at + 80 * i), strict=True))
            start, length = row["offset"], row["encoded_length"]
            row["encoded"] = b"" if row["base"] else data[start : start + length]
            if not row["base"]:
                row["offset"] = row["encoded_length"] = row["encoded_digest"] = None
            chunks.append(row)
        at += 80 * n_chunks
        spans = [dict(zip(SPAN_FIELDS, _SPAN.unpack_from(index, at + 40 * i), strict=True)) for i in range(n_spans)]
        at += 40 * n_spans
        bases = [dict(zip(BASE_FIELDS, _BASE.unpack_from(index, at + 40 * i), strict=True)) for i in range(n_bases)]
        at += 40 * n_bases
        tag = b""
        if head["signed"]:
            for i, row in enumerate(chunks):
                row["strong"] = index[at + 32 * i : at + 32 * (i + 1)] if row["base"] else None
            at += 32 * n_chunks
            index, tag = index[:-32], index[-32:]
        meta: Any = index[at:]
        with contextlib.suppress(ValueError):
            meta = json.loads(meta)
        return cls(head, chunks, spans, bases, meta, tag)

    def encode(self) -> bytes:
        """The file, with all digests right."""
        numbers = [of_width(self.head[name], bits) for name, bits in (("sequence", 64), ("step", 64), ("rank", 32))]
        block = _HEADER.pack(
            self.head["magic"],
            of_width(self.head["version"], 32),
            of_width(self.head["length"], 32),
            self.head["lineage"],
            self.head["session"],
            *numbers,
            of_width(self.head["world_size"], 32),
            of_width(self.head["signed"], 32),
        ).ljust(4088, b"\0")
        block += xxhash.xxh3_64_digest(block)
        payload = b"".join(row["encoded"] for row in self.chunks)
        table, offset = b"", 4096
        for row in self.chunks:
            table += _chunk_row(row, offset)
            offset += len(row["encoded"])
        table += b"".join(_packed(_SPAN, (32, 32, 64, 64, 64, 64), row, SPAN_FIELDS) for row in self.spans)
        for row in self.bases:
            table += _BASE.pack(row["index_digest"], *(of_width(row[name], 64) for name in BASE_FIELDS[1:]))
        if self.tag:
            table += b"".join(row["strong"] or sha256(row["encoded"]).digest() for row in self.chunks)
        meta = self.meta if isinstance(self.meta, bytes) else to_json(self.meta)
        raw_bytes = sum(row["raw_length"] for row in self.chunks) if self.raw_bytes is None else self.raw_bytes
        right = [len(self.chunks), len(self.spans), len(meta), len(self.bases)]
        chunks, spans, metas, bases = (r if c is None else c for r, c in zip(right, self.counts, strict=True))
        counts = [of_width(count, 64) for count in (chunks, spans, metas, raw_bytes)]
        index = _INDEX.pack(b"DPPINDEX", *counts, block[-8:], of_width(bases, 32), bytes(12)) + table + meta + self.tag
        whole = 4096 + len(payload) + len(index) + 64
        given = (self.index_offset, self.index_length, self.file_length)
        true = (4096 + len(payload), len(index), whole)
        places = [of_width(t if g is None else g, 64) for g, t in zip(given, true, strict=True)]
        end = _FOOTER.pack(b"DPPFOOTR", *places, xxhash.xxh3_128_digest(index), bytes(8))
        return block + payload + index + end + xxhash.xxh3_64_digest(end)


def _packed(form: struct.Struct, widths: tuple[int, ...], row: Row, names: tuple[str, ...]) -> bytes:
    return form.pack(*(of_width(row[name], bits) for name, bits in zip(names, widths, strict=True)))


def _chunk_row(row: Row, offset: int) -> bytes:
    encoded = row["encoded"]
    numbers = (
        of_width(offset if row["offset"] is None else row["offset"], 64),
        of_width(len(encoded) if row["encoded_length"] is None else row["encoded_length"], 64),
        of_width(row["raw_length"], 64),
        of_width(row["codec"], 16),
        of_width(row["flags"], 16),
        of_width(row["base"], 32),
    )
    digest = xxhash.xxh3_128_digest(encoded) if row["encoded_digest"] is None else row["encoded_digest"]
    raw_digest = row["raw_digest"]
    if raw_digest is None:
        raw_digest = xxhash.xxh3_128_digest(_decoded(row)) if row["codec"] == 1 else digest
    return _CHUNK.pack(*numbers, row["dtype"][:16], digest, raw_digest)


def _decoded(row: Row) -> bytes:
    try:
        return zstandard.ZstdDecompressor().decompress(row["encoded"], max_output_size=64 << 20)
    except zstandard.ZstdError:
        return b""


@dataclass
class ManifestImage:
    """A manifest, taken apart: the version in its first line, and its document."""

    version: int
    document: Any

    @classmethod
    def parse(cls, data: bytes) -> ManifestImage:
        """Take a sound file apart; of others, any error may come."""
        line, _, body = data.partition(b"\n")
        return cls(int(line.split()[1]), json.loads(body))

    def name(self, parts: dict[str, bytes]) -> None:
        """Say of the parts what is true of them, wherever there is a place to say it."""
        document = self.document
        records = document.get("parts") if isinstance(document, dict) else None
        for record in records if isinstance(records, list) else []:
            if isinstance(record, dict) and isinstance(record.get("file"), str) and record["file"] in parts:
                data = parts[record["file"]]
                record["nbytes"], record["digest"] = len(data), xxhash.xxh3_128_hexdigest(data)
                record["index_digest"] = data[-32:-16].hex()

    def encode(self) -> bytes:
        """The file, with its digest right."""
        body = to_json(self.document)
        head = f"deeppart-manifest {self.version} xxh3-128={xxhash.xxh3_128_hexdigest(body)} bytes={len(body)}\n"
        return head.encode() + body


def reforge(
    root: Path,
    edit: Callable[[PartImage], object],
    structure: Callable[[dict[str, Any]], object] = lambda structure: None,
) -> None:
    """Change every part and the structure document of a checkpoint, and make all digests right."""
    for path in sorted(root.glob("step-*/part-*")):
        part = PartImage.parse(path.read_bytes())
        edit(part)
        if "structure" in part.meta:
            structure(part.meta["structure"])
        path.write_bytes(part.encode())
    for path in root.glob("step-*/manifest"):
        manifest = ManifestImage.parse(path.read_bytes())
        structure(manifest.document["structure"])
        manifest.name({part.name: part.read_bytes() for part in path.parent.glob("part-*")})
        path.write_bytes(manifest.encode())
