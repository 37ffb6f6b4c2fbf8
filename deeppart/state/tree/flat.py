"""The records of a state taken apart: what :func:`deeppart.state.tree.flattening.flatten` returns."""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from deeppart.model import Box
from deeppart.state.memory import Extents, HeldMemory
from deeppart.state.objects import ObjectForm
from deeppart.state.paths import ExactPath, Excluded, Key, Path
from deeppart.state.tensors import LeafType

# Markers among the tokens; tuples, so that no string key can equal one.
ARRAY, VALUE, OBJECT, RANK_LOCAL, NUMPY = ("array",), ("value",), ("object",), ("apart",), ("numpy",)
SHARDED, COMPOSITE, FORM = ("sharded",), ("composite",), ("form",)
#: Dicts and how they are called in a tree. A Counter is what MultiStepLR keeps its milestones in.
DICT_KINDS: dict[type, str] = {
    dict: "dict",
    OrderedDict: "odict",
    Counter: "counter",
    defaultdict: "defaultdict",
}


@dataclass(slots=True)
class ArrayLeaf:
    """A tensor or numpy array at a path; the array itself is ``FlatState.data[index]``.

    Attributes:
        inside: how many of the last keys of its path lead into a tensor of which it is a component.
    """

    path: Path
    index: int
    inside: int = 0


@dataclass(slots=True)
class ValueLeaf:
    """A small value at a path, or a container of nothing but small values (:mod:`.value_containers`)."""

    path: Path
    value: Any
    index: int
    inside: int = 0


@dataclass(slots=True)
class UnmadeLeaf:
    """A tensor on the meta device, in a live state that is restored: it has no memory to be filled."""

    path: Path
    kind: LeafType


