"""The records of a structure document: the state as it was when it was saved.

The document is written once per checkpoint, into rank 0's part and into the manifest, and described in docs/format.md
(:mod:`deeppart.state.document.structure_json` writes and reads it).

Invariants: leaf and value numbers follow the canonical order of :mod:`deeppart.state.tree.flattening`, so they are the
same on every rank; the document keeps the insertion order of rank 0's dicts for ``load``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from deeppart.model import Division
from deeppart.state.objects import REGISTERED, ObjectForm
from deeppart.state.paths import ExactPath, Key, Path, exact
from deeppart.state.tensors import COMPOSITES, LeafType
from deeppart.state.tree import DICT_KINDS, Alias
from deeppart.state.values import Encoded

#: Kinds of branches that are dicts.
DICTS = frozenset(DICT_KINDS.values())
_TUPLES = ("tuple", "namedtuple")
#: numpy/random/bit_generator.pyx: what every bit generator's state has.
_GENERATOR_KEY = "bit_generator"


@dataclass(frozen=True, slots=True)
class SavedArray:
    """Place of an array leaf in the tree."""

    index: int


@dataclass(frozen=True, slots=True)
class SavedValue:
    """Place of a small value in the tree."""

    index: int


@dataclass(frozen=True, slots=True)
class RankLocalMark:
    """Place of something that each rank has saved for itself; its part's document says what (``rank_local.py``)."""


@dataclass(frozen=True, slots=True)
class SavedBranch:
    """A container in the tree.

    Attributes:
        kind: as :class:`deeppart.state.tree.flat.Branch`.
        keys: dict keys in insertion order, namedtuple fields, names of components, or list indices.
        name: type name of a namedtuple, object or subclass of tensors, for display and to tell it from others.
        metadata: ``_metadata`` of a module's state_dict, or None.
        form: of an object without a ``state_dict()`` what it was.
    """

    kind: str
    keys: tuple[Key, ...]
    children: tuple[SavedNode, ...]
    name: str = ""
    metadata: Any = None
    form: ObjectForm | None = None

    def with_items(self, items: Iterable[tuple[Key, SavedNode]]) -> SavedBranch:
        """The same container with other keys and children."""
        pairs = list(items)
        return replace(self, keys=tuple(key for key, _ in pairs), children=tuple(child for _, child in pairs))


SavedNode = SavedBranch | SavedArray | SavedValue | RankLocalMark
#: What is in the tree, and no container.
SavedLeaf = SavedArray | SavedValue


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

    tree: SavedNode
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

    def walk(self) -> Iterator[tuple[Path, SavedLeaf]]:
        """Every leaf and value with its path, in the order of the tree."""
        yield from walk_tree(self.tree, ())

    def rank0_leaves(self) -> dict[int, ExactPath]:
        """Leaves that are rank 0's -> the path below which all is."""
        found: dict[int, ExactPath] = {}
        for path, node in self.walk() if self.rank0 else ():
            keys = exact(path)
            for length in range(len(keys) + 1):
                if isinstance(node, SavedArray) and keys[:length] in self.rank0:
                    found[node.index] = keys[:length]
        return found

    def array_paths(self) -> list[Path]:
        """Path of each leaf, by leaf number."""
        paths: list[Path] = [()] * len(self.types)
        for path, node in self.walk():
            if isinstance(node, SavedArray):
                paths[node.index] = path
        return paths


def array_numbers(tree: SavedNode) -> set[int]:
    """Numbers of the leaves with bytes in a tree; of what is rank-local there are none."""
    return {node.index for _, node in walk_tree(tree, ()) if isinstance(node, SavedArray)}


def walk_tree(node: SavedNode, path: Path) -> Iterator[tuple[Path, SavedLeaf]]:
    """Every leaf and value of a tree that stands at a path; what is rank-local is not among them."""
    if isinstance(node, RankLocalMark):
        return
    if not isinstance(node, SavedBranch):
        yield path, node
        return
    for key, child in zip(node.keys, node.children, strict=True):
        yield from walk_tree(child, path if node.kind == "object" else (*path, key))


def with_items_at(root: SavedNode, items: Mapping[ExactPath, SavedNode | None]) -> SavedNode:
    """A tree with other items at some paths; None for nothing."""
    around = {path[:end] for path in items for end in range(len(path))}
    return _with_items_at(root, (), items, around) if items else root


def _with_items_at(
    node: SavedNode, path: Path, items: Mapping[ExactPath, SavedNode | None], around: set[ExactPath]
) -> SavedNode:
    if not isinstance(node, SavedBranch):
        return node
    if node.kind == "object":
        return replace(node, children=(_with_items_at(node.children[0], path, items, around),))
    kept: list[tuple[Key, SavedNode]] = []
    for key, child in zip(node.keys, node.children, strict=True):
        inner = (*path, key)
        place = exact(inner)
        found = items.get(place, child)
        if place in around and found is child:
            found = _with_items_at(child, inner, items, around)
        if found is not None:
            kept.append((key, found))
    return node.with_items(kept)


# --- containers that are restored as a whole --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unit:
    """A container that is restored as a whole or not at all.

    Attributes:
        path: its path.
        arrays, values: numbers of the leaves and values in it.
    """

    path: Path
    arrays: frozenset[int]
    values: frozenset[int]


def units_of(tree: SavedNode, arrays: set[int], values: set[int]) -> list[Unit]:
    """The outermost units that hold any of these leaves or values; the state itself is none, unless it is a tensor."""
    found = []
    for path, branch in _outermost(tree, ()):
        leaves = [leaf for _, leaf in walk_tree(branch, path)]
        unit = Unit(
            path,
            frozenset(leaf.index for leaf in leaves if isinstance(leaf, SavedArray)),
            frozenset(leaf.index for leaf in leaves if isinstance(leaf, SavedValue)),
        )
        if unit.arrays & arrays or unit.values & values:
            found.append(unit)
    return found


def _outermost(node: SavedNode, path: Path) -> Iterator[tuple[Path, SavedBranch]]:
    if not isinstance(node, SavedBranch):
        return
    if node.kind in COMPOSITES or (node.form is not None and node.form.kind == REGISTERED):
        yield path, node
        return
    is_generator = node.kind in DICTS and _GENERATOR_KEY in node.keys
    if path and (node.kind in _TUPLES or is_generator) and not _has_objects(node):
        yield path, node
        return
    for key, child in zip(node.keys, node.children, strict=True):
        inner = path if node.kind == "object" else (*path, key)
        yield from _outermost(child, inner)


def _has_objects(node: SavedNode) -> bool:
    if not isinstance(node, SavedBranch):
        return False
    return (node.kind == "object" and node.form is None) or any(map(_has_objects, node.children))
