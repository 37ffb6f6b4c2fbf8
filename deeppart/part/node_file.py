"""A node file: the part files of the ranks of one node, as sections of one file (docs/format.md).

    section (a part file) | section | ... | table | footer (64 bytes)

Sections begin at multiples of 1 MiB, in the order of their ranks; what lies between them has no meaning. A section is
byte for byte a part file, with header, index and digests of its own: the table only says where it lies. So the table
needs no signature: what it could lead to is checked as any part is.

Invariants of a sound table
---------------------------
* Ranks ascend, and the lowest is the one in the name of the file.
* Sections do not overlap, and end before the table; this ends where the footer begins, and that where the file ends.

The path of a section is the path of its file, and the name that the part file would have: ``.../node-00000-of-00008.dpn
/part-00003-of-00008.dpp``. No file can have this path, so whatever does not know sections fails there.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import xxhash

from deeppart.errors import CorruptFileError, FormatError, NewerFormatError
from deeppart.part import format as fmt
from deeppart.part.format import check_digest, corrupt, parse_part_file_name, part_file_name

NODE_FILE_VERSION: Final = 1
TABLE_MAGIC: Final = b"DPNTABLE"
NODE_FOOTER_MAGIC: Final = b"DPNFOOTR"
#: Sections begin at multiples of this: what file systems cut files into, and pages, are no larger or divide it.
SECTION_ALIGNMENT: Final = 1 << 20
#: The table begins at a multiple of this.
TABLE_ALIGNMENT: Final = 4096
NODE_FOOTER_BYTES: Final = 64
TABLE_HEAD_BYTES: Final = 64

_HEAD = struct.Struct("<8sIIQ40s")
_ROW = struct.Struct("<IIQQ16s")
_FOOTER = struct.Struct("<8sQQQ16s8s")
#: As much of a table as tells whose it is.
TABLE_NAME_BYTES: Final = TABLE_HEAD_BYTES + _ROW.size
_NAME = re.compile(r"node-([0-9]{5,8})-of-([0-9]{5,8})\.dpn", re.ASCII)


def node_file_name(first: int, world_size: int) -> str:
    """The name of the node file of the ranks of which ``first`` is the lowest, such as ``node-00008-of-00064.dpn``."""
    return f"node-{first:05d}-of-{world_size:05d}.dpn"


def parse_node_file_name(name: str) -> tuple[int, int] | None:
    """Return ``(lowest rank, world_size)`` when ``name`` is exactly what :func:`node_file_name` gives, else None."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    first, world_size = int(match[1]), int(match[2])
    return (first, world_size) if first < world_size and name == node_file_name(first, world_size) else None


def section_file(first: int, rank: int, world_size: int) -> str:
    """A manifest's name of a part in a node file: ``node-00000-of-00008.dpn/part-00003-of-00008.dpp``."""
    return f"{node_file_name(first, world_size)}/{part_file_name(rank, world_size)}"


@dataclass(frozen=True, slots=True)
class SectionPath:
    """What the path of a section says.

    Attributes:
        file: the path of the node file.
        first: the lowest rank of the node.
        rank: whose part it is.
        world_size: of both names.
    """

    file: str
    first: int
    rank: int
    world_size: int


def parse_section_path(path: str | os.PathLike[str]) -> SectionPath | None:
    """Take the path of a section apart; None for that of any other file."""
    file, name = os.path.split(os.fspath(path))
    part = parse_part_file_name(name)
    node = None if part is None else parse_node_file_name(os.path.basename(file))
    if part is None or node is None or node[1] != part[1] or node[0] > part[0]:
        return None
    return SectionPath(file, node[0], *part)


