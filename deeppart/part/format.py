"""The layout of a part file: constants, records, limits, header and footer (docs/format.md).

    header (4096 bytes) | payload: contiguous chunks | index | footer (64 bytes)

All integers are little endian. Digests are big endian (canonical), so a hex dump shows them like the output of
``xxhsum``. The functions convert bytes to records and back, without file access.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from deeppart.errors import CorruptFileError, FormatError, NewerFormatError, short
from deeppart.model import Attempt, StepKey
from deeppart.part.fields import HEX32, number
from deeppart.part.signing import STRONG_DIGEST_BYTES, TAG_BYTES

#: Version of all files of a checkpoint: parts, parity, manifests, suspect records, and the documents in them.
FORMAT_VERSION: Final = 9

#: A non-ASCII first byte, then CR LF, ^Z, LF, as in PNG: a transfer in text mode changes it and so is detected.
HEADER_MAGIC: Final = b"\x89DPP\r\n\x1a\n"
INDEX_MAGIC: Final = b"DPPINDEX"
FOOTER_MAGIC: Final = b"DPPFOOTR"

#: Offset of the payload: a multiple of the page size, for O_DIRECT and mappings.
HEADER_BYTES: Final = 4096
FOOTER_BYTES: Final = 64
INDEX_HEAD_BYTES: Final = 64

#: Raw bytes per chunk, unless the caller chooses otherwise.
DEFAULT_CHUNK_BYTES: Final = 4 * 1024**2
#: A reader allocates no more memory than this for one chunk.
MAX_CHUNK_BYTES: Final = 64 * 1024**2
#: Most raw bytes per encoded byte of a chunk: a Zstandard block of at least four bytes decodes to at most 128 KiB
#: (RFC 8878, 3.1.1.2). So a part never needs more memory than this times its length.
MAX_EXPANSION: Final = 2**15
MAX_CHUNKS: Final = 2**24
MAX_SPANS: Final = 2**24
MAX_META_BYTES: Final = 256 * 1024**2
MAX_BASES: Final = 64
#: 64 MiB times 2**24. Sums of two lengths up to the limits cannot overflow 64 bits anywhere in the reader.
MAX_RAW_BYTES: Final = MAX_CHUNK_BYTES * MAX_CHUNKS
MAX_LEAF_BYTES: Final = 2**62
MAX_COUNTER: Final = 2**63 - 1
COUNTER: Final = number(0, MAX_COUNTER)
MAX_WORLD_SIZE: Final = 2**24
MAX_INDEX_BYTES: Final = (
    INDEX_HEAD_BYTES
    + MAX_CHUNKS * (80 + STRONG_DIGEST_BYTES)
    + MAX_SPANS * 40
    + MAX_BASES * 40
    + MAX_META_BYTES
    + TAG_BYTES
)
MIN_FILE_BYTES: Final = HEADER_BYTES + INDEX_HEAD_BYTES + FOOTER_BYTES
#: Longest file within the limits above; every length in a file is compared with it before it is used.
MAX_FILE_BYTES: Final = HEADER_BYTES + MAX_RAW_BYTES + MAX_INDEX_BYTES + FOOTER_BYTES

#: Flag of a chunk with bytes that only this rank has (not replicated).
FLAG_PER_RANK: Final = 1
KNOWN_FLAGS: Final = FLAG_PER_RANK

#: Values of a span's ``table``: bytes that all ranks share, or bytes that only this rank has.
SHARED_TABLE: Final = 0
RANK_TABLE: Final = 1

CHUNK_DTYPE: Final = np.dtype(
    [
        ("offset", "<u8"),
        ("encoded_length", "<u8"),
        ("raw_length", "<u8"),
        ("codec", "<u2"),
        ("flags", "<u2"),
        ("base", "<u4"),  # 0: the chunk is in this part; n: in base n of the table, counted from 1
        ("dtype", "S16"),
        ("encoded_digest", "u1", (16,)),
        ("raw_digest", "u1", (16,)),
    ]
)
SPAN_DTYPE: Final = np.dtype(
    [
        ("leaf", "<u4"),
        ("table", "<u4"),
        ("box", "<u8"),  # number in the division of a divided leaf; 0 for any other
        ("start", "<u8"),
        ("length", "<u8"),
        ("raw_offset", "<u8"),
    ]
)
BASE_DTYPE: Final = np.dtype([("index_digest", "u1", (16,)), ("nbytes", "<u8"), ("step", "<u8"), ("sequence", "<u8")])

#: A structured array of CHUNK_DTYPE, SPAN_DTYPE or BASE_DTYPE.
Table = npt.NDArray[np.void]

_HEADER = struct.Struct("<8sII16s16sQQIII")
_FOOTER = struct.Struct("<8sQQQ16s8s")
_DIGEST64_BYTES = 8
#: Valid dtype tags; the file pads them with zeros to 16 bytes.
DTYPE_TAG: Final = re.compile(rb"[A-Za-z0-9_.]{0,16}")

_PART_NAME = re.compile(r"part-([0-9]{5,8})-of-([0-9]{5,8})\.dpp", re.ASCII)
_STEP_NAME = re.compile(r"step-([0-9]{12,19})-([0-9a-f]{32})-([0-9]{6,19})", re.ASCII)


def part_file_name(rank: int, world_size: int) -> str:
    """Return the name of a part file inside its step directory, such as ``part-00003-of-00008.dpp``."""
    return f"part-{rank:05d}-of-{world_size:05d}.dpp"


def part_key(attempt: Attempt, rank: int) -> str:
    """Return the key of a rank's part in a store."""
    return f"{step_name(attempt.key)}/{part_file_name(rank, attempt.world_size)}"


