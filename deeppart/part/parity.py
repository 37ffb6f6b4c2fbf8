"""The bytes of a parity file: one member's share of the parity of a set (docs/format.md).

    header (4096 bytes) | payload: m blocks per row, contiguous | index | footer (64 bytes)

The checks have the same order as for a part file: no data is used before its digest is verified. The index has the
members of the set, and for each stripe of which this member stores a block the digests of all its blocks, data blocks
included. So a rebuild can check every block before using it.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from deeppart.errors import FormatError, short
from deeppart.model import Attempt, ParityIdentity, ParityMember
from deeppart.part import format as fmt
from deeppart.part.fields import HEX32, number
from deeppart.part.format import PartFooter, bad_attempt, check_digest, corrupt
from deeppart.part.json_text import parse_json
from deeppart.part.source import ByteSource
from deeppart.part.writer import Sink
from deeppart.plan.redundancy import ALIGNMENT, MOST_MEMBERS, Stripes

PARITY_MAGIC: Final = b"\x89DPY\r\n\x1a\n"
INDEX_MAGIC: Final = b"DPYINDEX"
DIGEST_BYTES: Final = 16
MAX_BLOCK_BYTES: Final = 64 << 20
MAX_DIGEST_TABLE_BYTES: Final = 1 << 30

_HEADER = struct.Struct("<8sII16s16sQQIIIIQQ16s")
_INDEX_HEAD = struct.Struct("<8sQQ8s32s")
_NAME = re.compile(r"parity-([0-9a-f]{16})-([0-9]{3})-of-([0-9]{3})\.dpy", re.ASCII)

#: ``[row, parity block kept, block of its stripe]`` -> 16 digest bytes.
DigestTable = npt.NDArray[np.uint8]


def set_id(identity: ParityIdentity) -> str:
    """Return 16 hex digits that identify a set: the same for all members, and practically unique."""
    attempt = identity.attempt
    members = [[member.part, member.nbytes, member.index_digest] for member in identity.members]
    document = [attempt.lineage, attempt.session, attempt.sequence, attempt.step, attempt.world_size]
    text = json.dumps([document, members, identity.tolerate, identity.block_bytes])
    return xxhash.xxh3_64_hexdigest(text.encode())


def parity_file_name(identity: ParityIdentity) -> str:
    """Return the name of a parity file in its step directory, such as ``parity-0123456789abcdef-001-of-004.dpy``."""
    return f"parity-{set_id(identity)}-{identity.place:03d}-of-{len(identity.members):03d}.dpy"


def is_parity_file_name(name: str) -> bool:
    """True if a name has the form of :func:`parity_file_name`."""
    return _NAME.fullmatch(name) is not None


def stripes_of(identity: ParityIdentity) -> Stripes:
    """Return the stripes of the set."""
    return Stripes(len(identity.members), identity.tolerate, identity.block_bytes, identity.longest_bytes)


class ParityWriter:
    """Writes one parity file, front to back: ``add_row`` for each row, then ``finish``."""

    def __init__(self, sink: Sink, identity: ParityIdentity) -> None:
        wrong = _bad_identity(identity)
        if wrong is not None:
            raise FormatError("a parity file cannot be written", found=wrong)
        self._sink, self._identity = sink, identity
        self._stripes = stripes_of(identity)
        self._rows, self._finished = 0, False
        header = _encode_header(identity)
        self._header_digest = header[-8:]
        sink.write(header)

    def add_row(self, blocks: Sequence[npt.NDArray[np.uint8]]) -> None:
        """Append the parity blocks of the next row."""
        stripes, row = self._stripes, self._rows
        lengths = [block.nbytes for block in blocks]
        if row >= stripes.rows or lengths != [stripes.length(row)] * stripes.tolerate:
            raise FormatError(
                "a row of parity has another shape than its set",
                expected=f"{stripes.rows} rows, blocks of {stripes.length(row)} bytes",
                found=f"row {row}, blocks of {lengths} bytes",
            )
        for block in blocks:
            self._sink.write(block.data)
        self._rows += 1

    def finish(self, digests: DigestTable) -> str:
        """Write index and footer. Returns the xxh3-128 of the index, 32 hex digits."""
        stripes = self._stripes
        expected = (stripes.rows, stripes.tolerate, stripes.members, DIGEST_BYTES)
        right = digests.dtype == np.uint8 and digests.shape == expected
        if self._rows != stripes.rows or self._finished or not right:
            raise FormatError(
                "a parity file was finished too early, or twice, or with digests of other blocks",
                expected=f"{stripes.rows} rows, digests {expected}",
                found=f"{self._rows} rows, digests {digests.shape}",
            )
        members = json.dumps([asdict(member) for member in self._identity.members]).encode()
        self._finished = True
        table = digests.tobytes()
        head = _INDEX_HEAD.pack(INDEX_MAGIC, len(members), len(table), self._header_digest, bytes(32))
        index = head + members + table
        offset = fmt.HEADER_BYTES + self._stripes.parity_bytes
        digest = xxhash.xxh3_128_digest(index)
        self._sink.write(index)
        self._sink.write(PartFooter(offset, len(index), offset + len(index) + fmt.FOOTER_BYTES, digest).encode())
        return digest.hex()


class ParityReader:
    """An open parity file. Construction checks header, footer and index completely.

    Attributes:
        identity: the set, and the member whose share this is.
        stripes: the stripes of the set.
        digests: digests of all blocks of the stripes with a block in this file: uint8[rows, m, k + m, 16].
        index_digest: xxh3-128 of the index, 32 hex digits.
    """

    def __init__(self, source: ByteSource, *, where: str) -> None:
        self._source, self._where = source, where
        if source.size < fmt.MIN_FILE_BYTES:
            raise corrupt("a parity file cannot be so short", found=f"{source.size} bytes", where=where)
        block = bytes(source.read_at(0, fmt.HEADER_BYTES))
        attempt, numbers = _decode_header(block, where)
        end = source.read_at(source.size - fmt.FOOTER_BYTES, fmt.FOOTER_BYTES)
        footer = PartFooter.decode(end, file_length=source.size, where=where)
        if footer.index_length > MAX_DIGEST_TABLE_BYTES:
            raise corrupt("the index of a parity file is too long", found=f"{footer.index_length} bytes", where=where)
        index = bytes(source.read_at(footer.index_offset, footer.index_length))
        check_digest("index", index, footer.index_digest, where=where)
        members, table = _decode_index(index, block[-8:], where)
        self.identity = ParityIdentity(attempt, members, numbers.tolerate, numbers.block_bytes, numbers.place)
        wrong = _bad_identity(self.identity)
        if wrong is None:
            expected = (len(members), self.identity.longest_bytes, _encode_name(self.identity))
            if (numbers.members, numbers.longest_bytes, numbers.name) != expected:
                wrong = "header and index describe different sets"
        if wrong is not None:
            raise corrupt("the identity of a parity file is impossible", found=wrong, where=where)
        self.stripes = stripes_of(self.identity)
        shape = (self.stripes.rows, self.stripes.tolerate, self.stripes.members, DIGEST_BYTES)
        payload = footer.index_offset - fmt.HEADER_BYTES
        if len(table) != int(np.prod(shape)) or payload != self.stripes.parity_bytes:
            raise corrupt(
                "a parity file has another length than its set",
                expected=f"{self.stripes.parity_bytes} bytes of parity",
                found=f"{payload} bytes, and {len(table)} bytes of digests",
                where=where,
            )
        self.index_digest = footer.index_digest.hex()
        self.digests: DigestTable = np.frombuffer(table, dtype=np.uint8).reshape(shape)

    def read_block(self, row: int, index: int, memory: npt.NDArray[np.uint8]) -> bool:
        """Read a block into ``memory``, which has its length. Returns whether its digest matches."""
        self._source.read_into(self.offset(row, index), memory.data)
        expected = self.digests[row, index, self.stripes.data_blocks + index].tobytes()
        return bool(xxhash.xxh3_128_digest(memory.data) == expected)

    def offset(self, row: int, index: int) -> int:
        """Return the offset of a block in the file."""
        return fmt.HEADER_BYTES + self.stripes.parity_start(row, index)

    def verify(self, *, pace: Callable[[int], None] = lambda nbytes: None) -> None:
        """Read every block and check its digest. ``pace`` is called with the number of bytes before each read."""
        memory = np.empty(self.stripes.block_bytes, dtype=np.uint8)
        for row in range(self.stripes.rows):
            for index in range(self.stripes.tolerate):
                block = memory[: self.stripes.length(row)]
                pace(block.size)
                if not self.read_block(row, index, block):
                    start = self.offset(row, index)
                    raise corrupt(
                        "the digest of a block of parity does not hold",
                        where=f"{self._where}, row {row}, block {index} (bytes {start} to {start + block.size})",
                    )


def _encode_name(identity: ParityIdentity) -> bytes:
    return bytes.fromhex(set_id(identity)).ljust(16, b"\0")


def _encode_header(identity: ParityIdentity) -> bytes:
    attempt = identity.attempt
    fields = _HEADER.pack(
        PARITY_MAGIC,
        fmt.FORMAT_VERSION,
        fmt.HEADER_BYTES,
        bytes.fromhex(attempt.lineage),
        bytes.fromhex(attempt.session),
        attempt.sequence,
        attempt.step,
        attempt.world_size,
        len(identity.members),
        identity.tolerate,
        identity.place,
        identity.block_bytes,
        identity.longest_bytes,
        _encode_name(identity),
    )
    return fmt.header_block(fields)


class _Numbers(NamedTuple):
    """The fields of the header besides the attempt. Some follow from the index, and must agree with it."""

    members: int
    tolerate: int
    place: int
    block_bytes: int
    longest_bytes: int
    name: bytes


def _decode_header(block: bytes, where: str) -> tuple[Attempt, _Numbers]:
    values = fmt.header_values(block, _HEADER, PARITY_MAGIC, "parity file", where)
    lineage, session, sequence, step, world_size, *numbers = values
    attempt = Attempt(lineage.hex(), session.hex(), sequence, step, world_size)
    return attempt, _Numbers._make(numbers)


def _decode_index(index: bytes, header_digest: bytes, where: str) -> tuple[tuple[ParityMember, ...], bytes]:
    magic, members_length, table_length, sealed, reserved = (
        _INDEX_HEAD.unpack_from(index) if len(index) >= _INDEX_HEAD.size else (b"", 0, 0, b"", b"")
    )
    whole = _INDEX_HEAD.size + members_length + table_length
    if magic != INDEX_MAGIC or whole != len(index) or sealed != header_digest or reserved.strip(b"\0"):
        raise corrupt("the index is not one of a parity file, or not this one's", where=where)
    try:
        documents = parse_json(index[_INDEX_HEAD.size : _INDEX_HEAD.size + members_length])
        members = tuple(ParityMember(**document) for document in documents)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise corrupt("the members of a parity file cannot be read", found=str(error)[:200], where=where) from error
    return members, index[_INDEX_HEAD.size + members_length :]


def _bad_identity(identity: ParityIdentity) -> str | None:
    """Return the reason why an identity is not valid, or None."""
    wrong = bad_attempt(identity.attempt, 0)
    if wrong is not None:
        return wrong
    members, tolerate = len(identity.members), identity.tolerate
    if not (2 <= members <= MOST_MEMBERS and 1 <= tolerate < members and 0 <= identity.place < members):
        return f"member {identity.place} of {members}, of which {tolerate} may be lost"
    if not 0 < identity.block_bytes <= MAX_BLOCK_BYTES or identity.block_bytes % ALIGNMENT:
        return f"blocks of {identity.block_bytes} bytes"
    parts = [member.part for member in identity.members if member.part is not None]
    allowed = {
        "part": number(0, identity.attempt.world_size - 1),
        "nbytes": number(fmt.MIN_FILE_BYTES, fmt.MAX_FILE_BYTES),
        "index_digest": HEX32,
    }
    for member in identity.members:
        if member.part is None:
            sound = type(member.nbytes) is int and member == ParityMember(None, 0, "")
        else:
            sound = all(field.accepts(getattr(member, name)) for name, field in allowed.items())
        if not sound:
            return f"a member with part {short(member.part)} of {short(member.nbytes)} bytes"
    if len(set(parts)) != len(parts) or not parts:
        return "no part, or a part twice"
    stripes = stripes_of(identity)
    if stripes.rows * tolerate * members * DIGEST_BYTES > MAX_DIGEST_TABLE_BYTES // 2:
        return f"{stripes.rows} rows, more than the digest table can hold"
    return None