@dataclass(frozen=True, slots=True)
class Section:
    """A row of the table: the place of one part.

    Attributes:
        rank: whose part.
        offset: of its first byte in the node file, a multiple of 1 MiB.
        nbytes: length of the part file.
        index_digest: xxh3-128 of its index, 32 hex digits.
    """

    rank: int
    offset: int
    nbytes: int
    index_digest: str

    @property
    def end(self) -> int:
        """The offset behind its last byte."""
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class NodeFooter:
    """The last 64 bytes of a node file: where its table lies. The same in every version.

    Attributes:
        table_offset, table_length: of the table.
        file_length: bytes of the whole file, footer included.
        table_digest: xxh3-128 of the table, 16 bytes.
    """

    table_offset: int
    table_length: int
    file_length: int
    table_digest: bytes

    def encode(self) -> bytes:
        """Return the footer, 64 bytes."""
        fields = (self.table_offset, self.table_length, self.file_length, self.table_digest)
        body = _FOOTER.pack(NODE_FOOTER_MAGIC, *fields, bytes(8))
        return body + xxhash.xxh3_64_digest(body)

    @classmethod
    def decode(cls, data: bytes | memoryview, *, file_length: int, where: str) -> NodeFooter:
        """Read and check a footer of 64 bytes against the actual length of the file."""
        block = bytes(data)
        magic, offset, length, whole, digest, reserved = _FOOTER.unpack_from(block)
        if magic != NODE_FOOTER_MAGIC:
            raise corrupt(
                "the node file does not end with a footer: it is truncated, or bytes were appended",
                expected=repr(NODE_FOOTER_MAGIC),
                found=repr(magic),
                where=where,
            )
        check_digest("node file's footer", block[: _FOOTER.size], block[_FOOTER.size :], where=where)
        if whole != file_length:
            raise corrupt(
                "the node file has another length than its footer says",
                expected=f"{whole} bytes",
                found=f"{file_length} bytes",
                where=where,
            )
        if reserved != bytes(8) or length < TABLE_HEAD_BYTES or offset + length + NODE_FOOTER_BYTES != file_length:
            raise corrupt(
                "the footer puts the table of a node file where it cannot be",
                expected=f"a table that ends at the footer of a file of {file_length} bytes",
                found=f"{length} bytes from byte {offset}",
                where=where,
            )
        return cls(offset, length, whole, digest)

    def check_length(self, world_size: int, where: str) -> None:
        """Before memory is taken for the table: it cannot have more rows than there are ranks."""
        most = TABLE_HEAD_BYTES + world_size * _ROW.size
        if self.table_length > most:
            found = f"{self.table_length} bytes"
            raise corrupt("the table of a node file is too long", expected=f"{most}", found=found, where=where)


