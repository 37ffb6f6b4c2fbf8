"""Pieces: what a step's spans are of, and whether the parts hold each byte of them once.

A leaf is one piece, a global tensor one for each box of its division; a span names leaf and box. Nearly every piece is
held by all parts together (table 0 of a span). What is one rank's own its part holds alone (table 1): rank-local leaves
and those that differ between ranks, and boxes of which ranks had different bytes.

That the parts hold everything once is found out here and nowhere else, by :func:`find_faults`: for a restore, for
``load`` and for ``verify``.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from deeppart.errors import CorruptFileError
from deeppart.model import Box, Division
from deeppart.part import RANK_TABLE, SPAN_DTYPE
from deeppart.state.document import Structure
from deeppart.state.paths import readable
from deeppart.state.tensors import LeafType

#: Rows of a span table.
Spans = npt.NDArray[np.void]
#: In place of the number of a part: every part that has bytes of the piece.
ANY_PART = -1
#: Of the number of a piece, for that of the box: there are no more than 2^24.
_BOX_BITS = np.uint64(32)
GAP, EXTRA = "gap", "extra"
_TODO = "the checkpoint was not written by a sound library: restore an earlier step"
#: So many boxes of a tensor that lack bytes are named one by one.
_MOST_NAMED = 64


class Source(NamedTuple):
    """A piece, and who has its bytes.

    Attributes:
        part: number of the part, or ANY_PART.
        leaf, number: of the leaf and of the box, 0 of a leaf that is one piece.
        box: the elements of the leaf that it is.
    """

    part: int
    leaf: int
    number: int
    box: Box


class LeafPiece(NamedTuple):
    """Bytes ``[at, at + length)`` of a chunk are bytes ``[start, start + length)`` of a leaf, or of a box of it."""

    leaf: int
    box: int
    start: int
    length: int
    at: int


class PartPieces:
    """Which pieces lie in which chunks of a part: looked up when it is asked, since of most parts a rank needs little.

    Attributes:
        spans: rows of SPAN_DTYPE, in the order of the raw stream.
        raw_starts: where the chunks begin in the raw stream, and where the last one ends.
    """

    def __init__(self, spans: Spans, raw_starts: npt.NDArray[np.uint64]) -> None:
        self.spans, self.raw_starts = spans, raw_starts

    def of(self, chunk: int) -> list[LeafPiece]:
        """The pieces in a chunk."""
        begin, end = self.raw_starts[chunk], self.raw_starts[chunk + 1]
        first, last = np.searchsorted(self._offsets, begin, "right") - 1, np.searchsorted(self._offsets, end, "left")
        pieces, begin, end = list[LeafPiece](), int(begin), int(end)
        columns = (self.spans[name][first:last].tolist() for name in ("leaf", "box", "start", "length", "raw_offset"))
        for leaf, box, start, length, offset in zip(*columns, strict=True):
            at, stop = max(offset, begin), min(offset + length, end)
            pieces.append(LeafPiece(leaf, box, start + at - offset, stop - at, at - begin))
        return pieces

    def chunks_with(self, rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """By number, whether a chunk has bytes of any of these spans."""
        begins = self._offsets[rows]
        first = np.searchsorted(self.raw_starts, begins, "right") - 1
        stop = np.searchsorted(self.raw_starts, begins + self.spans["length"][rows], "left")
        steps = np.zeros(len(self.raw_starts), dtype=np.int64)
        np.add.at(steps, first, 1)
        np.add.at(steps, stop, -1)
        return np.asarray(np.cumsum(steps)[:-1] > 0)

    def chunks_of(self, wanted: npt.NDArray[np.uint64]) -> list[int]:
        """Ascending numbers of the chunks that have bytes of any of these pieces, given by :func:`piece_keys`."""
        keys = (self.spans["leaf"].astype(np.uint64) << _BOX_BITS) + self.spans["box"]
        places = np.searchsorted(wanted, keys)
        found = places < len(wanted)
        found[found] = wanted[places[found]] == keys[found]
        return np.flatnonzero(self.chunks_with(found)).tolist() if found.any() else []

    @functools.cached_property
    def _offsets(self) -> npt.NDArray[np.uint64]:
        return np.ascontiguousarray(self.spans["raw_offset"])


def piece_keys(pieces: Iterable[tuple[int, int]]) -> npt.NDArray[np.uint64]:
    """Numbers for pieces, given by leaf and box, in ascending order."""
    leaves, boxes = np.array([*pieces], dtype=np.uint64).reshape(-1, 2).T
    return np.sort((leaves << _BOX_BITS) + boxes)


class Fault(NamedTuple):
    """Bytes ``[start, stop)`` of a piece that no span holds (GAP), or that one span too many holds (EXTRA)."""

    leaf: int
    box: int
    start: int
    stop: int
    kind: str


@dataclass(frozen=True, slots=True)
class Expected:
    """The pieces that some spans are to hold.

    Attributes:
        sizes: uint64 per leaf: bytes of those that are one piece; 0 of those that are not expected.
        tensors: number of a divided leaf -> its division and the bytes of an element.
        excluded: of these, the boxes that are not expected, by leaf.
        is_whole: all other boxes are; otherwise any may be lacking.
    """

    sizes: npt.NDArray[np.uint64]
    tensors: Mapping[int, tuple[Division, int]] = field(default_factory=dict)
    excluded: Mapping[int, Collection[int]] = field(default_factory=dict)
    is_whole: bool = True


class Held:
    """What the parts of a step hold together.

    Attributes:
        structure: the structure document.
        own: number of a divided leaf -> number of a box -> the parts that hold different bytes of it, ascending.
    """

    def __init__(self, structure: Structure, spans: Mapping[int, Spans]) -> None:
        self.structure, self._spans = structure, spans
        self.own: dict[int, dict[int, list[int]]] = {}
        divided = list(structure.divisions)
        for part, table in sorted(spans.items()) if divided else ():
            is_own = table["table"] == RANK_TABLE
            if not is_own.any():
                continue
            rows = table[is_own]
            rows = rows[np.isin(rows["leaf"], divided)]
            for leaf, box in np.unique(rows[["leaf", "box"]]).tolist():
                self.own.setdefault(leaf, {}).setdefault(box, []).append(part)

    def sources(self, leaf: int, wanted: Box, rank: int | None = None) -> Iterator[Source]:
        """Which pieces of a global tensor have anything of a box, with the bytes that a rank had, if it had others.

        Where ranks had different bytes, and this one none, or no rank is asked for, those of the lowest.
        """
        alias = self.structure.aliases.get(leaf)
        leaf = leaf if alias is None else alias.owner
        division, own = self.structure.divisions[leaf], self.own.get(leaf, {})
        for number in division.meeting(wanted):
            parts = own.get(number)
            part = ANY_PART if parts is None else rank if rank is not None and rank in parts else parts[0]
            yield Source(part, leaf, number, division.box(number))

    def own_of(self, leaf: int) -> Mapping[int, Sequence[int]]:
        """The boxes of a global tensor of which ranks had different bytes, and these ranks."""
        alias = self.structure.aliases.get(leaf)
        return self.own.get(leaf if alias is None else alias.owner, {})

    @functools.cached_property
    def faults(self) -> list[Fault]:
        """What is wrong with the pieces that all parts hold together."""
        return self.faults_of(0, 1)

    def faults_of(self, share: int, shares: int) -> list[Fault]:
        """The same of one share of the leaves: each of so many ranks looks at one, and all of them at every leaf."""
        structure = self.structure
        leaves = np.arange(len(structure.types))
        sizes = np.fromiter((kind.nbytes for kind in structure.types), np.uint64, len(structure.types))
        sizes[structure.per_rank | (leaves % shares != share)] = 0
        sizes[list(structure.aliases.keys() | structure.divisions.keys())] = 0
        tables = [
            table[(table["table"] != RANK_TABLE) & (table["leaf"] % shares == share)] for table in self._spans.values()
        ]
        tensors = _tensors(structure, (leaf for leaf in structure.divisions if leaf % shares == share))
        return find_faults(Expected(sizes, tensors, self.own), tables)

    def check(self, wanted: Collection[int] | None, where: str) -> None:
        """Refuse parts that do not hold all of these leaves, or of all."""
        refuse(self.faults, wanted, self.structure, {}, where)


def own_faults(structure: Structure, own_types: Mapping[int, LeafType], spans: Spans) -> list[Fault]:
    """What is wrong with the pieces that one part holds alone.

    Args:
        structure: of the rank's state.
        own_types: of the leaves that this rank has saved for itself.
        spans: of its part.
    """
    sizes = np.zeros(len(structure.types), dtype=np.uint64)
    for leaf in np.flatnonzero(structure.per_rank).tolist():
        if leaf not in structure.aliases:
            sizes[leaf] = own_types.get(leaf, structure.types[leaf]).nbytes
    rows = spans[spans["table"] == RANK_TABLE]
    if not len(rows) and not sizes.any():
        return []
    return find_faults(Expected(sizes, _tensors(structure, set(rows["leaf"].tolist())), is_whole=False), [rows])


def check_own(
    structure: Structure,
    own_types: Mapping[int, LeafType],
    spans: Spans,
    wanted: Collection[int] | None,
    where: str,
) -> None:
    """Refuse a part that does not hold all of these leaves of its rank alone, or of all."""
    refuse(own_faults(structure, own_types, spans), wanted, structure, own_types, where)


def refuse(
    faults: Iterable[Fault],
    wanted: Collection[int] | None,
    structure: Structure,
    own_types: Mapping[int, LeafType],
    where: str,
) -> None:
    """Raise the first fault of a leaf that is wanted; None for all."""
    fault = next((each for each in faults if wanted is None or each.leaf in wanted), None)
    if fault is not None and fault.leaf >= len(structure.types):
        raise CorruptFileError("a part holds a leaf that the structure document lacks", where=where)
    if fault is not None:
        kind = own_types.get(fault.leaf, structure.types[fault.leaf])
        path = structure.array_paths()[fault.leaf]
        name, nbytes = f"leaf {fault.leaf}", kind.nbytes
        if fault.leaf in structure.divisions:
            name, nbytes = _box_of(structure.divisions[fault.leaf], fault.box, kind.itemsize)
            name += f" of leaf {fault.leaf}"
        raise CorruptFileError(
            "the parts do not hold every byte of a leaf exactly once",
            expected=f"bytes 0 to {nbytes} of {name}, {readable(path)}, {kind}",
            found=f"bytes {fault.start} to {fault.stop} {'missing' if fault.kind == GAP else 'once too often'}",
            where=where,
            todo=_TODO,
        )


def _box_of(division: Division, number: int, itemsize: int) -> tuple[str, int]:
    """The name and the bytes of a box."""
    if number >= len(division):
        return f"box {number}", 0
    box = division.box(number)
    return f"box {number}, {box},", box.elements * itemsize


def _tensors(structure: Structure, leaves: Iterable[int]) -> dict[int, tuple[Division, int]]:
    """Of these leaves the global tensors with bytes of their own."""
    return {
        leaf: (structure.divisions[leaf], structure.types[leaf].itemsize)
        for leaf in leaves
        if leaf in structure.divisions and leaf not in structure.aliases
    }


def find_faults(expected: Expected, tables: Sequence[Spans]) -> list[Fault]:
    """Compare spans with the pieces that they are to hold, each byte once.

    Time and memory go with the spans, and not with the boxes that a document claims.
    """
    spans = np.concatenate([*tables, np.zeros(0, dtype=SPAN_DTYPE)])
    spans = spans[np.lexsort((spans["start"], spans["box"], spans["leaf"]))]
    leaf, box = spans["leaf"].astype(np.int64), spans["box"]
    start, stop = spans["start"], spans["start"] + spans["length"]
    begins = np.ones(len(spans), dtype=np.bool_)
    begins[1:] = (leaf[1:] != leaf[:-1]) | (box[1:] != box[:-1])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(spans))[: len(first)]
    before = np.zeros(len(spans), dtype=np.uint64)
    before[1:] = stop[:-1]
    before[first] = 0
    sizes = _sizes(expected, leaf[first], box[first])
    wrong = np.concatenate([[0], np.cumsum(start != before)])
    suspects = np.flatnonzero((wrong[last] != wrong[first]) | (stop[last - 1] != sizes))
    faults: list[Fault] = []
    for place in suspects.tolist():
        rows = slice(first[place], last[place])
        ranges = zip(start[rows].tolist(), stop[rows].tolist(), strict=True)
        faults += _piece_faults(int(leaf[first[place]]), int(box[first[place]]), int(sizes[place]), ranges)
    return sorted([*faults, *_lacking(expected, leaf[first], box[first], sizes)])


def _sizes(expected: Expected, leaf: npt.NDArray[np.int64], box: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The bytes of pieces, of which the leaves ascend; 0 of those that are not expected."""
    sizes = np.zeros(len(leaf), dtype=np.uint64)
    plain = (leaf < len(expected.sizes)) & (box == 0)
    sizes[plain] = expected.sizes[leaf[plain]]
    for number, begin, end in _runs(leaf):
        if number not in expected.tensors:
            continue
        division, itemsize = expected.tensors[number]
        boxes = box[begin:end]
        known = boxes < len(division)
        found = np.where(known, _elements(division, np.where(known, boxes, 0).astype(np.int64)), 0) * itemsize
        if number in expected.excluded:
            found[np.isin(boxes, list(expected.excluded[number]))] = 0
        sizes[begin:end] = found
    return sizes


