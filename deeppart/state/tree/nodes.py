"""The nodes of a state's tree, live or as it was saved, and walks over it.

Both kinds of tree have the same nodes: containers, and leaves that are numbers of rows in tables. A node of a live tree
also refers to what it was read from.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from deeppart.model import Box
from deeppart.state.objects import REGISTERED, ObjectForm
from deeppart.state.paths import ExactPath, IdKey, Key, Path, exact, id_keys
from deeppart.state.tensors import COMPOSITES, LeafType

#: Dicts and how they are called in a tree. A Counter is what MultiStepLR keeps its milestones in.
DICT_KINDS: dict[type, str] = {
    dict: "dict",
    OrderedDict: "odict",
    Counter: "counter",
    defaultdict: "defaultdict",
}
#: Kinds of branches that are dicts.
DICTS = frozenset(DICT_KINDS.values())
_TUPLES = ("tuple", "namedtuple")
#: numpy/random/bit_generator.pyx: what every bit generator's state has.
_GENERATOR_KEY = "bit_generator"


@dataclass(slots=True)
class ArrayLeaf:
    """A tensor or numpy array.

    Attributes:
        index: its number among the leaves with bytes. Of a live state, ``FlatState.data[index]`` is the array itself.
        path: of a live one.
        inside: how many of the last keys of its path lead into a tensor of which it is a component.
    """

    index: int
    path: Path = ()
    inside: int = 0


@dataclass(slots=True)
class ValueLeaf:
    """A small value, or a container of nothing but small values (:mod:`.value_containers`).

    Attributes:
        index: its number among the values.
        value: the live one; of a saved tree, the values are in a table.
        path, inside: as of :class:`ArrayLeaf`.
    """

    index: int
    value: Any = None
    path: Path = ()
    inside: int = 0


@dataclass(slots=True)
class UnmadeLeaf:
    """A tensor on the meta device, in a live state that is restored: it has no memory to be filled."""

    path: Path
    kind: LeafType


@dataclass(slots=True)
class ShardedLeaf:
    """A live tensor of which every rank has shards; those of this rank are leaves with bytes behind all others.

    Attributes:
        path: its path.
        index: its number among the sharded tensors of the state.
        kind: dtype and shape of the whole tensor.
        item: the live tensor; a plain one where other ranks have nothing.
        boxes: of this rank's shards.
        first: number of the first of their arrays; the others follow.
        layout: as of :class:`~deeppart.state.tensors.sharded.Shards`.
    """

    path: Path
    index: int
    kind: LeafType
    item: Any
    boxes: tuple[Box, ...]
    first: int
    layout: Any

    @property
    def numbers(self) -> range:
        """Of the arrays of its shards."""
        return range(self.first, self.first + len(self.boxes))


@dataclass(slots=True)
class RankLocal:
    """Something that is no part of the structure that all ranks share; in a saved tree, only that there is something.

    Attributes:
        path: its path, in a live tree.
        mine: true if every rank saves its own; otherwise rank 0's is saved for all.
        node: the node of this rank; None on the other ranks if it is rank 0's.
        place: of a dict's key, how many come before it in insertion order; None in other containers.
        part: true if it is one of :attr:`RankLocalRules.parts`.
    """

    path: Path = ()
    mine: bool = True
    node: Node | None = None
    place: int | None = None
    part: bool = False


@dataclass(slots=True)
class Branch:
    """A container of the state.

    Attributes:
        kind: "dict", "odict", "counter", "defaultdict", "list", "tuple", "namedtuple", "object", or that of a tensor
            that is made of others (:mod:`deeppart.state.tensors.composites`).
        keys: dict keys, in canonical order if it is live and in insertion order if it was saved; field names of a
            namedtuple, names of components, otherwise indices. An object has one child, under None.
        children: the nodes under the keys, in the same order; for an object its state_dict(), or its data, alone.
        name: type name of a namedtuple, object or subclass of tensors, for display and to tell it from others.
        form: of an object without a ``state_dict()`` what it is.
        metadata: ``_metadata`` of a module's state_dict that was saved, or None.
        container: the live container; for "object" the live object, or the live tensor.
        path: of a live one.
    """

    kind: str
    keys: Sequence[Key]
    children: Sequence[Node]
    name: str = ""
    form: ObjectForm | None = None
    metadata: Any = None
    container: Any = None
    path: Path = ()

    def with_items(self, items: Iterable[tuple[Key, Node]]) -> Branch:
        """The same container with other keys and children."""
        pairs = list(items)
        return replace(self, keys=tuple(key for key, _ in pairs), children=tuple(child for _, child in pairs))

    @property
    def is_object(self) -> bool:
        """True for an object with a ``state_dict()``."""
        return self.kind == "object" and self.form is None

    @property
    def ordered_keys(self) -> Iterable[Key]:
        """The keys of a dict in insertion order."""
        return self.keys if self.container is None else self.container

    def by_key(self) -> dict[IdKey, Node]:
        """The children by their keys."""
        return dict(zip(id_keys(self.keys), self.children, strict=True))

    def items(self, path: Path) -> Iterator[tuple[Path, Node]]:
        """The children with their paths, below a branch at ``path``; what is in an object has the object's."""
        for key, child in zip(self.keys, self.children, strict=True):
            yield path if self.kind == "object" else (*path, key), child


