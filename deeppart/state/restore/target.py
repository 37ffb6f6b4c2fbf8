"""The targets of saved leaves in a live state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from deeppart._gc import collection_paused
from deeppart.errors import StructureMismatchError
from deeppart.state.document.structure import Alias, Structure
from deeppart.state.document.ties import contiguous_strides
from deeppart.state.tree.leaves import Array, LeafType, new_array
from deeppart.state.tree.paths import ExactPath
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

    def arrays(self) -> dict[int, Array]:
        """The array of every leaf to restore: the live one, or a new one of the right type. Aliases are not listed."""
        arrays: dict[int, Array] = {}
        for index, kind in enumerate(self.types):
            if index not in self.structure.aliases and index not in self.dropped:
                arrays[index] = self.live[index] if index in self.live else new_array(kind)
        return arrays


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
