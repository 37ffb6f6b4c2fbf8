"""Lost parts from parity: who sends which block to whom, and the arithmetic.

Collective. From what is known of the files, every rank derives, for each block that is wanted, which k blocks it is
computed from; these are sent to the rank that wants it. Whether the result is right is for the digests of the part to
tell. If it is not, a careful second try finds out more first: the ranks that can read parity tell everyone the digests
of all blocks, and every rank checks the blocks it can read and tells which are good. So a file with some bad blocks
still helps with its good ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from deeppart.comm.base import Comm, Operation, together
from deeppart.errors import DeeppartError
from deeppart.model import ParityIdentity
from deeppart.nodes.erasure import ReedSolomon
from deeppart.nodes.exchange.blocks import Blocks
from deeppart.nodes.exchange.memory import Arena, Bytes, reserve_together
from deeppart.part import ParityReader, set_id, stripes_of
from deeppart.plan.redundancy import Stripes
from deeppart.plan.restart import Piece, Rebuild

_DIGEST_BYTES = 16
#: Wanted blocks under way at once.
_WINDOW = 3
_TAG = 0
#: A block that cannot be read, for whatever of these reasons, is not good; the other ranks wait to hear of it.
_READ_ERRORS = (DeeppartError, OSError, MemoryError)
Bits = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A part to rebuild.

    Attributes:
        part: its number.
        reader: the rank that gets it.
        rebuild: from what.
    """

    part: int
    reader: int
    rebuild: Rebuild

    @property
    def name(self) -> str:
        """Tells its parity set from others."""
        return set_id(self.rebuild.identity)


def padded_bytes(identity: ParityIdentity) -> int:
    """Memory that rebuilding one part takes: its rows, whole."""
    stripes = stripes_of(identity)
    last = stripes.rows - 1
    return 0 if last < 0 else stripes.start(last, 0) + stripes.data_blocks * stripes.length(last)


def rebuild_parts(
    comm: Comm, wanted: Sequence[Wanted], memory: Mapping[int, Bytes], arena: Arena, *, careful: bool
) -> Operation[dict[int, str]]:
    """Rebuild parts (collective; every rank gives the same ``wanted``).

    Args:
        memory: part -> :func:`padded_bytes` of memory, for the parts that this rank gets.
        careful: find out first which blocks are good; otherwise the files are taken for good.

    Returns:
        part -> why it could not be rebuilt; the same on every rank. The bytes of the others are in ``memory`` and are
        still to be checked as a part.
    """
    yield from reserve_together(
        comm, arena, max((_lengths(each.rebuild.identity) for each in wanted), key=sum, default=[])
    )
    sets: dict[str, _Set] = {}
    for each in wanted:
        entry = sets.setdefault(each.name, _Set(each.rebuild.identity))
        entry.add(each.rebuild)
        entry.doubtful.add(("data", each.rebuild.identity.place))
    files = _Files(comm.rank)
    try:
        if careful:
            yield from _find_good_blocks(comm, files, sets)
        failures: dict[int, str] = {}
        for each in wanted:
            recipe = _recipe(each, sets[each.name])
            if isinstance(recipe, str):
                failures[each.part] = recipe
            elif recipe:
                mine = memory[each.part] if comm.rank == each.reader else None
                yield from _Moving(comm, each, sets[each.name], files, arena).run(recipe, mine)
        return failures
    finally:
        files.close()


def _lengths(identity: ParityIdentity) -> list[int]:
    """Of the blocks that are under way at once while a part is rebuilt, in bytes."""
    stripes = stripes_of(identity)
    return [stripes.block_bytes] * (_WINDOW * stripes.data_blocks)


def _find_good_blocks(comm: Comm, files: _Files, sets: dict[str, _Set]) -> Operation[None]:
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