def parse_part_file_name(name: str) -> tuple[int, int] | None:
    """Return ``(rank, world_size)`` if ``name`` is exactly what :func:`part_file_name` returns for them, else None."""
    match = _PART_NAME.fullmatch(name)
    if match is None:
        return None
    rank, world_size = int(match[1]), int(match[2])
    return (rank, world_size) if rank < world_size and name == part_file_name(rank, world_size) else None


def step_name(key: StepKey) -> str:
    """Return the name of an attempt's directory, such as ``step-000000000100-<session, 32 hex digits>-000007``."""
    return f"step-{key.step:012d}-{key.session}-{key.sequence:06d}"


def parse_step_name(name: str) -> StepKey | None:
    """Inverse of :func:`step_name`; None for any other name."""
    match = _STEP_NAME.fullmatch(name)
    if match is None:
        return None
    key = StepKey(int(match[1]), match[2], int(match[3]))
    return key if step_name(key) == name else None


#: The fields of an :class:`~deeppart.model.Attempt`.
ATTEMPT_FIELDS: Final = {
    "lineage": HEX32,
    "session": HEX32,
    "sequence": COUNTER,
    "step": COUNTER,
    "world_size": number(1, MAX_WORLD_SIZE),
}


def bad_attempt(attempt: Attempt, rank: int) -> str | None:
    """Return the reason why a part cannot have this attempt and rank, or None."""
    for name, field in ATTEMPT_FIELDS.items():
        if not field.accepts(value := getattr(attempt, name)):
            return f"{name} {short(value)} is not {field.expected}"
    is_there = number(0, attempt.world_size - 1).accepts(rank)
    return None if is_there else f"rank {short(rank)} is not in a world of {attempt.world_size}"


@dataclass(frozen=True, slots=True)
class PartHeader:
    """The identity of a part: the first 4096 bytes of the file.

    Attributes:
        attempt, rank: the attempt and rank that saved it.
        signed: true if the index has strong digests of the chunks, and ends with a tag.
    """

    attempt: Attempt
    rank: int
    signed: bool = False

    def encode(self) -> bytes:
        """Return the header block, 4096 bytes."""
        wrong = bad_attempt(self.attempt, self.rank)
        if wrong is not None:
            raise FormatError("a part cannot be written for this checkpoint", found=wrong)
        attempt = self.attempt
        fields = _HEADER.pack(
            HEADER_MAGIC,
            FORMAT_VERSION,
            HEADER_BYTES,
            bytes.fromhex(attempt.lineage),
            bytes.fromhex(attempt.session),
            attempt.sequence,
            attempt.step,
            self.rank,
            attempt.world_size,
            int(self.signed),
        )
        return header_block(fields)

    @classmethod
    def decode(cls, data: bytes | memoryview, *, where: str) -> PartHeader:
        """Read and check a header block of 4096 bytes."""
        values = header_values(data, _HEADER, HEADER_MAGIC, "part file", where)
        lineage, session, sequence, step, rank, world_size, signed = values
        if signed > 1:
            raise corrupt("the header of a part is not as it is written", found=f"signed {signed}", where=where)
        header = cls(Attempt(lineage.hex(), session.hex(), sequence, step, world_size), rank, bool(signed))
        wrong = bad_attempt(header.attempt, header.rank)
        if wrong is not None:
            raise corrupt("the header holds an impossible value", found=wrong, where=where)
        return header


def header_block(fields: bytes) -> bytes:
    """Return the first 4096 bytes of a file: its fields, zeros, and the digest of both."""
    body = fields.ljust(HEADER_BYTES - _DIGEST64_BYTES, b"\0")
    return body + xxhash.xxh3_64_digest(body)


