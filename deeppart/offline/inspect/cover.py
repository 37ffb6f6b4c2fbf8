"""What the spans in parts cover: each leaf exactly once, or where not, and which leaves bytes of a part belong to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deeppart.errors import CorruptFileError, FormatError
from deeppart.offline.step_files import OpenPart, rank_spans
from deeppart.part import SPAN_DTYPE
from deeppart.state.document import GlobalState, RankDocument, RankLocalMark, SavedValue, Structure, gather_global_state
from deeppart.state.paths import readable
from deeppart.state.restore import RankSpans, check_bytes
from deeppart.state.tree import Alias


@dataclass(frozen=True, slots=True)
class Fault:
    """Bytes ``[start, stop)`` of a leaf that no span holds (GAP), or that one span too many holds (EXTRA)."""

    leaf: int
    start: int
    stop: int
    kind: str


GAP, EXTRA = "gap", "extra"


def find_faults(sizes: npt.NDArray[np.uint64], spans: Iterable[npt.NDArray[np.void]]) -> list[Fault]:
    """Compare spans with the leaves they should cover."""
    tables = list(spans)
    empty = np.zeros(0, dtype=np.uint64)
    leaf, start, length = (
        np.concatenate([table[name].astype(np.uint64) for table in tables]) if tables else empty
        for name in ("leaf", "start", "length")
    )
    order = np.lexsort((start, leaf))
    leaf, start, stop = leaf[order], start[order], (start + length)[order]
    expected = np.zeros(len(leaf), dtype=np.uint64)
    same = leaf[1:] == leaf[:-1]
    expected[1:][same] = stop[:-1][same]
    suspects = set(leaf[start != expected].tolist()) | set(leaf[leaf >= len(sizes)].tolist())
    known = leaf < len(sizes)
    covered = np.zeros(len(sizes), dtype=np.uint64)
    np.maximum.at(covered, leaf[known].astype(np.int64), stop[known])
    suspects |= set(np.flatnonzero(covered != sizes).tolist())
    faults: list[Fault] = []
    for suspect in sorted(suspects):
        first, last = np.searchsorted(leaf, np.array([suspect, suspect + 1], dtype=np.uint64)).tolist()
        ranges = zip(start[first:last].tolist(), stop[first:last].tolist(), strict=True)
        faults += _leaf_faults(suspect, int(sizes[suspect]) if suspect < len(sizes) else 0, ranges)
    return faults


def _leaf_faults(leaf: int, size: int, ranges: Iterable[tuple[int, int]]) -> list[Fault]:
    """Walk the spans of one leaf, ascending by start."""
    faults: list[Fault] = []
    done = 0
    for start, stop in (*ranges, (size, size)):
        if min(start, size) > done:
            faults.append(Fault(leaf, done, min(start, size), GAP))
        for first, last in ((start, min(done, stop)), (max(start, done, size), stop)):  # held before; behind the end
            if first < last:
                faults.append(Fault(leaf, first, last, EXTRA))
        done = max(done, stop)
    return faults


_NOTHING = Structure(RankLocalMark(), (), np.zeros(0, dtype=np.bool_))


class ShardCover:
    """Takes in part after part."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._of_ranks: dict[int, Structure] = {}
        self._spans: dict[int, npt.NDArray[np.void]] = {}

    def of_part(self, part: OpenPart, structure: Structure) -> frozenset[int]:
        """Take in a part; returns the numbers of the leaves in it that are shards."""
        try:
            found = part.own.complete(structure, self._where)
        except FormatError:  # told where the document is checked
            return frozenset()
        self._of_ranks[part.record.rank] = found
        self._spans[part.record.rank] = rank_spans(part.reader)
        return found.shard_leaves()

    def faults(self, parts: int) -> Iterator[tuple[str, str]]:
        """Name of each tensor that is not whole, and why."""
        ranks = range(parts)
        try:
            global_state = gather_global_state([self._of_ranks.get(rank, _NOTHING) for rank in ranks], (), self._where)
        except CorruptFileError as error:
            yield "(sharded tensors)", f"{error.summary} ({error.found})"
            return
        nothing = np.zeros(0, dtype=SPAN_DTYPE)
        spans = [RankSpans(self._spans.get(rank, nothing)) for rank in ranks]
        for key, tensor in global_state.tensors.items():
            try:
                GlobalState({key: tensor}).check(self._where)
                check_bytes(tensor, spans, self._where)
            except CorruptFileError as error:
                yield tensor.name, f"{error.summary} ({error.found})"