@dataclass(slots=True)
class _Set:
    """What is known of one parity set.

    Attributes:
        identity: of the set; its place does not matter.
        data, parity: place -> files; there may be several copies of a part.
        digests: stripe -> digests of its blocks, (rows, k + m, 16).
        good: ("data" or "parity", place, which file) -> which blocks are good, (rows, k or m); None before anyone has
            looked.
        doubtful: places whose parts are being rebuilt: their files, if there are any, are not taken for good.
    """

    identity: ParityIdentity
    data: dict[int, list[Piece]] = field(default_factory=dict)
    parity: dict[int, list[Piece]] = field(default_factory=dict)
    digests: dict[int, npt.NDArray[np.uint8]] = field(default_factory=dict)
    good: dict[tuple[str, int, int], Bits] | None = None
    doubtful: set[tuple[str, int]] = field(default_factory=set)

    @property
    def stripes(self) -> Stripes:
        return stripes_of(self.identity)

    def add(self, rebuild: Rebuild) -> None:
        for pieces, files in ((self.data, rebuild.data), (self.parity, rebuild.parity)):
            for piece in files:
                if piece not in pieces.setdefault(piece.place, []):
                    pieces[piece.place].append(piece)

    def pieces(self) -> Iterator[tuple[str, int, Piece]]:
        """Every file: (kind, which of its place, file)."""
        for kind, pieces in (("parity", self.parity), ("data", self.data)):
            for place in sorted(pieces):
                for which, piece in enumerate(pieces[place]):
                    yield kind, which, piece

    def piece(self, kind: str, place: int, which: int) -> Piece:
        """One of them."""
        return (self.data if kind == "data" else self.parity)[place][which]

    def which_is_good(self, kind: str, place: int, row: int, index: int) -> int | None:
        """A file of a place that has a good copy of a block, or None."""
        files = (self.data if kind == "data" else self.parity).get(place, ())
        if self.good is None:
            return 0 if files and (kind, place) not in self.doubtful else None
        for which in range(len(files)):
            bits = self.good.get((kind, place, which))
            if bits is not None and bits[row, index]:
                return which
        return None

    def is_empty(self, kind: str, place: int, row: int, index: int) -> bool:
        """Whether a block lies behind the end of its part: zeros, for which nobody need be asked."""
        return kind == "data" and not self.stripes.filled(row, index, self.identity.members[place].nbytes)


def _holder(piece: Piece) -> int:
    """The rank that reads a file, of those that can: spread over a node's ranks."""
    return piece.readers[piece.place % len(piece.readers)]


