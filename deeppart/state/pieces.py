"""Pieces: what the spans of a step belong to, and whether the parts have each byte of every piece exactly once.

A leaf is one piece; a global tensor has one for each box of its division; a span names leaf and box. Nearly every piece
is divided between all parts (table 0 of a span). Pieces of a single rank are in its part alone (table 1): rank-local
leaves, leaves that differ between ranks, and boxes of which ranks had different bytes.

Only :func:`find_faults` checks that the parts have every byte once: for a restore, for ``load`` and for ``verify``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

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
#: In place of a part number: all parts with bytes of the piece.
ANY_PART = -1
#: Bits of a piece's key for the box number; there are at most 2^24 boxes.
_BOX_BITS = np.uint64(32)
_BOX_MASK = np.uint64((1 << 32) - 1)
GAP, EXTRA = "gap", "extra"
_TODO = "the checkpoint was not written by a sound library: restore an earlier step"
#: Boxes of one tensor with missing bytes that are listed as faults, at most.
_MOST_NAMED = 64


class Source(NamedTuple):
    """A piece, and the parts that have its bytes.

    Attributes:
        part: number of the part, or ANY_PART.
        leaf, number: numbers of the leaf and of the box; box 0 for a leaf that is one piece.
        box: the elements of the leaf that it has.
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
    """The pieces in each chunk of a part, looked up on demand: a rank needs little of most parts.

    Attributes:
        spans: rows of SPAN_DTYPE, all or some of the part's, in the order of the raw stream.
        raw_starts: the beginnings of the chunks in the raw stream, and the end of the last one.
    """

    def __init__(self, spans: Spans, raw_starts: npt.NDArray[np.uint64]) -> None:
        self.spans, self.raw_starts = spans, raw_starts

    def of(self, chunk: int) -> list[LeafPiece]:
        """The pieces in a chunk."""
        begin, end = self.raw_starts[chunk], self.raw_starts[chunk + 1]
        first, last = np.searchsorted(self._offsets, begin, "right") - 1, np.searchsorted(self._offsets, end, "left")
        rows, pieces, begin, end = slice(max(first, 0), last), list[LeafPiece](), int(begin), int(end)
        columns = (self.spans[name][rows].tolist() for name in ("leaf", "box", "start", "length", "raw_offset"))
        for leaf, box, start, length, offset in zip(*columns, strict=True):
            at, stop = max(offset, begin), min(offset + length, end)
            if at < stop:  # unless the rows are some of the part's
                pieces.append(LeafPiece(leaf, box, start + at - offset, stop - at, at - begin))
        return pieces

    def chunks_with(self, rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """By chunk number, whether the chunk has bytes of any of these spans."""
        begins = self._offsets[rows]
        first = np.searchsorted(self.raw_starts, begins, "right") - 1
        stop = np.searchsorted(self.raw_starts, begins + self.spans["length"][rows], "left")
        steps = np.zeros(len(self.raw_starts), dtype=np.int64)
        np.add.at(steps, first, 1)
        np.add.at(steps, stop, -1)
        return np.asarray(np.cumsum(steps)[:-1] > 0)

    def rows_of(self, wanted: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """For each span whether it is of any of these pieces (:func:`piece_keys`)."""
        return are_among(keys_of(self.spans), wanted)

    def chunks_of(self, wanted: npt.NDArray[np.uint64]) -> list[int]:
        """Ascending numbers of the chunks that have bytes of any of these pieces."""
        found = self.rows_of(wanted)
        return np.flatnonzero(self.chunks_with(found)).tolist() if found.any() else []

    @functools.cached_property
    def _offsets(self) -> npt.NDArray[np.uint64]:
        return np.ascontiguousarray(self.spans["raw_offset"])


def keys_of(spans: Spans) -> npt.NDArray[np.uint64]:
    """The keys of the pieces of spans."""
    return np.asarray((spans["leaf"].astype(np.uint64) << _BOX_BITS) + spans["box"])


def are_among(keys: npt.NDArray[np.uint64], ascending: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """For each key whether it is one of the others."""
    places = np.searchsorted(ascending, keys)
    found = places < len(ascending)
    found[found] = ascending[places[found]] == keys[found]
    return np.asarray(found)


def piece_keys(pieces: Iterable[tuple[int, int]]) -> npt.NDArray[np.uint64]:
    """Ascending keys of pieces, which are given by leaf and box."""
    leaves, boxes = np.array([*pieces], dtype=np.uint64).reshape(-1, 2).T
    return np.unique((leaves << _BOX_BITS) + boxes)


@dataclass(frozen=True, slots=True)
class Keepers:
    """Which rank of a restore keeps the spans of each box of the global tensors, and checks that they are complete.

    A rank needs few of these spans, and all ranks together have too many for each of them. Every rank keeps about the
    same number; on as many ranks as a tensor has boxes, each keeps one.

    Attributes:
        ranks: number of ranks.
        boxes: int64 per leaf: how many boxes it is divided into; 0 for a leaf that is one piece.
    """

    ranks: int
    boxes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, structure: Structure, ranks: int) -> Keepers:
        """For the leaves of a structure document."""
        return cls(ranks, box_counts(structure))

    @property
    def any_boxes(self) -> bool:
        """True if any leaf is divided."""
        return bool(self.boxes.any())

    def are_kept(self, spans: Spans) -> npt.NDArray[np.bool_]:
        """For each span whether one rank keeps it; all ranks get the others: of undivided leaves, and of one rank."""
        return np.asarray(self.are_boxes(keys_of(spans)) & (spans["table"] != RANK_TABLE))

    def are_boxes(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """For each piece whether it is a box of a divided leaf."""
        leaf = keys >> _BOX_BITS
        found = leaf < len(self.boxes)
        found[found] = self.boxes[leaf[found]] > 0
        return np.asarray(found)

    def ranks_of(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """The rank that keeps the spans of each of these pieces, which are boxes."""
        leaf = (keys >> _BOX_BITS).astype(np.int64)
        box, count = (keys & _BOX_MASK).astype(np.int64), self.boxes[leaf]
        return np.asarray((box * self.ranks // count + self._first(leaf)) % self.ranks)

    def kept_by(self, rank: int, leaf: int) -> range:
        """The boxes of a global tensor that a rank keeps."""
        place, count = (rank - int(self._first(np.int64(leaf)))) % self.ranks, int(self.boxes[leaf])
        return range(-(-place * count // self.ranks), -(-(place + 1) * count // self.ranks))

    def _first(self, leaf: Any) -> Any:
        """The rank that keeps the first box: with fewer boxes than ranks, another one for each leaf."""
        return np.where(self.boxes[leaf] < self.ranks, leaf, 0)


class WantedPieces:
    """The keys of wanted pieces: those of any part, and those of single parts."""

    def __init__(self, wanted: Mapping[int, Iterable[tuple[int, int]]]) -> None:
        """``wanted``: number of a part, or ANY_PART -> pieces, given by leaf and box."""
        self._wanted, self._of_any = wanted, piece_keys(wanted.get(ANY_PART, ()))

    def of(self, part: int) -> npt.NDArray[np.uint64]:
        """The keys of the pieces that are wanted of a part, ascending."""
        mine = self._wanted.get(part)
        return self._of_any if mine is None else np.union1d(self._of_any, piece_keys(mine))


class Fault(NamedTuple):
    """Bytes ``[start, stop)`` of a piece that no span has (GAP), or one span too many (EXTRA)."""

    leaf: int
    box: int
    start: int
    stop: int
    kind: str


@dataclass(frozen=True, slots=True)
class Expected:
    """The pieces that some spans should have.

    Attributes:
        sizes: uint64 per leaf: bytes of the leaves that are one piece; 0 for leaves that are not expected.
        tensors: number of a divided leaf -> its division, the bytes of an element, and the boxes that must be there;
            of any other box all bytes or none.
        excluded: for these leaves the boxes that are not expected.
    """

    sizes: npt.NDArray[np.uint64]
    tensors: Mapping[int, tuple[Division, int, range]] = field(default_factory=dict)
    excluded: Mapping[int, Collection[int]] = field(default_factory=dict)


class Held:
    """The pieces that the parts of a step have together.

    Attributes:
        structure: the structure document.
        own: number of a divided leaf -> number of a box -> the parts with different bytes of it, ascending.
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
        """The pieces of a global tensor that overlap a box, with the bytes of ``rank`` where ranks had different ones.

        Where this rank has none of these, or for None, those of the lowest rank.
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
        """The faults of the pieces that all parts have together."""
        keepers = Keepers.of(self.structure, 1)
        return self.faults_of(0, keepers, [table[keepers.are_kept(table)] for table in self._spans.values()])

    def faults_of(self, rank: int, keepers: Keepers, kept: Sequence[Spans]) -> list[Fault]:
        """The faults in one rank's share of the leaves and in the boxes whose spans it keeps."""
        structure, ranks = self.structure, keepers.ranks
        leaves = np.arange(len(structure))
        sizes = np.zeros(len(structure), dtype=np.uint64)
        sizes[list(structure.types)] = [kind.nbytes for kind in structure.types.values()]
        sizes[structure.per_rank | (leaves % ranks != rank)] = 0
        sizes[list(structure.aliases.keys() | structure.divisions.keys())] = 0
        tables = [
            table[(table["table"] != RANK_TABLE) & (table["leaf"] % ranks == rank) & ~keepers.are_kept(table)]
            for table in self._spans.values()
            if len(table)
        ]
        tensors = _tensors(structure, structure.divisions, lambda leaf: keepers.kept_by(rank, leaf))
        return find_faults(Expected(sizes, tensors, self.own), [*tables, *kept])


def own_faults(structure: Structure, own_types: Mapping[int, LeafType], spans: Spans) -> list[Fault]:
    """The faults of the pieces that one part has alone.

    Args:
        structure: the structure of the rank's state.
        own_types: the types of the leaves that this rank has saved for itself.
        spans: the spans of its part.
    """
    sizes = np.zeros(len(structure), dtype=np.uint64)
    for leaf in np.flatnonzero(structure.per_rank).tolist():
        if leaf in structure.types and leaf not in structure.aliases:
            sizes[leaf] = own_types.get(leaf, structure.types[leaf]).nbytes
    rows = spans[spans["table"] == RANK_TABLE]
    if not len(rows) and not sizes.any():
        return []
    return find_faults(Expected(sizes, _tensors(structure, set(rows["leaf"].tolist()), lambda leaf: range(0))), [rows])


def refuse(
    faults: Iterable[Fault],
    wanted: Collection[int] | None,
    structure: Structure,
    own_types: Mapping[int, LeafType],
    where: str,
) -> None:
    """Raise the first fault of a wanted leaf; None for all leaves."""
    fault = next((each for each in faults if wanted is None or each.leaf in wanted), None)
    if fault is not None and fault.leaf not in structure.types:
        raise CorruptFileError("a part holds a leaf that the structure document lacks", where=where)
    if fault is not None:
        kind = own_types.get(fault.leaf, structure.types[fault.leaf])
        path = structure.paths()[fault.leaf]
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


def _tensors(
    structure: Structure, leaves: Iterable[int], boxes: Callable[[int], range]
) -> dict[int, tuple[Division, int, range]]:
    """Those of these leaves that are global tensors and no aliases, and the boxes of each that must be there."""
    return {
        leaf: (structure.divisions[leaf], structure.types[leaf].itemsize, boxes(leaf))
        for leaf in leaves
        if leaf in structure.divisions and leaf not in structure.aliases
    }


def box_counts(structure: Structure) -> npt.NDArray[np.int64]:
    """By leaf number, how many boxes a leaf is divided into; 0 for a leaf that is one piece."""
    counts = np.zeros(len(structure), dtype=np.int64)
    divisions = {id(division): division for division in structure.divisions.values()}  # few distinct ones
    lengths = {key: len(division) for key, division in divisions.items()}
    counts[list(structure.divisions)] = [lengths[id(division)] for division in structure.divisions.values()]
    return counts


def find_faults(expected: Expected, tables: Sequence[Spans]) -> list[Fault]:
    """Compare spans with the expected pieces, each byte of which must be in exactly one span.

    Time and memory are proportional to the spans, not to the boxes that a document claims.
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
    """The bytes of pieces in ascending order of leaves; 0 for those that are not expected."""
    sizes = np.zeros(len(leaf), dtype=np.uint64)
    plain = (leaf < len(expected.sizes)) & (box == 0)
    sizes[plain] = expected.sizes[leaf[plain]]
    for number, begin, end in _runs(leaf):
        if number not in expected.tensors:
            continue
        division, itemsize, _ = expected.tensors[number]
        boxes = box[begin:end]
        known = boxes < len(division)
        found = np.where(known, _elements(division, np.where(known, boxes, 0).astype(np.int64)), 0) * itemsize
        if number in expected.excluded:
            found[np.isin(boxes, list(expected.excluded[number]))] = 0
        sizes[begin:end] = found
    return sizes


def _runs(leaf: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Each distinct number of an ascending array, with the begin and end of its run."""
    numbers, begins = np.unique(leaf, return_index=True)
    ends = np.append(begins[1:], len(leaf))[: len(begins)]
    return zip(numbers.tolist(), begins.tolist(), ends.tolist(), strict=True)


def _elements(division: Division, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The number of elements of each box."""
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
    """The expected pieces without any span."""
    here = np.zeros(len(expected.sizes), dtype=np.bool_)
    here[leaf[(leaf < len(here)) & (box == 0)]] = True
    for number in np.flatnonzero(~here & (expected.sizes > 0)).tolist():
        yield Fault(number, 0, 0, int(expected.sizes[number]), GAP)
    runs = {number: (begin, end) for number, begin, end in _runs(leaf)}
    for number, (division, itemsize, wanted) in expected.tensors.items():
        begin, end = runs.get(number, (0, 0))
        excluded = expected.excluded.get(number, ())
        if np.count_nonzero(sizes[begin:end]) + sum(each in wanted for each in excluded) >= len(wanted):
            continue
        held = {*box[begin:end].tolist(), *excluded}
        for each in islice((each for each in wanted if each not in held), _MOST_NAMED):
            yield Fault(number, each, 0, division.box(each).elements * itemsize, GAP)


def _piece_faults(leaf: int, box: int, size: int, ranges: Iterable[tuple[int, int]]) -> list[Fault]:
    """The faults of one piece, from its spans in ascending order."""
    faults: list[Fault] = []
    done = 0
    for start, stop in (*ranges, (size, size)):
        if min(start, size) > done:
            faults.append(Fault(leaf, box, done, min(start, size), GAP))
        for first, last in ((start, min(done, stop)), (max(start, done, size), stop)):  # duplicate; beyond the end
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
    """Check that a part's spans name pieces that can be there, before any of its bytes is used.

    A span in the rank's own table must be of a per-rank leaf, or of a box of a global tensor, in chunks marked as per
    rank; a span in the shared table, of another leaf or of a box, in chunks that are not. An alias has no spans.
    Neither a span nor the end of a chunk divides an element.
    """
    leaf, begins = spans["leaf"].astype(np.int64), spans["raw_offset"]
    used, place = np.unique(leaf, return_inverse=True)  # a part has few of the leaves
    if not structure.types.keys() >= set(used.tolist()):
        raise CorruptFileError("a part holds a leaf that the structure document lacks", where=where)
    own = spans["table"] == RANK_TABLE
    aliases = np.zeros(len(structure), dtype=np.bool_)
    aliases[list(structure.aliases)] = True
    boxes = box_counts(structure)
    divided = boxes > 0
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
        (spans["box"] >= np.maximum(boxes, 1).astype(np.uint64)[leaf], "in a box that it does not have"),
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
