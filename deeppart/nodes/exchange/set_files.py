"""The files of parity sets that a rebuild may use: which exist, which rank reads them, and which blocks are good."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from deeppart.comm import Comm, Operation
from deeppart.errors import DeeppartError, StorageError, lacks_resources
from deeppart.model import ParityIdentity
from deeppart.nodes.exchange.memory import Blocks, Bytes
from deeppart.part import ParityReader, set_id, stripes_of
from deeppart.plan.redundancy import Stripes
from deeppart.plan.restart import BlockFile, Rebuild

_DIGEST_BYTES = 16
#: A block whose read raises one of these is not good; the other ranks wait for this result.
READ_ERRORS = (DeeppartError, OSError, MemoryError)
Bits = npt.NDArray[np.bool_]
T = TypeVar("T")


@dataclass(slots=True)
class ParitySetFiles:
    """The known files of one parity set.

    Attributes:
        identity: of the set; its place does not matter.
        files: ("data" or "parity", place) -> files; there may be several copies of a part.
        digests: stripe -> digests of its blocks, uint8[rows, k + m, 16].
        good: ("data" or "parity", place, number of the file) -> which blocks are good, bool[rows, k or m]; None before
            blocks were checked.
        doubtful: places whose parts are being rebuilt; their files, if any, are not considered good.
    """

    identity: ParityIdentity
    files: dict[tuple[str, int], list[BlockFile]] = field(default_factory=dict)
    digests: dict[int, npt.NDArray[np.uint8]] = field(default_factory=dict)
    good: dict[tuple[str, int, int], Bits] | None = None
    doubtful: set[int] = field(default_factory=set)

    @property
    def stripes(self) -> Stripes:
        """The division of the set's parts into rows and stripes."""
        return stripes_of(self.identity)

    def add(self, rebuild: Rebuild) -> None:
        """Add the files that a rebuild may use."""
        for kind, files in (("data", rebuild.data), ("parity", rebuild.parity)):
            for piece in files:
                known = self.files.setdefault((kind, piece.place), [])
                if piece not in known:
                    known.append(piece)

    def pieces(self) -> Iterator[tuple[str, int, BlockFile]]:
        """Yield (kind, number of the file within its place, file) for every file."""
        for kind, place in sorted(self.files):
            for which, piece in enumerate(self.files[kind, place]):
                yield kind, which, piece

    def which_is_good(self, kind: str, place: int, row: int, index: int) -> int | None:
        """The number of a file of a place with a good copy of a block, or None."""
        files = self.files.get((kind, place), ())
        if self.good is None:
            return 0 if files and not (kind == "data" and place in self.doubtful) else None
        for which in range(len(files)):
            bits = self.good.get((kind, place, which))
            if bits is not None and bits[row, index]:
                return which
        return None

    def is_empty(self, kind: str, place: int, row: int, index: int) -> bool:
        """True if a block is beyond the end of its part, and so consists of zeros."""
        return kind == "data" and not self.stripes.filled(row, index, self.identity.members[place].nbytes)


def holder_of(piece: BlockFile) -> int:
    """The rank that reads a file; files are spread over the ranks that can read them."""
    return piece.readers[piece.place % len(piece.readers)]