class _Files:
    """Files of the sets that this rank reads, open."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._sources: dict[str, Blocks] = {}
        self._readers: dict[str, ParityReader] = {}

    def mine(self, piece: Piece) -> bool:
        """Whether this rank reads it."""
        return _holder(piece) == self._rank

    def _open(self, piece: Piece) -> Blocks:
        if piece.path not in self._sources:
            self._sources[piece.path] = Blocks(piece.path)
        return self._sources[piece.path]

    def parity(self, piece: Piece) -> ParityReader:
        if piece.path not in self._readers:
            self._readers[piece.path] = ParityReader(self._open(piece).source, where=piece.path)
        return self._readers[piece.path]

    def close(self) -> None:
        for source in self._sources.values():
            source.close()

    def get(self, entry: _Set, kind: str, piece: Piece, row: int, index: int, memory: Bytes) -> Bytes:
        """Block ``index`` of a row, in ``memory`` or where it lies; behind the end of a part there are zeros.

        Raises:
            StorageError, FormatError: it cannot be read.
        """
        length = entry.stripes.length(row)
        if kind == "parity":
            return self._open(piece).get(self.parity(piece).offset(row, index), length, memory)
        filled = entry.stripes.filled(row, index, entry.identity.members[piece.place].nbytes)
        if filled == length:
            return self._open(piece).get(entry.stripes.start(row, index), length, memory)
        block = memory[:length]
        if filled:
            self._open(piece).source.read_into(entry.stripes.start(row, index), block[:filled].data)
        block[filled:] = 0
        return block


def _tell_digests(files: _Files, sets: dict[str, _Set]) -> bytes:
    """The digest tables of the parity files that this rank reads."""
    heads: list[Any] = []
    tables: list[bytes] = []
    for name, entry in sets.items():
        for kind, _, piece in entry.pieces():
            if kind == "parity" and files.mine(piece):
                try:
                    reader = files.parity(piece)
                except _READ_ERRORS:
                    continue  # its blocks will not be good either
                if set_id(reader.identity) == name and reader.identity.place == piece.place:
                    heads.append([name, piece.place])
                    tables.append(reader.digests.tobytes())
    return _pack(heads, tables)


def _learn_digests(text: bytes, sets: dict[str, _Set]) -> None:
    heads, tables = _unpack(text)
    for (name, place), table in zip(heads, tables, strict=True):
        entry = sets[name]
        stripes = entry.stripes
        digests = np.frombuffer(table, dtype=np.uint8)
        digests = digests.reshape(stripes.rows, stripes.tolerate, stripes.members, _DIGEST_BYTES)
        for j in range(stripes.tolerate):
            entry.digests.setdefault(stripes.kept_stripe(place, j), digests[:, j])


def _check_pieces(files: _Files, sets: dict[str, _Set]) -> bytes:
    """Which blocks of the files that this rank reads are good."""
    heads: list[Any] = []
    tables: list[bytes] = []
    for name, entry in sets.items():
        for kind, which, piece in entry.pieces():
            if files.mine(piece):
                heads.append([name, kind, piece.place, which])
                tables.append(np.packbits(_good_blocks(files, entry, kind, piece)).tobytes())
    return _pack(heads, tables)


def _good_blocks(files: _Files, entry: _Set, kind: str, piece: Piece) -> Bits:
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
                continue  # nobody has parity of it: it takes no part in any rebuild
            try:
                block = files.get(entry, kind, piece, row, index, memory)
            except _READ_ERRORS:
                continue
            good[row, index] = xxhash.xxh3_128_digest(block.data) == entry.digests[stripe][row, column].tobytes()
    return good


def _learn_bits(text: bytes, sets: dict[str, _Set]) -> None:
    heads, tables = _unpack(text)
    for (name, kind, place, which), table in zip(heads, tables, strict=True):
        stripes = sets[name].stripes
        count = stripes.data_blocks if kind == "data" else stripes.tolerate
        bits = np.unpackbits(np.frombuffer(table, dtype=np.uint8), count=stripes.rows * count)
        good = sets[name].good
        assert good is not None
        good[kind, place, which] = bits.astype(np.bool_).reshape(stripes.rows, count)


def _pack(heads: list[Any], tables: list[bytes]) -> bytes:
    head = json.dumps([heads, [len(table) for table in tables]]).encode()
    return len(head).to_bytes(8, "little") + head + b"".join(tables)


def _unpack(text: bytes) -> tuple[list[Any], list[bytes]]:
    start = 8 + int.from_bytes(text[:8], "little")
    heads, lengths = json.loads(text[8:start])
    tables = []
    for length in lengths:
        tables.append(text[start : start + length])
        start += length
    return heads, tables


@dataclass(frozen=True, slots=True)
class _Step:
    """One wanted block.

    Attributes:
        row, block: which one of the part.
        inputs: of the k blocks it is computed from, or the one good copy of it.
    """

    row: int
    block: int
    inputs: tuple[_Input, ...]


@dataclass(frozen=True, slots=True)
class _Input:
    """A block to use.

    Attributes:
        kind, place, which: the file.
        index: which block of the file's row.
        code_row: which block of the stripe, as the code counts: data first, then parity.
    """

    kind: str
    place: int
    which: int
    index: int
    code_row: int


def _recipe(wanted: Wanted, entry: _Set) -> list[_Step] | str:
    """How every block of a part is computed; or why one cannot be."""
    stripes, lost = entry.stripes, wanted.rebuild.identity.place
    k = stripes.data_blocks
    steps = []
    for row in range(stripes.rows):
        for block in range(k):
            stripe = stripes.stripe_of(lost, block)
            own = _input(entry, "data", lost, row, block, block)
            if own is not None:
                steps.append(_Step(row, block, (own,)))
                continue
            choice = [_input(entry, "data", stripes.source(stripe, i), row, i, i) for i in range(k) if i != block] + [
                _input(entry, "parity", stripes.keeper(stripe, j), row, j, k + j) for j in range(stripes.tolerate)
            ]
            inputs = [each for each in choice if each is not None][:k]
            if len(inputs) < k:
                return f"rebuild from parity: of the {k} blocks needed for row {row}, {len(inputs)} are sound"
            steps.append(_Step(row, block, tuple(inputs)))
    return steps


def _input(entry: _Set, kind: str, place: int, row: int, index: int, code_row: int) -> _Input | None:
    which = entry.which_is_good(kind, place, row, index)
    return None if which is None else _Input(kind, place, which, index, code_row)


class _Moving:
    """One part being rebuilt, as seen by one rank: it sends blocks, or gets them all, or neither."""

    def __init__(self, comm: Comm, wanted: Wanted, entry: _Set, files: _Files, arena: Arena) -> None:
        self._comm, self._wanted, self._entry, self._files, self._arena = comm, wanted, entry, files, arena
        stripes = entry.stripes
        self._code = ReedSolomon(stripes.data_blocks, stripes.tolerate)

    def run(self, recipe: list[_Step], memory: Bytes | None) -> Operation[None]:
        """Do this rank's share of it."""
        stripes = self._entry.stripes
        slots = self._arena.cut(_lengths(self._wanted.rebuild.identity))
        flying: list[tuple[_Step, list[Bytes], list[Operation[None]]]] = []
        for number, step in enumerate(recipe):
            if len(flying) == _WINDOW:
                yield from self._land(*flying.pop(0), memory)
            blocks = [block[: stripes.length(step.row)] for block in slots[number % _WINDOW :: _WINDOW]]
            flying.append((step, *self._start(step, blocks)))
        for flight in flying:
            yield from self._land(*flight, memory)
        self._arena.give_back()

    def _start(self, step: _Step, memory: list[Bytes]) -> tuple[list[Bytes], list[Operation[None]]]:
        """Send what this rank has of a step, or ask for it; the blocks it is computed from, and what is under way."""
        reader, blocks = self._wanted.reader, []
        moves: list[Operation[None]] = []
        for block, each in zip(memory, step.inputs, strict=False):
            piece = self._entry.piece(each.kind, each.place, each.which)
            holder = reader if self._entry.is_empty(each.kind, each.place, step.row, each.index) else _holder(piece)
            if holder == self._comm.rank:
                try:
                    block = self._files.get(self._entry, each.kind, piece, step.row, each.index, block)
                except _READ_ERRORS:
                    block[:] = 0  # good a moment ago; the check of the whole part will tell
                if holder != reader:
                    moves.append(self._comm.send(block, reader, _TAG))
            elif self._comm.rank == reader:
                moves.append(self._comm.receive_into(block, holder, _TAG))
            blocks.append(block)
        return blocks, moves

    def _land(
        self, step: _Step, blocks: list[Bytes], moves: list[Operation[None]], memory: Bytes | None
    ) -> Operation[None]:
        yield from together(moves)
        if memory is not None:
            stripes = self._entry.stripes
            start = stripes.start(step.row, step.block)
            out = memory[start : start + stripes.length(step.row)]
            if len(blocks) == 1 and step.inputs[0].code_row == step.block:
                out[:] = blocks[0]
            else:
                self._code.rebuild(blocks, [each.code_row for each in step.inputs], [step.block], [out])
        yield True