def header_values(
    data: bytes | memoryview, layout: struct.Struct, magic: bytes, what: str, where: str
) -> tuple[Any, ...]:
    """Check magic, digest, version and length of a header block; return the other fields."""
    block = bytes(data)
    found, version, length, *values = layout.unpack_from(block)
    if found != magic:
        raise corrupt(f"not a deeppart {what}", expected=repr(magic), found=repr(found), where=where)
    # Checked before the version, so that a flipped bit in it is not taken for another version: magic, version and this
    # digest have the same offsets in all versions (docs/format.md).
    body, digest = block[:-_DIGEST64_BYTES], block[-_DIGEST64_BYTES:]
    check_digest("header", body, digest, where=where)
    check_version(what, version, where)
    if length != HEADER_BYTES or body[layout.size :].strip(b"\0"):
        raise corrupt(
            f"the header of a {what} is not as it is written",
            expected=f"{HEADER_BYTES} bytes, zeros behind the fields",
            found=f"{length} bytes",
            where=where,
        )
    return tuple(values)


@dataclass(frozen=True, slots=True)
class PartFooter:
    """The last 64 bytes of the file, which locate the index.

    Attributes:
        index_offset: start of the index and end of the payload, in bytes from the start of the file.
        index_length: bytes of the index.
        file_length: bytes of the whole file, footer included.
        index_digest: xxh3-128 of the index, 16 bytes.
    """

    index_offset: int
    index_length: int
    file_length: int
    index_digest: bytes

    def encode(self) -> bytes:
        """Return the footer, 64 bytes."""
        fields = (self.index_offset, self.index_length, self.file_length, self.index_digest)
        body = _FOOTER.pack(FOOTER_MAGIC, *fields, bytes(8))
        return body + xxhash.xxh3_64_digest(body)

    @classmethod
    def decode(cls, data: bytes | memoryview, *, file_length: int, where: str) -> PartFooter:
        """Read and check a footer of 64 bytes against the actual length of the file."""
        block = bytes(data)
        magic, index_offset, index_length, length, index_digest, reserved = _FOOTER.unpack_from(block)
        if magic != FOOTER_MAGIC:
            raise corrupt(
                "the part file does not end with a footer: it is truncated, or bytes were appended",
                expected=repr(FOOTER_MAGIC),
                found=repr(magic),
                where=where,
            )
        check_digest("footer", block[: _FOOTER.size], block[_FOOTER.size :], where=where)
        if length != file_length:
            raise corrupt(
                "the part file has another length than its footer says",
                expected=f"{length} bytes",
                found=f"{file_length} bytes",
                where=where,
            )
        fits = index_offset >= HEADER_BYTES and index_length >= INDEX_HEAD_BYTES
        if reserved != bytes(8) or not fits or index_offset + index_length + FOOTER_BYTES != file_length:
            raise corrupt(
                "the footer has an impossible position of the index",
                expected=f"an index between byte {HEADER_BYTES} and the footer of a file of {file_length} bytes",
                found=f"{index_length} bytes from byte {index_offset}",
                where=where,
            )
        return cls(index_offset, index_length, length, index_digest)


def check_version(what: str, version: int, where: str) -> None:
    """Refuse a file of any version but this one."""
    if version == FORMAT_VERSION:
        return
    newer = version > FORMAT_VERSION
    reader = "a newer deeppart" if newer else "the version of deeppart that has written it"
    raise (NewerFormatError if newer else FormatError)(
        f"this {what} has format version {version}; this deeppart reads version {FORMAT_VERSION}",
        expected=f"format version {FORMAT_VERSION}",
        found=f"format version {version}",
        where=where,
        todo=f"read the checkpoint with {reader}",
    )


def check_digest(what: str, body: bytes | memoryview, digest: bytes | memoryview, *, where: str) -> None:
    """Raise unless ``digest`` is the xxh3 digest of ``body``: the one of 64 bits if it has 8 bytes, else of 128."""
    expected = bytes(digest)
    found = xxhash.xxh3_64_digest(body) if len(expected) == _DIGEST64_BYTES else xxhash.xxh3_128_digest(body)
    if found != expected:
        raise corrupt(
            f"the digest of the {what} does not hold", expected=expected.hex(), found=found.hex(), where=where
        )


def corrupt(
    summary: str, *, expected: str | None = None, found: str | None = None, where: str | None = None
) -> CorruptFileError:
    """Return the error for a damaged file, with the usual advice."""
    todo = "restore from another copy of this file; `deeppart verify` tells which files are sound"
    return CorruptFileError(summary, expected=expected, found=found, where=where, todo=todo)
