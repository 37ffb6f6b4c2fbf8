"""The nodes of a state's tree, live or saved, and walks over it.

Both kinds of tree consist of containers, and of leaves that are row numbers in tables. A node of a live tree also
refers to the live object.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from deeppart.model import Box
from deeppart.state.objects import REGISTERED, ObjectForm
from deeppart.state.paths import ExactPath, IdKey, Key, Path, exact, id_keys
from deeppart.state.tensors import COMPOSITES, LeafType

#: Dict types and their names in a tree. MultiStepLR keeps its milestones in a Counter.
DICT_KINDS: dict[type, str] = {
    dict: "dict",
    OrderedDict: "odict",
    Counter: "counter",
    defaultdict: "defaultdict",
}
#: Kinds of branches that are dicts.
DICTS = frozenset(DICT_KINDS.values())
_TUPLES = ("tuple", "namedtuple")
#: The key in the state of every bit generator (numpy/random/bit_generator.pyx).
_GENERATOR_KEY = "bit_generator"


@dataclass(slots=True)
class ArrayLeaf:
    """A tensor or numpy array.

    Attributes:
        index: its number. In a live state, ``FlatState.data[index]`` is the array itself.
        path: its path; only in a live tree.
        inside: how many of the last keys of its path are within a tensor of which it is a component.
    """

    index: int
    path: Path = ()
    inside: int = 0


@dataclass(slots=True)
class ValueLeaf:
    """A small value, or a container of nothing but small values (:mod:`.value_containers`).

    Attributes:
        index: its number; in a live state, small values are numbered after all arrays.
        value: the live value; only in a live tree: those of a saved tree are in a table.
        path, inside: as of :class:`ArrayLeaf`.
    """

    index: int
    value: Any = None
    path: Path = ()
    inside: int = 0


@dataclass(slots=True)
class UnmadeLeaf:
    """A tensor on the meta device in a live state: it has no memory to restore into."""

    path: Path
    kind: LeafType
    item: Any


@dataclass(slots=True)
class ShardedLeaf:
    """A live tensor of which each rank has shards. The shards of this rank are arrays, numbered after all others.

    Attributes:
        path: its path.
        index: its number among the sharded tensors of the state.
        kind: dtype and shape of the global tensor.
        item: the live tensor; a plain one if one rank has all of it.
        boxes: the boxes of this rank's shards.
        first: number of the array of the first shard; the others follow.
        layout: see :class:`~deeppart.state.tensors.sharded.Shards`.
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
        """The numbers of the arrays of its shards."""
        return range(self.first, self.first + len(self.boxes))


@dataclass(slots=True)
class RankLocal:
    """An item outside the structure that all ranks share. In a saved tree it is a placeholder without content.

    Attributes:
        path: its path; in a saved tree, that of an item that the ranks of another number had for themselves.
        mine: true if every rank saves its own item; false if rank 0's is saved for all.
        node: this rank's node; None if the item is rank 0's and this is another rank.
        position: the number of keys before it in the insertion order of its dict; None in other containers.
        part: true if its path is in :attr:`RankLocalRules.parts`.
    """

    path: Path = ()
    mine: bool = True
    node: Node | None = None
    position: int | None = None
    part: bool = False