@dataclass(slots=True)
class ShardedLeaf:
    """A tensor of which every rank has shards; those of this rank are leaves with bytes behind all others.

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
class Branch:
    """A container of the state.

    Attributes:
        kind: "dict", "odict", "counter", "defaultdict", "list", "tuple", "namedtuple", "object", or that of a tensor
            that is made of others (:mod:`deeppart.state.tensors.composites`).
        container: the live container; for "object" the live object, or the live tensor.
        keys: dict keys in canonical order, field names of a namedtuple, names of components, otherwise indices; () for
            an object.
        children: the nodes under the keys, in the same order; for an object its state_dict(), or its data, alone.
        path: its path.
        form: of an object without a ``state_dict()`` what it is.
    """

    kind: str
    container: Any
    keys: Sequence[Key]
    children: list[Node]
    path: Path = ()
    form: ObjectForm | None = None


@dataclass(slots=True)
class RankLocal:
    """Something that is no part of the structure that all ranks share.

    Attributes:
        path: its path.
        mine: true if every rank saves its own; otherwise rank 0's is saved for all.
        node: the node of this rank; None on the other ranks if it is rank 0's.
        place: of a dict's key, how many come before it in insertion order; None in other containers.
        part: true if it is one of :attr:`RankLocalRules.parts`.
    """

    path: Path
    mine: bool
    node: Node | None = None
    place: int | None = None
    part: bool = False


Node = Branch | ArrayLeaf | ShardedLeaf | ValueLeaf | UnmadeLeaf | RankLocal


@dataclass(frozen=True, slots=True)
class RankLocalRules:
    """The places at which a state is cut into what all ranks share and what is rank-local.

    Attributes:
        mine: paths where every rank saves what it has.
        rank0: whether what is at a path, and all below it, is rank 0's; also told whether there is anything below.
        leads: true if this is rank 0.
        splits: true if the item at a path must be divided, because not all below it is treated alike.
        parts: those of ``mine`` that are a part of one state, such as the layers of a pipeline stage: of what is there,
            all ranks that have it hold the same.
        excluded: which items of dicts are left out, as if the state had none there.
        leaves_out: false if only value containers are divided where some of one may be left out: of a live state.
    """

    mine: frozenset[ExactPath] = frozenset()
    rank0: Callable[[Path, bool], bool] | None = None
    leads: bool = True
    splits: Callable[[Path], bool] | None = None
    parts: frozenset[ExactPath] = frozenset()
    excluded: Excluded | None = None
    leaves_out: bool = True

    def may_be_value(self, path: Path, levels: int) -> bool:
        """True if a container of so many levels may be one value at a path; a flat one unless some may be left out."""
        if self.excluded is not None and self.excluded.splits(path):
            return False
        return levels == 1 or self.splits is None or not self.splits(path)


@dataclass(slots=True)
class FlatState:
    """A state taken apart.

    Attributes:
        root: the tree.
        arrays: leaves with bytes, in canonical order; ``arrays[i].index == i``.
        data: their tensors and numpy arrays.
        values: small values, in canonical order.
        tokens: structure of containers and keys, in canonical order, comparable within this process.
        types: dtype, shape, device (``NUMPY`` for none) and memory order of each array, flat. The order is True, or the
            strides of one that is not contiguous: by them it may hold other elements of the same memory.
        pointers: memory address of each array.
        unresolved: tensors, by number, of which ``data`` has a copy: conjugated or negated on reading.
        memory: the objects that keep the bytes at these addresses.
        extents: how far each array reaches from its address on.
        orders: insertion order of each dict that is not in canonical order, and that dict's place among the tokens.
        ordered: of each OrderedDict that is not in canonical order its place among the tokens, its path, and the order
            of the keys that all ranks share.
        rank_local: items outside the structure that all ranks share; rank 0's first, then this rank's own. Their
            leaves follow those of the shared structure, in this order.
        shared: how many arrays, values and tokens are in the structure that all ranks share.
        common: how many arrays and values are there or rank 0's.
        sharded: the sharded tensors, in canonical order, those of ``rank_local`` last.
        shared_sharded: how many of them are in the structure that all ranks share.
        before_shards: how many arrays are none of their shards.
        unmade: the tensors on the meta device.
    """

    root: Node
    arrays: list[ArrayLeaf] = field(default_factory=list)
    data: list[Any] = field(default_factory=list)
    values: list[ValueLeaf] = field(default_factory=list)
    tokens: list[Any] = field(default_factory=list)
    types: list[Any] = field(default_factory=list)
    pointers: array[int] = field(default_factory=lambda: array("q"))
    unresolved: dict[int, torch.Tensor] = field(default_factory=dict)
    memory: HeldMemory = field(default_factory=lambda: HeldMemory([]))
    extents: Extents = field(default_factory=lambda: Extents([]))
    orders: list[Any] = field(default_factory=list)
    ordered: list[tuple[int, Path, list[Key]]] = field(default_factory=list)
    rank_local: list[RankLocal] = field(default_factory=list)
    shared: tuple[int, int, int] = (0, 0, 0)
    common: tuple[int, int] = (0, 0)
    sharded: list[ShardedLeaf] = field(default_factory=list)
    shared_sharded: int = 0
    before_shards: int = 0
    unmade: list[UnmadeLeaf] = field(default_factory=list)
    _objects: list[Branch] | None = None

    @property
    def objects(self) -> list[Branch]:
        """The branches that are objects with a ``state_dict()``, outside of ``rank_local``; the tree stays as it is."""
        if self._objects is None:
            self._objects = list(_objects_below(self.root))
        return self._objects

    @property
    def rank0_sizes(self) -> tuple[int, int]:
        """How many arrays and values of this rank stand for all ranks."""
        return self.common[0] - self.shared[0], self.common[1] - self.shared[1]

    def sizes(self) -> tuple[int, int, int]:
        """The numbers of arrays, values and tokens."""
        return len(self.arrays), len(self.values), len(self.tokens)


def _objects_below(node: Node) -> Iterator[Branch]:
    if isinstance(node, Branch):
        if node.kind == "object" and node.form is None:
            yield node  # what its state_dict() holds are no objects
            return
        for child in node.children:
            yield from _objects_below(child)
