"""Which leaves bytes of a part belong to, and what is said of those that are damaged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deeppart.model import Box
from deeppart.state.document import Structure
from deeppart.state.paths import readable
from deeppart.state.pieces import Fault
from deeppart.state.tree import Alias, ValueLeaf


@dataclass(frozen=True, slots=True)
class DamagedLeaf:
    """Bytes ``[start, stop)`` of a leaf, or of a box of it, in C order, that cannot be had.

    Attributes:
        path: components joined by ``/``.
        rank: whose copy, for a leaf that each rank saved for itself; None if replicated.
        start, stop: None for a small value, and where only the leaf is known: all of a rank's own leaves in a part that
            cannot be read, and leaves that share memory with the one hit.
        box: of a sharded tensor the part in which they are.
    """

    path: str
    rank: int | None
    start: int | None
    stop: int | None
    box: Box | None = None

    @property
    def name(self) -> str:
        """The path, and the rank where there is one."""
        return self.path if self.rank is None else f"{self.path} (rank {self.rank})"


class LeafNames:
    """From bytes of parts to the leaves of one structure."""

    def __init__(self, structure: Structure) -> None:
        self._structure = structure
        self._paths = [readable(path) for path in structure.array_paths()]
        self._values = {node.index: path for path, node in structure.walk() if isinstance(node, ValueLeaf)}
        self._tied: dict[int, list[tuple[str, int, int]]] = {}
        for index, alias in structure.aliases.items():
            extent = self._extent(index, alias)
            self._tied.setdefault(alias.owner, []).append((self._paths[index], *extent))

    def _extent(self, index: int, alias: Alias) -> tuple[int, int]:
        """The bytes of its owner between which an alias lies."""
        kind = self._structure.types[index]
        steps = zip(kind.shape, alias.strides, strict=True)
        last = sum((length - 1) * stride for length, stride in steps) if kind.nbytes else -1
        return alias.offset, alias.offset + (last + 1) * kind.itemsize

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
            leaves += self._at(fault.leaf, fault.box, fault.start, fault.stop, rank)
        return tuple(leaves)

    def in_raw_range(self, spans: npt.NDArray[np.void], first: int, last: int, rank: int) -> tuple[DamagedLeaf, ...]:
        """The leaves whose bytes stand in ``[first, last)`` of a part's raw stream."""
        begins = spans["raw_offset"]
        ends = begins + spans["length"]
        leaves: list[DamagedLeaf] = []
        for row in spans[(begins < last) & (ends > first)].tolist():
            leaf, table, box, start, length, raw_offset = row
            low, high = max(first, raw_offset) - raw_offset, min(last, raw_offset + length) - raw_offset
            leaves += self._at(leaf, box, start + low, start + high, rank if table else None)
        return tuple(leaves)

    def _at(self, leaf: int, number: int, start: int, stop: int, rank: int | None) -> list[DamagedLeaf]:
        """A range of a leaf, and of what shares memory with it."""
        if leaf >= len(self._paths):
            return [DamagedLeaf(f"(leaf {leaf}, which the structure lacks)", rank, start, stop)]
        division = self._structure.divisions.get(leaf)
        box = division.box(number) if division is not None and number < len(division) else None
        leaves = [DamagedLeaf(self._paths[leaf], rank, start, stop, box)]
        for path, begin, end in self._tied.get(leaf, []):
            if division is not None or (begin < stop and end > start):
                leaves.append(DamagedLeaf(path, rank, None, None))
        return leaves
