"""The records of a structure document: the state as it was when it was saved.

The document is written once per checkpoint, into rank 0's part and into the manifest, and described in docs/format.md
(:mod:`deeppart.state.document.structure_json` writes and reads it).

Invariants: leaf and value numbers follow the canonical order of :mod:`deeppart.state.tree.flattening`, so they are the
same on every rank; the document keeps the insertion order of rank 0's dicts for ``load``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from deeppart.model import Division
from deeppart.state.paths import ExactPath, Path, exact
from deeppart.state.tensors import LeafType
from deeppart.state.tree import Alias, ArrayLeaf, Leaf, Node, walk_tree
from deeppart.state.values import Encoded


@dataclass(frozen=True, slots=True)
class Structure:
    """The decoded structure document.

    Attributes:
        tree: the nesting.
        types: type of each leaf (of rank 0, for per-rank leaves).
        per_rank: bool per leaf.
        aliases: leaf number -> what it shares memory with.
        values: encoded value per value number; None for the per-rank ones.
        per_rank_values: bool per value.
        rank0: paths of what is rank 0's, whatever the others held.
        has_rank_local: true if ranks have saved anything outside the structure that they share.
        shared: number of leaves before those that are rank-local on one rank, if this is the structure of its state.
        divisions: leaf number -> how it is divided into boxes, of the global tensors: those of which ranks have shards.
        placeless: those of them that are not in the tree: parts of one state, or a rank's own, have them in theirs.
        is_unmarked: true if it is known that nothing in the tree marks the place of what is rank-local.
    """

    tree: Node
    types: tuple[LeafType, ...]
    per_rank: npt.NDArray[np.bool_]
    aliases: dict[int, Alias] = field(default_factory=dict)
    values: tuple[Encoded, ...] = ()
    per_rank_values: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    rank0: frozenset[ExactPath] = frozenset()
    has_rank_local: bool = False
    shared: int | None = None
    divisions: Mapping[int, Division] = field(default_factory=dict)
    placeless: frozenset[int] = frozenset()
    is_unmarked: bool = False

    def walk(self) -> Iterator[tuple[Path, Leaf]]:
        """Every leaf and value with its path, in the order of the tree."""
        yield from walk_tree(self.tree, ())

    def rank0_leaves(self) -> dict[int, ExactPath]:
        """Leaves that are rank 0's -> the path below which all is."""
        found: dict[int, ExactPath] = {}
        for path, node in self.walk() if self.rank0 else ():
            keys = exact(path)
            for length in range(len(keys) + 1):
                if isinstance(node, ArrayLeaf) and keys[:length] in self.rank0:
                    found[node.index] = keys[:length]
        return found

    def array_paths(self) -> list[Path]:
        """Path of each leaf, by leaf number."""
        paths: list[Path] = [()] * len(self.types)
        for path, node in self.walk():
            if isinstance(node, ArrayLeaf):
                paths[node.index] = path
        return paths