def _runs(leaf: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Each number among those that ascend, and where it begins and ends."""
    numbers, begins = np.unique(leaf, return_index=True)
    ends = np.append(begins[1:], len(leaf))[: len(begins)]
    return zip(numbers.tolist(), begins.tolist(), ends.tolist(), strict=True)


def _elements(division: Division, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many elements boxes have."""
    if division.cuts is None:
        return np.array([box.elements for box in division.listed], dtype=np.int64)[numbers]
    found, rest = np.ones(len(numbers), dtype=np.int64), numbers
    if not len(division):
        return found
    for cuts, length in zip(reversed(division.cuts), reversed(division.shape), strict=True):
        rest, place = np.divmod(rest, len(cuts))
        if isinstance(cuts, range):
            found = found * np.where(place == len(cuts) - 1, length - cuts[-1], cuts.step)
        else:
            ends = np.array([*cuts[1:], length], dtype=np.int64)
            found = found * (ends - np.array(cuts, dtype=np.int64))[place]
    return found


def _lacking(
    expected: Expected,
    leaf: npt.NDArray[np.int64],
    box: npt.NDArray[np.uint64],
    sizes: npt.NDArray[np.uint64],
) -> Iterator[Fault]:
    """The pieces of which there is no span at all."""
    here = np.zeros(len(expected.sizes), dtype=np.bool_)
    here[leaf[(leaf < len(here)) & (box == 0)]] = True
    for number in np.flatnonzero(~here & (expected.sizes > 0)).tolist():
        yield Fault(number, 0, 0, int(expected.sizes[number]), GAP)
    runs = {number: (begin, end) for number, begin, end in _runs(leaf)} if expected.is_whole else {}
    for number, (division, itemsize) in expected.tensors.items() if expected.is_whole else ():
        begin, end = runs.get(number, (0, 0))
        excluded = expected.excluded.get(number, ())
        if np.count_nonzero(sizes[begin:end]) + len(excluded) >= len(division):
            continue
        held = {*box[begin:end].tolist(), *excluded}
        for each in islice((each for each in range(len(division)) if each not in held), _MOST_NAMED):
            yield Fault(number, each, 0, division.box(each).elements * itemsize, GAP)


def _piece_faults(leaf: int, box: int, size: int, ranges: Iterable[tuple[int, int]]) -> list[Fault]:
    """Walk the spans of one piece, ascending by start."""
    faults: list[Fault] = []
    done = 0
    for start, stop in (*ranges, (size, size)):
        if min(start, size) > done:
            faults.append(Fault(leaf, box, done, min(start, size), GAP))
        for first, last in ((start, min(done, stop)), (max(start, done, size), stop)):  # held before; behind the end
            if first < last:
                faults.append(Fault(leaf, box, first, last, EXTRA))
        done = max(done, stop)
    return faults


def check_places(
    structure: Structure,
    own_types: Mapping[int, LeafType],
    spans: Spans,
    raw_starts: npt.NDArray[np.uint64],
    per_rank: npt.NDArray[np.bool_],
    where: str,
) -> None:
    """Check that a part's spans are of pieces that can stand there: before any of its bytes is put anywhere.

    A span of the rank's own table is of a leaf that each rank saved for itself, or of a box of a global tensor, and
    lies in chunks that are marked as such; a span of the shared table is of another leaf, or of a box, and does not. An
    alias has no spans. No element is cut in two, neither by a span nor by the end of a chunk.
    """
    leaf, begins = spans["leaf"].astype(np.int64), spans["raw_offset"]
    if len(leaf) and int(leaf.max()) >= len(structure.types):
        raise CorruptFileError("a part holds a leaf that the structure document lacks", where=where)
    own = spans["table"] == RANK_TABLE
    aliases = np.zeros(len(structure.types), dtype=np.bool_)
    aliases[list(structure.aliases)] = True
    boxes = np.ones(len(structure.types), dtype=np.uint64)
    divisions = {id(division): division for division in structure.divisions.values()}  # a handful of different ones
    lengths = {key: len(division) for key, division in divisions.items()}
    boxes[list(structure.divisions)] = [lengths[id(division)] for division in structure.divisions.values()]
    divided = np.zeros(len(structure.types), dtype=np.bool_)
    divided[list(structure.divisions)] = True
    used, place = np.unique(leaf, return_inverse=True)  # a part holds few leaves of many
    kinds = [own_types.get(number, structure.types[number]) for number in used.tolist()]
    itemsizes = np.array([kind.itemsize for kind in kinds], dtype=np.uint64)[place]
    first = np.searchsorted(raw_starts, begins, side="right") - 1
    stop = np.searchsorted(raw_starts, begins + spans["length"], side="left")
    marked = np.concatenate([[0], np.cumsum(per_rank, dtype=np.int64)])
    borders = raw_starts[1:-1]
    holding = np.searchsorted(begins, borders, side="right") - 1
    cut = np.zeros(len(spans), dtype=np.bool_)
    cut[holding[(borders - begins[holding]) % itemsizes[holding] != 0]] = True
    for bad, why in (
        ((structure.per_rank[leaf] != own) & ~divided[leaf], "in the table of the other kind"),
        (spans["box"] >= boxes[leaf], "in a box that it does not have"),
        (aliases[leaf], "that shares its memory with another, which has the bytes"),
        (marked[stop] - marked[first] != np.where(own, stop - first, 0), "in a chunk that is marked otherwise"),
        ((spans["start"] % itemsizes != 0) | (spans["length"] % itemsizes != 0) | cut, "in pieces of elements"),
    ):
        if bad.any():
            row = int(bad.argmax())
            raise CorruptFileError(
                f"a part holds a leaf {why}",
                found=f"leaf {int(leaf[row])}, box {int(spans['box'][row])}, {kinds[place[row]]}",
                where=where,
                todo=_TODO,
            )
