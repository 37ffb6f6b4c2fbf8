"""Edits of what is no document: the fields and tables of a part, the bytes of a chunk or of any file.

All follows from random numbers.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import zstandard

from tests.fuzz.images import PartImage, Row
from tests.fuzz.odd_values import NUMBERS

# --- parts ------------------------------------------------------------------------------------------------------------


def edit_part(part: PartImage, rng: random.Random) -> None:
    """One edit of anything in a part but its document."""
    edits: list[Callable[[], None]] = [
        lambda: _field(part.head, rng, ("version", "length", "sequence", "step", "rank", "world_size", "signed")),
        lambda: _head_bytes(part.head, rng),
        lambda: _rows(part.spans, rng, ("leaf", "table", "box", "start", "length", "raw_offset")),
        lambda: _rows(part.spans, rng, ("leaf", "table", "box", "start", "length", "raw_offset")),
        lambda: _shift_spans(part.spans, rng),
        lambda: _rows(part.chunks, rng, ("offset", "encoded_length", "raw_length", "codec", "flags", "base")),
        lambda: _chunk(part.chunks, rng),
        lambda: _chunk(part.chunks, rng),
        lambda: _rows(part.bases, rng, ("nbytes", "step", "sequence")),
        lambda: _claims(part, rng),
    ]
    rng.choice(edits)()


def _number(value: int | None, rng: random.Random) -> int:
    value = value or 0
    return rng.choice(
        (rng.choice(NUMBERS), value + 1, value - 1, value * 2, value ^ (1 << rng.randrange(64)), value + 64)
    )


def _field(row: Row, rng: random.Random, names: tuple[str, ...]) -> None:
    name = rng.choice(names)
    row[name] = _number(row[name], rng)


def _head_bytes(head: Row, rng: random.Random) -> None:
    name = rng.choice(("magic", "lineage", "session"))
    data = bytearray(head[name])
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    head[name] = bytes(data)


def _rows(rows: list[Row], rng: random.Random, names: tuple[str, ...]) -> None:
    if not rows:
        return
    at = rng.randrange(len(rows))
    kind = rng.randrange(8)
    if kind == 0:
        del rows[at]
    elif kind == 1:
        rows.insert(rng.randrange(len(rows) + 1), dict(rows[at]))
    elif kind == 2:
        other = rng.randrange(len(rows))
        rows[at], rows[other] = rows[other], rows[at]
    else:
        _field(rows[at], rng, names)


def _shift_spans(spans: list[Row], rng: random.Random) -> None:
    """Two neighbours exchange bytes, or leaves, and still fill the raw stream."""
    if len(spans) < 2:
        return
    at = rng.randrange(len(spans) - 1)
    one, other = spans[at], spans[at + 1]
    if rng.random() < 0.3:
        one["table"] ^= 1
        return
    if rng.random() < 0.4:
        name = rng.choice(("leaf", "table", "box", "start"))
        one[name], other[name] = other[name], one[name]
        return
    count = min(rng.choice((1, 2, 4, 8, 64)), other["length"] - 1)
    one["length"] += count
    other["length"] -= count
    other["raw_offset"] += count
    if rng.random() < 0.5:
        other["start"] += count


def _claims(part: PartImage, rng: random.Random) -> None:
    """A length or count that is not what follows."""
    name = rng.choice(("raw_bytes", "index_offset", "index_length", "file_length", "counts", "counts"))
    if name == "counts":
        part.counts[rng.randrange(4)] = _number(rng.choice((len(part.chunks), len(part.spans), 1)), rng)
    else:
        setattr(part, name, _number(rng.choice((4096, 5000)), rng))


def _chunk(chunks: list[Row], rng: random.Random) -> None:
    """Other encoded bytes, whose digest holds."""
    if not chunks:
        return
    row = rng.choice(chunks)
    kind = rng.randrange(6)
    data = bytearray(row["encoded"])
    if kind == 0 and data:
        for _ in range(rng.choice((1, 1, 4))):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    elif kind == 1:
        data = bytearray(data[: rng.randrange(len(data) + 1)])
    elif kind == 2:
        data += rng.choice((b"\0", b"\xff" * 9, zstandard.compress(b"more"), bytes(data[:20])))
    elif kind == 3:
        data = bytearray(odd_frame(row["raw_length"], rng))
        row["codec"] = 1
    elif kind == 4:
        data = bytearray(odd_planes(row["raw_length"], rng))
        row["codec"] = 2
    else:
        row["codec"] = rng.choice((0, 1, 2, 3, 65535))
    row["encoded"] = bytes(data)
    row["raw_digest"] = None


def odd_frame(raw_length: int, rng: random.Random) -> bytes:
    """A Zstandard frame (RFC 8878) that is not what it should be, or not what it says."""
    raw = bytes(min(raw_length, 64 << 20))
    good = zstandard.compress(raw)
    magic = b"\x28\xb5\x2f\xfd"
    size = struct.pack("<Q", rng.choice((raw_length, raw_length + 1, 1 << 40, (1 << 64) - 1, 0)))
    return rng.choice(
        (
            zstandard.ZstdCompressor(write_content_size=False).compress(raw),
            good + good,
            good + b"\x50\x2a\x4d\x18" + struct.pack("<I", 4) + b"skip",
            b"\x50\x2a\x4d\x18" + struct.pack("<I", raw_length & 0xFFFFFFFF) + raw[:100],
            magic + b"\xe0" + size + b"\x01\0\0",  # one segment, eight bytes of content size; a last block, raw, empty
            magic + b"\xe0" + size + struct.pack("<I", 1 | 1 << 1 | (128 << 10) << 3)[:3] + b"\0",  # one byte repeated
            magic + b"\xc0\xf8" + size + b"\x01\0\0",  # a window of 2^41 bytes
            magic + b"\xc3\x00" + b"\x01\0\0\0" + size + b"\x01\0\0",  # a dictionary
            good[: len(good) // 2],
            zstandard.ZstdCompressor(write_checksum=True).compress(raw)[:-1] + b"\0",
            magic,
            b"",
        )
    )


def odd_planes(raw_length: int, rng: random.Random) -> bytes:
    """A chunk of planes with a head that may be wrong."""
    layout, planes = rng.choice(
        ((1, 2), (2, 4), (3, 8), (4, 2), (5, 3), (6, 4), (7, 4), (8, 8), (0, 0), (9, 2), (5, 255))
    )
    head = struct.pack("<BBH", layout, planes, rng.choice((0, 0, 0, 1)))
    body = b""
    for _ in range(min(planes, 8)):
        stored = rng.choice((raw_length // 4, raw_length // 2, 0, 1, 0xFFFFFFFF, 9))
        data = rng.choice((bytes(min(stored, raw_length)), zstandard.compress(bytes(raw_length // 4)), b""))
        head += struct.pack("<B3xI", rng.choice((0, 1, 2, 3, 4)), rng.choice((stored, len(data))))
        body += data
    return head + body + bytes(rng.choice((0, raw_length % 4)))


# --- bytes ------------------------------------------------------------------------------------------------------------


def edit_bytes(data: bytes, rng: random.Random) -> bytes:
    """What storage may do to a file, or somebody who knows nothing of its digests."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 3, 10))):
        at = (
            rng.randrange(len(changed) + 1)
            if rng.random() < 0.5
            else rng.choice((0, len(changed))) + rng.randrange(-200, 200)
        )
        at = max(0, min(at, len(changed) - 1))
        kind = rng.randrange(7)
        if kind < 3 and changed:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 3:
            del changed[at : at + rng.choice((1, 8, 64, 1000, 1 << 30))]
        elif kind == 4:
            changed[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 8, 64))))
        elif kind == 5 and changed:
            length = rng.choice((1, 8, 16, 80))
            start = rng.randrange(len(changed))
            changed[at : at + length] = changed[start : start + length]
        else:
            changed[at : at + 8] = struct.pack("<Q", rng.choice(NUMBERS) & ((1 << 64) - 1))
    return bytes(changed)