@dataclass(slots=True)
class Branch:
    """A container of the state.

    Attributes:
        kind: "dict", "odict", "counter", "defaultdict", "list", "tuple", "namedtuple", "object", or the kind of a
            composite tensor (:mod:`deeppart.state.tensors.composites`).
        keys: dict keys, in canonical order in a live tree and in insertion order in a saved one; field names of a
            namedtuple; names of components; otherwise indices. An object has one child, under None.
        children: the nodes under the keys, in the same order; the child of an object is its state_dict() or its data.
        name: type name of a namedtuple, object or tensor subclass, for display and comparison.
        form: how an object without a ``state_dict()`` is saved as data.
        metadata: ``_metadata`` of a saved module state_dict, or None.
        container: the live container, object or tensor.
        path: its path; only in a live tree.
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
    def has_objects(self) -> bool:
        """True if it is, or has inside, an object with a ``state_dict()``."""
        return any(isinstance(each, Branch) and each.is_object for _, each in every_node(self, ()))

    def by_key(self) -> dict[IdKey, Node]:
        """The children by their keys."""
        return dict(zip(id_keys(self.keys), self.children, strict=True))

    def keys_besides(self, names: Iterable[IdKey]) -> list[Key]:
        """The keys that are not among these."""
        others = set(names)
        return [key for key, name in zip(self.keys, id_keys(self.keys), strict=True) if name not in others]

    def items(self, path: Path) -> Iterator[tuple[Path, Node]]:
        """The children with their paths, for a branch at ``path``; the child of an object has the object's path."""
        for key, child in zip(self.keys, self.children, strict=True):
            yield path if self.kind == "object" else (*path, key), child


Leaf = ArrayLeaf | ValueLeaf | ShardedLeaf | UnmadeLeaf
Node = Branch | Leaf | RankLocal
_NUMBERED = (ArrayLeaf, ValueLeaf)


def inside_objects(node: Node) -> Node:
    """The state_dict() or data inside nested objects; any other node itself."""
    while isinstance(node, Branch) and node.kind == "object":
        node = node.children[0]
    return node


def every_node(node: Node, path: Path) -> Iterator[tuple[Path, Node]]:
    """Every node of a tree, containers before what is in them, with paths that start with ``path``."""
    left: list[tuple[Path, Node]] = [(path, node)]  # not recursive: many leaves are walked over several times
    while left:
        path, node = left.pop()
        yield path, node
        if isinstance(node, Branch):
            left += reversed(list(node.items(path)))


def walk_tree(node: Node, path: Path) -> Iterator[tuple[Path, Leaf]]:
    """Every leaf and value of a tree, with paths that start with ``path``; rank-local items are skipped."""
    return ((inner, each) for inner, each in every_node(node, path) if not isinstance(each, (Branch, RankLocal)))


def numbers_in(node: Node, kinds: type[ArrayLeaf] | tuple[type[ArrayLeaf | ValueLeaf], ...] = _NUMBERED) -> set[int]:
    """The numbers of all leaves and values of a tree, or of those of one kind; without rank-local items."""
    return {each.index for _, each in every_node(node, ()) if isinstance(each, kinds)}


def with_items_at(root: Node, items: Mapping[ExactPath, Node | None]) -> Node:
    """A saved tree in which the items at some paths are replaced, or removed (None)."""
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
        slot = exact(inner)
        found = items.get(slot, child)
        if slot in around and found is child:
            found = _with_items_at(child, inner, items, around)
        if found is not None:
            kept.append((key, found))
    return node.with_items(kept)


# --- containers that are restored as a whole --------------------------------------------------------------------------


def units_of(tree: Node, wanted: Set[int]) -> list[tuple[Path, set[int]]]:
    """The outermost containers with any of these numbers that can only be restored as one, with all of their numbers.

    The root is not among them, unless it is a tensor.
    """
    units = [(path, numbers_in(branch)) for path, branch in _outermost(tree, ())] if wanted else []
    return [(path, numbers) for path, numbers in units if not numbers.isdisjoint(wanted)]


def with_units(tree: Node, wanted: Set[int]) -> frozenset[int]:
    """These numbers, and the others of their :func:`units_of`."""
    return frozenset(wanted).union(*(numbers for _, numbers in units_of(tree, wanted)))


def _outermost(node: Node, path: Path) -> Iterator[tuple[Path, Branch]]:
    if not isinstance(node, Branch):
        return
    if node.kind in COMPOSITES or (node.form is not None and node.form.kind == REGISTERED):
        yield path, node
        return
    is_generator = node.kind in DICTS and _GENERATOR_KEY in node.keys
    if path and (node.kind in _TUPLES or is_generator) and not node.has_objects:
        yield path, node
        return
    for inner, child in node.items(path):
        yield from _outermost(child, inner)