Leaf = ArrayLeaf | ValueLeaf | ShardedLeaf | UnmadeLeaf
Node = Branch | Leaf | RankLocal


def inside_objects(node: Node) -> Node:
    """What an object's ``state_dict()`` gave, or its data; anything else as it is."""
    while isinstance(node, Branch) and node.kind == "object":
        node = node.children[0]
    return node


def walk_tree(node: Node, path: Path) -> Iterator[tuple[Path, Leaf]]:
    """Every leaf and value of a tree that stands at a path; what is rank-local is not among them."""
    if isinstance(node, RankLocal):
        return
    if not isinstance(node, Branch):
        yield path, node
        return
    for inner, child in node.items(path):
        yield from walk_tree(child, inner)


@dataclass(frozen=True, slots=True)
class LeafNumbers:
    """Some leaves.

    Attributes:
        arrays, values: numbers of those with bytes, and of small values.
    """

    arrays: set[int] = field(default_factory=set)
    values: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, node: Node) -> LeafNumbers:
        """Those of a tree; of what is rank-local there are none."""
        leaves = [leaf for _, leaf in walk_tree(node, ())]
        arrays = {leaf.index for leaf in leaves if isinstance(leaf, ArrayLeaf)}
        return cls(arrays, {leaf.index for leaf in leaves if isinstance(leaf, ValueLeaf)})

    def any(self) -> bool:
        """True if there is anything."""
        return bool(self.arrays or self.values)

    def covers(self, other: LeafNumbers) -> bool:
        """True if it has all that another one has."""
        return self.arrays.issuperset(other.arrays) and self.values.issuperset(other.values)

    def meets(self, other: LeafNumbers) -> bool:
        """True if it has anything that another one has."""
        return not (self.arrays.isdisjoint(other.arrays) and self.values.isdisjoint(other.values))

    def add(self, other: LeafNumbers) -> None:
        """Take in another one."""
        self.arrays.update(other.arrays)
        self.values.update(other.values)


def with_items_at(root: Node, items: Mapping[ExactPath, Node | None]) -> Node:
    """A saved tree with other items at some paths; None for nothing."""
    around = {path[:end] for path in items for end in range(len(path))}
    return _with_items_at(root, (), items, around) if items else root


def _with_items_at(node: Node, path: Path, items: Mapping[ExactPath, Node | None], around: set[ExactPath]) -> Node:
    if not isinstance(node, Branch):
        return node
    if node.kind == "object":
        return replace(node, children=(_with_items_at(node.children[0], path, items, around),))
    kept: list[tuple[Key, Node]] = []
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


def units_of(tree: Node, wanted: LeafNumbers) -> list[tuple[Path, LeafNumbers]]:
    """The outermost containers that hold any of these leaves and are restored as a whole or not at all.

    The state itself is none, unless it is a tensor.
    """
    units = [(path, LeafNumbers.of(branch)) for path, branch in _outermost(tree, ())]
    return [(path, numbers) for path, numbers in units if numbers.meets(wanted)]


def _outermost(node: Node, path: Path) -> Iterator[tuple[Path, Branch]]:
    if not isinstance(node, Branch):
        return
    if node.kind in COMPOSITES or (node.form is not None and node.form.kind == REGISTERED):
        yield path, node
        return
    is_generator = node.kind in DICTS and _GENERATOR_KEY in node.keys
    if path and (node.kind in _TUPLES or is_generator) and not _has_objects(node):
        yield path, node
        return
    for inner, child in node.items(path):
        yield from _outermost(child, inner)


def _has_objects(node: Node) -> bool:
    if not isinstance(node, Branch):
        return False
    return (node.is_object) or any(map(_has_objects, node.children))
