"""The records of a structure document: the structure of a state when it was saved.

The document is written once per checkpoint, into rank 0's part and into the manifest (docs/format.md;
:mod:`deeppart.state.document.structure_json` writes and reads it).

Invariants: leaves and values are numbered together, in an order that is the same on every rank
(:class:`deeppart.state.tree.flat.FlatState`); the document keeps the insertion order of rank 0's dicts for ``load``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from deeppart.model import Division
from deeppart.state.paths import ExactPath, Path
from deeppart.state.tensors import LeafType
from deeppart.state.tree import Alias, ArrayLeaf, Leaf, Node, ValueLeaf, walk_tree


@dataclass(frozen=True, slots=True)
class PartValue:
    """A small value in a part of one state, as all ranks that had it saved it.

    Attributes:
        name: its path as text.
        contents: rank -> its value, ascending.
        differs: true if the ranks' values differ.
    """

    name: str
    contents: Mapping[int, Any]
    differs: bool

    def of(self, rank: int | None) -> Any:
        """The value of one rank; if it had none, or for None, that of the lowest rank that had one."""
        lowest = next(iter(self.contents.values()))
        return lowest if rank is None else self.contents.get(rank, lowest)


@dataclass(frozen=True, slots=True)
class Structure:
    """The decoded structure document; of a rank's state with its rank-local items, and of all with the parts of one
    state (:mod:`deeppart.state.document.global_state`).

    Attributes:
        tree: the tree of containers.
        types: number of a leaf -> its type (on rank 0, for per-rank leaves).
        values: number of a value -> it; None for the per-rank ones.
        per_rank: by number, bool.
        aliases: leaf number -> owner and view, for leaves that share memory.
        rank0: paths of items that rank 0 saved for all ranks.
        has_rank_local: true if ranks saved items outside the shared structure.
        divisions: leaf number -> division into boxes, for global tensors.
        placeless: global tensors that are not in the tree, but in rank-local trees or parts of one state.
        in_parts: values in parts of one state, by number.
        is_unmarked: true if the tree is known to have no placeholders for rank-local items.
    """

    tree: Node
    types: Mapping[int, LeafType]
    values: Mapping[int, Any]
    per_rank: npt.NDArray[np.bool_]
    aliases: dict[int, Alias] = field(default_factory=dict)
    rank0: frozenset[ExactPath] = frozenset()
    has_rank_local: bool = False
    divisions: Mapping[int, Division] = field(default_factory=dict)
    placeless: frozenset[int] = frozenset()
    in_parts: Mapping[int, PartValue] = field(default_factory=dict)
    is_unmarked: bool = False

    def __len__(self) -> int:
        """How many leaves and values it numbers."""
        return len(self.per_rank)

    def walk(self) -> Iterator[tuple[Path, Leaf]]:
        """Every leaf and value with its path, in the order of the tree."""
        yield from walk_tree(self.tree, ())

    def paths(self) -> list[Path]:
        """By number, the path of each leaf and value in the tree."""
        paths: list[Path] = [()] * len(self)
        for path, node in self.walk():
            if isinstance(node, (ArrayLeaf, ValueLeaf)):
                paths[node.index] = path
        return paths

    def extended(
        self, tree: Node, types: Mapping[int, LeafType], values: Iterable[int], *, per_rank: bool
    ) -> Structure:
        """The structure with another tree, and further leaves and values, numbered after the others."""
        added = len(types) + len(values := list(values))
        return replace(
            self,
            tree=tree,
            types={**self.types, **types},
            values={**self.values, **dict.fromkeys(values)},
            per_rank=np.append(self.per_rank, np.full(added, per_rank)),
        )