@dataclass(frozen=True, slots=True)
class DamagedLeaf:
    """Bytes ``[start, stop)`` of a leaf, in C order, that cannot be had.

    Attributes:
        path: components joined by ``/``.
        rank: whose copy, for a leaf that each rank saved for itself; None if replicated.
        start, stop: None for a small value, and where only the leaf is known: all of a rank's own leaves in a part that
            cannot be read, and leaves that share memory with the one hit.
    """

    path: str
    rank: int | None
    start: int | None
    stop: int | None

    @property
    def name(self) -> str:
        """The path, and the rank where there is one."""
        return self.path if self.rank is None else f"{self.path} (rank {self.rank})"


class LeafNames:
    """From bytes of parts to the leaves of one structure."""

    def __init__(self, structure: Structure) -> None:
        self._structure = structure
        self._paths = [readable(path) for path in structure.array_paths()]
        self._values = {node.index: path for path, node in structure.walk() if isinstance(node, SavedValue)}
        self._tied: dict[int, list[tuple[str, int, int]]] = {}
        for index, alias in structure.aliases.items():
            extent = self._extent(index, alias)
            self._tied.setdefault(alias.owner, []).append((self._paths[index], *extent))
        self.shared_sizes = np.zeros(len(structure.types), dtype=np.uint64)
        for index, kind in enumerate(structure.types):
            if not structure.per_rank[index] and index not in structure.aliases:
                self.shared_sizes[index] = kind.nbytes

    def _extent(self, index: int, alias: Alias) -> tuple[int, int]:
        """The bytes of its owner between which an alias lies."""
        kind = self._structure.types[index]
        steps = zip(kind.shape, alias.strides, strict=True)
        last = sum((length - 1) * stride for length, stride in steps) if kind.nbytes else -1
        return alias.offset, alias.offset + (last + 1) * kind.itemsize

    def own_sizes(self, own: RankDocument) -> npt.NDArray[np.uint64]:
        """Bytes of each leaf that a rank saved for itself; 0 for the others, and for shards of tensors."""
        sizes, shards = np.zeros(len(self._paths), dtype=np.uint64), self._structure.shard_leaves()
        for index, kind in own.types.items():
            if 0 <= index < len(sizes) and index not in self._structure.aliases and index not in shards:
                sizes[index] = kind.nbytes
        return sizes

    def all_own(self, rank: int) -> tuple[DamagedLeaf, ...]:
        """Everything that only this rank's part holds."""
        own = np.flatnonzero(self._structure.per_rank).tolist()
        leaves = [DamagedLeaf(self._paths[index], rank, None, None) for index in own]
        for index in np.flatnonzero(self._structure.per_rank_values).tolist():
            leaves.append(DamagedLeaf(readable(self._values[index]), rank, None, None))
        return tuple(leaves)

    def of_faults(self, faults: Iterable[Fault], rank: int | None) -> tuple[DamagedLeaf, ...]:
        """The leaves in which coverage faults lie."""
        leaves: list[DamagedLeaf] = []
        for fault in faults:
            leaves += self._at(fault.leaf, fault.start, fault.stop, rank)
        return tuple(leaves)

    def in_raw_range(self, spans: npt.NDArray[np.void], first: int, last: int, rank: int) -> tuple[DamagedLeaf, ...]:
        """The leaves whose bytes stand in ``[first, last)`` of a part's raw stream."""
        begins = spans["raw_offset"]
        ends = begins + spans["length"]
        leaves: list[DamagedLeaf] = []
        for row in spans[(begins < last) & (ends > first)].tolist():
            leaf, table, start, length, raw_offset = row
            low, high = max(first, raw_offset) - raw_offset, min(last, raw_offset + length) - raw_offset
            leaves += self._at(leaf, start + low, start + high, rank if table else None)
        return tuple(leaves)

    def _at(self, leaf: int, start: int, stop: int, rank: int | None) -> list[DamagedLeaf]:
        """A range of a leaf, and of what shares memory with it."""
        if leaf >= len(self._paths):
            return [DamagedLeaf(f"(leaf {leaf}, which the structure lacks)", rank, start, stop)]
        leaves = [DamagedLeaf(self._paths[leaf], rank, start, stop)]
        for path, begin, end in self._tied.get(leaf, []):
            if begin < stop and end > start:
                leaves.append(DamagedLeaf(path, rank, None, None))
        return leaves
