"""The records of a structure document: the structure of a state when it was saved.

The document is written once per checkpoint, into rank 0's part and into the manifest (docs/format.md;
:mod:`deeppart.state.document.structure_json` writes and reads it).

Invariants: leaf and value numbers follow the canonical order of :mod:`deeppart.state.tree.flattening`, so they are the
same on every rank; the document keeps the insertion order of rank 0's dicts for ``load``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from deeppart.model import Division
from deeppart.state.paths import ExactPath, Path
from deeppart.state.tensors import LeafType
from deeppart.state.tree import Alias, ArrayLeaf, Leaf, Node, walk_tree
from deeppart.state.values import Encoded


@dataclass(frozen=True, slots=True)
class Structure:
    """The decoded structure document.

    Attributes:
        tree: the tree of containers.
        types: type of each leaf (on rank 0, for per-rank leaves).
        per_rank: bool per leaf.
        aliases: leaf number -> owner and view, for leaves that share memory.
        values: encoded value per value number; None for the per-rank ones.
        per_rank_values: bool per value.
        rank0: paths of items that rank 0 saved for all ranks.
        has_rank_local: true if ranks saved items outside the shared structure.
        divisions: leaf number -> division into boxes, for global tensors.
        placeless: global tensors that are not in the tree, but in rank-local trees or parts of one state.
        is_unmarked: true if the tree is known to have no placeholders for rank-local items.
    """

    tree: Node
    types: tuple[LeafType, ...]
    per_rank: npt.NDArray[np.bool_]
    aliases: dict[int, Alias] = field(default_factory=dict)
    values: tuple[Encoded, ...] = ()
    per_rank_values: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    rank0: frozenset[ExactPath] = frozenset()
    has_rank_local: bool = False
    divisions: Mapping[int, Division] = field(default_factory=dict)
    placeless: frozenset[int] = frozenset()
    is_unmarked: bool = False

    def walk(self) -> Iterator[tuple[Path, Leaf]]:
        """Every leaf and value with its path, in the order of the tree."""
        yield from walk_tree(self.tree, ())

    def array_paths(self) -> list[Path]:
        """Path of each leaf, by leaf number."""
        paths: list[Path] = [()] * len(self.types)
        for path, node in self.walk():
            if isinstance(node, ArrayLeaf):
                paths[node.index] = path
        return paths
