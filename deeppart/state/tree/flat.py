"""The records of a flattened state, as :func:`deeppart.state.tree.flattening.flatten` returns it."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deeppart.state.memory import Extents, HeldMemory
from deeppart.state.paths import ExactPath, Excluded, Key, Path
from deeppart.state.tree.nodes import ArrayLeaf, Branch, Node, RankLocal, ShardedLeaf, UnmadeLeaf, ValueLeaf

#: In place of the device of a numpy array.
NUMPY = ("numpy",)


class Holder(IntEnum):
    """Who has a leaf or value: all ranks, rank 0 for all, this rank for itself; or some ranks, of a shard."""

    ALL = 0
    RANK0 = 1
    THIS = 2
    SOME = 3


@dataclass(frozen=True, slots=True)
class RankLocalRules:
    """The paths at which a state is divided into the structure that all ranks share and rank-local items.

    Attributes:
        mine: paths where every rank saves its own item.
        rank0: whether rank 0 saves the item at a path for all ranks; the bool says whether the item is a container.
        leads: true if this is rank 0.
        splits: true if the item at a path must be divided because its items are not all treated alike.
        parts: the paths in ``mine`` whose items are parts of one state, such as the layers of a pipeline stage: all
            ranks that have the item have equal replicas of it.
        excluded: which items of dicts are left out, as if the state did not have them.
        leaves_out: false if ``excluded`` only divides value containers and leaves nothing out, as for a live state.
    """

    mine: frozenset[ExactPath] = frozenset()
    rank0: Callable[[Path, bool], bool] | None = None
    leads: bool = True
    splits: Callable[[Path], bool] | None = None
    parts: frozenset[ExactPath] = frozenset()
    excluded: Excluded | None = None
    leaves_out: bool = True

    def may_be_value(self, path: Path, levels: int) -> bool:
        """True if a container with so many nested levels may be saved as one value at a path."""
        if self.excluded is not None and self.excluded.splits(path):
            return False
        return levels == 1 or self.splits is None or not self.splits(path)


@dataclass
class FlatState:
    """A flattened state.

    Leaves and values are numbered together: first arrays, then values, each in the order of ``holders`` and within that
    in canonical order.

    Attributes:
        root: the tree.
        arrays: leaves with bytes; ``arrays[i].index == i``.
        data: their tensors and numpy arrays.
        values: small values.
        holders: by number, who has it (:class:`Holder`).
        types: dtype, shape, device (``NUMPY`` for none) and memory order of each array, flat. The order is True if
            contiguous, otherwise the array's strides.
        pointers: memory address of each array.
        unresolved: conjugate or negative views, by number; ``data`` has their resolved copies.
        memory: the objects that keep the bytes at these addresses.
        extents: how many bytes each array reaches from its address on.
        orders: number and insertion order of each dict that is not in canonical order.
        ordered: path of each OrderedDict in the shared structure that is not in canonical order, and the order of the
            keys that all ranks share.
        rank_local: items outside the structure that all ranks share; rank 0's first, then this rank's.
        sharded: the sharded tensors, in canonical order, those of ``rank_local`` last.
        unmade: the tensors on the meta device.
    """

    root: Node
    arrays: list[ArrayLeaf] = field(default_factory=list)
    data: list[Any] = field(default_factory=list)
    values: list[ValueLeaf] = field(default_factory=list)
    holders: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    types: list[Any] = field(default_factory=list)
    pointers: array[int] = field(default_factory=lambda: array("q"))
    unresolved: dict[int, torch.Tensor] = field(default_factory=dict)
    memory: HeldMemory = field(default_factory=lambda: HeldMemory([]))
    extents: Extents = field(default_factory=lambda: Extents([]))
    orders: list[tuple[int, list[Key]]] = field(default_factory=list)
    ordered: list[tuple[Path, list[Key]]] = field(default_factory=list)
    rank_local: list[RankLocal] = field(default_factory=list)
    sharded: list[ShardedLeaf] = field(default_factory=list)
    unmade: list[UnmadeLeaf] = field(default_factory=list)

    @functools.cached_property
    def objects(self) -> list[Branch]:
        """The branches that are objects with a ``state_dict()``, outside of ``rank_local``."""
        return list(_objects_below(self.root))

    @property
    def leaves(self) -> list[ArrayLeaf | ValueLeaf]:
        """All leaves and values by number."""
        return [*self.arrays, *self.values]


def _objects_below(node: Node) -> Iterator[Branch]:
    if isinstance(node, Branch):
        if node.is_object:
            yield node  # a state_dict() contains no such objects
            return
        for child in node.children:
            yield from _objects_below(child)
