"""The targets of saved leaves in a live state."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from deeppart._gc import collection_paused
from deeppart.errors import StructureMismatchError
from deeppart.state.document.structure import Alias, SavedArray, Structure, walk_tree
from deeppart.state.document.ties import contiguous_strides
from deeppart.state.tree.flat import ShardedLeaf
from deeppart.state.tree.leaves import Array, LeafType, new_array
from deeppart.state.tree.paths import ExactPath, Path, readable
from deeppart.state.tree.runs import decode_leaf_value


class _Dropped:
    """Marks a saved leaf that is not restored (``per_rank="drop"``)."""


DROPPED = _Dropped()


@dataclass(slots=True)
class Target:
    """The target of saved leaves.

    Attributes:
        structure: the saved structure.
        types: type of each leaf as this rank is to receive it.
        values: decoded value per value number, or DROPPED.
        live: leaf number -> the live tensor or array it is written into; the others are created.
        tied: leaf numbers whose live array is a view of another live one, just as when they were saved.
        mistied: leaf number -> of what it is a live view, otherwise than it was saved; and the error that says so.
        dropped: leaf numbers that are not restored.
        replaced: paths of rank 0's items that do not fit the live state there: they are created again.
        with_objects: paths of what is rank 0's and, in the live state, has objects with a ``state_dict()``.
        sharded: leaf number -> the live sharded tensor of which this rank's shards are written.
        boxed: numbers of the leaves that are filled box by box, from what ranks had of them or into what they have:
            the sharded ones of the step, and those of ``sharded`` of any rank.
        created: leaf number -> a sharded tensor that was made for it, where the live state lacks it.
        may_cast: floating-point leaves may have another dtype in the live state.
        casts: leaf number -> the live array of another dtype, which is written once the leaf has been brought.
        cast_shards: the same for sharded tensors: memory for this rank's shards as they were saved.
        unplaced: paths of what is not restored, because the live state lacks it and it has sharded tensors in it.
        removed: paths of entries that dicts of small values lose, because the checkpoint lacks them.
        classes: qualified name -> module -> an enum or dataclass of the script's.
        is_chosen: the structure is less what the caller has not asked for, and has marks where live items stay.
    """

    structure: Structure
    types: list[LeafType]
    values: list[Any]
    live: dict[int, Array] = field(default_factory=dict)
    tied: set[int] = field(default_factory=set)
    mistied: dict[int, tuple[Alias, StructureMismatchError]] = field(default_factory=dict)
    dropped: frozenset[int] = frozenset()
    replaced: set[ExactPath] = field(default_factory=set)
    with_objects: set[ExactPath] = field(default_factory=set)
    sharded: dict[int, ShardedLeaf] = field(default_factory=dict)
    boxed: set[int] = field(default_factory=set)
    created: dict[int, torch.Tensor] = field(default_factory=dict)
    may_cast: bool = False
    casts: dict[int, Array] = field(default_factory=dict)
    removed: list[Path] = field(default_factory=list)
    cast_shards: dict[int, list[Array]] = field(default_factory=dict)
    unplaced: tuple[Path, ...] = ()
    classes: dict[str, dict[str, type]] = field(default_factory=dict)
    is_chosen: bool = False

    def class_of(self, module: str, name: str) -> type | None:
        """The script's class by a name that a file has; None if there is none, or several in other modules."""
        found = self.classes.get(name, {})
        return found.get(module) or (next(iter(found.values())) if len(found) == 1 else None)

    def arrays(self) -> dict[int, Array]:
        """The array of every leaf to restore: the live one, or a new one of the right type. Aliases are not listed, nor
        what is filled box by box.
        """
        return {index: self.array(index) for index in self.numbers() if index not in self.boxed}

    def boxed_arrays(self) -> dict[int, Array]:
        """The same for those filled box by box, less those of which the live state has shards."""
        return {
            index: self.array(index)
            for index in self.numbers()
            if index in self.boxed and index not in self.sharded and index not in self.created
        }

    def array(self, index: int) -> Array:
        """The live array of a leaf, or a new one."""
        return self.live[index] if index in self.live else new_array(self.types[index])

    def numbers(self) -> list[int]:
        """Numbers of the leaves that are restored, less those that are views of others."""
        aliases, dropped = self.structure.aliases, self.dropped
        return [index for index in range(len(self.types)) if index not in aliases and index not in dropped]

    def untie_shards(self) -> None:
        """What the live state has shards of is no view of another leaf, nor one of it: each is filled for itself."""
        apart = self.sharded.keys() | self.created.keys()
        aliases = self.structure.aliases
        kept = {index: alias for index, alias in aliases.items() if index not in apart and alias.owner not in apart}
        if len(kept) == len(aliases):
            return
        parts = {index for index, alias in aliases.items() if index not in kept and not self.is_twin(index, alias)}
        parts -= self.dropped
        for path, node in walk_tree(self.structure.tree, ()) if parts else ():
            if isinstance(node, SavedArray) and node.index in parts:
                raise _part_error(path, self.types[node.index], self.types[aliases[node.index].owner])
        # No part has bytes under the number of an alias: they come as boxes of its owner.
        self.boxed |= aliases.keys() - kept.keys() - apart
        self.structure = replace(self.structure, aliases=kept)

    def has_all_bytes(self, index: int, alias: Alias) -> bool:
        """True if a leaf is all the bytes, in their order, of the one whose memory it shares."""
        kind, owner = self.types[index], self.types[alias.owner]
        return not alias.offset and alias.strides == contiguous_strides(kind.shape) and kind.nbytes == owner.nbytes

    def is_twin(self, index: int, alias: Alias) -> bool:
        """True if a leaf is the same elements, in the same order and shape, as the one whose memory it shares."""
        return self.has_all_bytes(index, alias) and self.types[index].shape == self.types[alias.owner].shape


def _part_error(path: Path, kind: LeafType, owner: LeafType) -> StructureMismatchError:
    return StructureMismatchError(
        "a leaf was saved as a view of another one, and the live state has shards of one of the two",
        expected=f"both as they were saved: {kind}, in the memory of {owner}",
        where=f"path {readable(path)}",
        todo="restore both into plain tensors; or leave the view out (exclude=), and make it of the other one",
    )


def place_of(target: Target, index: int) -> Alias:
    """The place of a saved leaf's elements; that of an owner is in itself."""
    alias = target.structure.aliases.get(index)
    return Alias(index, 0, contiguous_strides(target.types[index].shape)) if alias is None else alias


def decode_values(structure: Structure, where: str) -> list[Any]:
    """Decode the shared values; per-rank ones are DROPPED until filled in."""
    own = structure.per_rank_values.tolist()
    pairs = zip(structure.values, own, strict=True)
    with collection_paused():
        return [DROPPED if skip else decode_leaf_value(value, where) for value, skip in pairs]