class SetFiles:
    """The open files of the sets that this rank reads.

    Attributes:
        shortage: first error caused by a lack of resources, such as the limit of open files, rather than by a file;
            None if there was none.
    """

    def __init__(self, rank: int, at: Callable[[str], Path] = Path) -> None:
        self._rank, self._at = rank, at
        self.shortage: StorageError | None = None
        self._sources: dict[str, Blocks] = {}
        self._readers: dict[str, ParityReader] = {}

    def mine(self, piece: BlockFile) -> bool:
        """True if this rank reads the file."""
        return holder_of(piece) == self._rank

    def _open(self, piece: BlockFile) -> Blocks:
        if piece.path not in self._sources:
            self._sources[piece.path] = Blocks(self._at(piece.path))
        return self._sources[piece.path]

    def parity(self, piece: BlockFile) -> ParityReader:
        """A parity file with checked header and tables."""
        if piece.path not in self._readers:
            self._readers[piece.path] = self._noting(lambda: ParityReader(self._open(piece).source, where=piece.path))
        return self._readers[piece.path]

    def _noting(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except StorageError as error:
            if self.shortage is None and lacks_resources(error):
                self.shortage = error
            raise

    def close(self) -> None:
        """Close all files."""
        for source in self._sources.values():
            source.close()

    def get(self, entry: ParitySetFiles, kind: str, piece: BlockFile, row: int, index: int, memory: Bytes) -> Bytes:
        """Block ``index`` of a row, in ``memory`` or mapped; zeros beyond the end of a part."""
        return self._noting(lambda: self._get(entry, kind, piece, row, index, memory))

    def _get(self, entry: ParitySetFiles, kind: str, piece: BlockFile, row: int, index: int, memory: Bytes) -> Bytes:
        block = memory[: entry.stripes.length(row)]
        if kind == "parity":
            return self._open(piece).get(self.parity(piece).offset(row, index), block.size, block)
        filled = entry.stripes.filled(row, index, entry.identity.members[piece.place].nbytes)
        if not filled:
            block[:] = 0  # without reading, since there may be no file
            return block
        return self._open(piece).get(entry.stripes.start(row, index), filled, block)


def _tell_digests(files: SetFiles, sets: dict[str, ParitySetFiles]) -> bytes:
    """The digest tables of the parity files that this rank reads."""
    tables: list[Any] = []
    for name, entry in sets.items():
        for kind, _, piece in entry.pieces():
            if kind == "parity" and files.mine(piece):
                try:
                    reader = files.parity(piece)
                except READ_ERRORS:
                    continue  # its blocks are not good, either
                if set_id(reader.identity) == name and reader.identity.place == piece.place:
                    tables.append([name, piece.place, reader.digests.tobytes().hex()])
    return json.dumps(tables).encode()


def _learn_digests(text: bytes, sets: dict[str, ParitySetFiles]) -> None:
    for name, place, table in json.loads(text):
        entry = sets[name]
        stripes = entry.stripes
        digests = np.frombuffer(bytes.fromhex(table), dtype=np.uint8)
        digests = digests.reshape(stripes.rows, stripes.tolerate, stripes.members, _DIGEST_BYTES)
        for j in range(stripes.tolerate):
            entry.digests.setdefault(stripes.kept_stripe(place, j), digests[:, j])


def _check_pieces(files: SetFiles, sets: dict[str, ParitySetFiles]) -> bytes:
    """The good blocks of the files that this rank reads."""
    tables = [
        [name, kind, piece.place, which, np.packbits(_good_blocks(files, entry, kind, piece)).tobytes().hex()]
        for name, entry in sets.items()
        for kind, which, piece in entry.pieces()
        if files.mine(piece)
    ]
    return json.dumps(tables).encode()


def _good_blocks(files: SetFiles, entry: ParitySetFiles, kind: str, piece: BlockFile) -> Bits:
    stripes, place = entry.stripes, piece.place
    count = stripes.data_blocks if kind == "data" else stripes.tolerate
    good = np.zeros((stripes.rows, count), dtype=np.bool_)
    memory = np.empty(stripes.block_bytes, dtype=np.uint8)
    for row in range(stripes.rows):
        for index in range(count):
            if kind == "data":
                stripe, column = stripes.stripe_of(place, index), index
            else:
                stripe, column = stripes.kept_stripe(place, index), stripes.data_blocks + index
            if stripe not in entry.digests:
                continue  # there is no parity of this stripe, so no rebuild uses it
            try:
                block = files.get(entry, kind, piece, row, index, memory)
            except READ_ERRORS:
                continue
            good[row, index] = xxhash.xxh3_128_digest(block.data) == entry.digests[stripe][row, column].tobytes()
    return good


def _learn_bits(text: bytes, sets: dict[str, ParitySetFiles]) -> None:
    for name, kind, place, which, table in json.loads(text):
        stripes = sets[name].stripes
        count = stripes.data_blocks if kind == "data" else stripes.tolerate
        packed = np.frombuffer(bytes.fromhex(table), dtype=np.uint8)
        bits = np.unpackbits(packed, count=stripes.rows * count)
        good = sets[name].good
        assert good is not None
        good[kind, place, which] = bits.astype(np.bool_).reshape(stripes.rows, count)


def find_good_blocks(comm: Comm, files: SetFiles, sets: dict[str, ParitySetFiles]) -> Operation[None]:
    """Check the blocks that this rank reads, and share the results with all ranks (collective)."""
    told = yield from comm.allgather(_tell_digests(files, sets))
    yield True
    for text in told:
        _learn_digests(text, sets)
    checked = yield from comm.allgather(_check_pieces(files, sets))
    yield True
    for entry in sets.values():
        entry.good = {}
    for text in checked:
        _learn_bits(text, sets)