@dataclass(frozen=True, slots=True)
class NodeTable:
    """Where the sections of a node file lie.

    Attributes:
        first: the lowest rank, which the file is named after.
        world_size: of the checkpoint.
        sections: by ascending rank, one at least.
    """

    first: int
    world_size: int
    sections: tuple[Section, ...]

    @property
    def offset(self) -> int:
        """Where the table begins: behind the last section."""
        return -(-self.sections[-1].end // TABLE_ALIGNMENT) * TABLE_ALIGNMENT

    def section(self, rank: int, where: str) -> Section:
        """The section of a rank."""
        for each in self.sections:
            if each.rank == rank:
                return each
        ranks = ", ".join(str(each.rank) for each in self.sections[:8])
        raise corrupt(
            "a node file has no section of a rank that should be in it",
            expected=f"a section of rank {rank}",
            found=f"{len(self.sections)} sections, of ranks {ranks}" + (", ..." if len(self.sections) > 8 else ""),
            where=where,
        )

    @staticmethod
    def name_in(data: bytes | memoryview) -> tuple[int, int]:
        """Lowest rank and world size that the first bytes of a table say, unchecked; see :data:`TABLE_NAME_BYTES`."""
        return _ROW.unpack_from(data, TABLE_HEAD_BYTES)[0], _HEAD.unpack_from(data)[2]

    def encode(self) -> bytes:
        """Return table and footer, which stand at :attr:`offset` in the file."""
        where = f"{node_file_name(self.first, self.world_size)}, being written"
        try:
            data = _HEAD.pack(TABLE_MAGIC, NODE_FILE_VERSION, self.world_size, len(self.sections), bytes(40))
            for each in self.sections:
                data += _ROW.pack(each.rank, 0, each.offset, each.nbytes, bytes.fromhex(each.index_digest))
            whole = self.offset + len(data) + NODE_FOOTER_BYTES
            footer = NodeFooter(self.offset, len(data), whole, xxhash.xxh3_128_digest(data))
            NodeTable.decode(data, footer, self.first, self.world_size, where=where)
        except (CorruptFileError, struct.error, IndexError, ValueError) as error:
            found = error.found or error.summary if isinstance(error, CorruptFileError) else str(error)
            raise FormatError("the table of a node file cannot be written", found=found, where=where) from error
        return data + footer.encode()

    @classmethod
    def decode(
        cls, data: bytes | memoryview, footer: NodeFooter, first: int, world_size: int, *, where: str
    ) -> NodeTable:
        """Read and check a table."""
        table = bytes(data)
        check_digest("table of a node file", table, footer.table_digest, where=where)
        magic, version, ranks, count, reserved = _HEAD.unpack_from(table)
        if magic != TABLE_MAGIC:
            raise corrupt("a node file has no table", expected=repr(TABLE_MAGIC), found=repr(magic), where=where)
        if version > NODE_FILE_VERSION:
            raise NewerFormatError(
                f"this node file has format version {version}; this deeppart reads up to version {NODE_FILE_VERSION}",
                expected=f"format version {NODE_FILE_VERSION}",
                found=f"format version {version}",
                where=where,
                todo="read the checkpoint with a newer deeppart",
            )
        fits = 1 <= count <= ranks and len(table) == TABLE_HEAD_BYTES + count * _ROW.size
        if version < 1 or reserved != bytes(40) or ranks != world_size or not fits:
            raise corrupt(
                "the head of a node file's table holds impossible values",
                expected=f"version 1 to {NODE_FILE_VERSION}, sections of {world_size} ranks in {len(table)} bytes",
                found=f"version {version}, {count} sections of {ranks} ranks",
                where=where,
            )
        rows = list(_ROW.iter_unpack(table[TABLE_HEAD_BYTES:]))
        sections = tuple(Section(rank, offset, nbytes, digest.hex()) for rank, _, offset, nbytes, digest in rows)
        found = cls(first, world_size, sections)
        wrong = "reserved bytes that are not zero" if any(row[1] for row in rows) else found._wrong(footer)
        if wrong is not None:
            raise corrupt("the table of a node file cannot be", found=wrong, where=where)
        return found

    def _wrong(self, footer: NodeFooter) -> str | None:
        """What is wrong with the sections, or None."""
        for each in self.sections:
            if each.rank >= self.world_size:
                return f"a section of rank {each.rank} of {self.world_size}"
            if not fmt.MIN_FILE_BYTES <= each.nbytes <= fmt.MAX_FILE_BYTES:
                return f"a section of {each.nbytes} bytes"
            if each.offset % SECTION_ALIGNMENT or each.end > footer.table_offset:
                return f"a section of {each.nbytes} bytes at {each.offset}, the table at {footer.table_offset}"
        for one, other in pairwise(self.sections):
            if other.rank <= one.rank:
                return f"a section of rank {other.rank} behind that of rank {one.rank}"
            if other.offset < one.end:
                return f"a section at {other.offset} in one that ends at {one.end}"
        if self.sections[0].rank != self.first or self.sections[0].offset:
            return f"rank {self.sections[0].rank} at {self.sections[0].offset} comes first, not rank {self.first} at 0"
        return None if footer.table_offset == self.offset else f"a table at {footer.table_offset}, not {self.offset}"
