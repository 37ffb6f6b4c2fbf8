"""The targets of saved leaves in a live state, and the conversion of saved and live items to a common form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from deeppart._gc import collection_paused
from deeppart.errors import StructureMismatchError
from deeppart.state.document import Structure
from deeppart.state.paths import ExactPath, Path, readable
from deeppart.state.tensors import Array, LeafType, new_array
from deeppart.state.tree import (
    CONTAINER_KINDS,
    DICTS,
    Alias,
    ArrayLeaf,
    Branch,
    Node,
    ShardedLeaf,
    UnmadeLeaf,
    ValueLeaf,
    container_items,
    container_kind,
    contiguous_strides,
    has_objects,
    holds_containers,
    walk_tree,
)
from deeppart.state.values import MUTABLE, decode_value

_NUMBERS = frozenset({int, float, bool, complex})


class _Dropped:
    """Marks a saved leaf that is not restored (``per_rank="drop"``)."""


DROPPED = _Dropped()


@dataclass(slots=True)
class Target:
    """Maps saved leaves to their targets.

    Attributes:
        structure: the saved structure.
        types: type of each leaf as this rank will receive it.
        values: decoded value per value number, or DROPPED.
        live: leaf number -> the live tensor or array to write into; other leaves are created.
        tied: numbers of leaves whose live array is a view of another live one, just as when they were saved.
        dropped: numbers of leaves that are not restored.
        replaced: paths of rank 0's items that do not fit the live state: they are created.
        sharded: leaf number -> the live sharded tensor whose local shards are written.
        created: leaf number -> a sharded tensor made for it, because the live state lacks it.
        may_cast: true if floating-point leaves may have another dtype in the live state.
        casts: leaf number -> the live array, or shards, of another dtype: written after the leaf was received.
        own: numbers of the leaves of which each rank gets its own bytes.
        mapped: leaf number -> content of such a leaf, from those that another number of ranks had.
        removed: paths of entries that dicts of small values lose, because the checkpoint lacks them.
        placeless: objects with a saved state that a live dict lacks, as in ``scheduler (LambdaLR)``: their states are
            restored as dicts, and loaded by no object.
        unreached: paths of results of an optimizer's ``state_dict()`` of which not all that is restored reaches the
            optimizer.
        exchanged: optimizers of another class than the saved ones, as ``opt: Adam in the checkpoint, AdamW here``.
        classes: qualified name -> module -> an enum or dataclass of the script.
        is_chosen: the structure was narrowed to the request, and has placeholders where live items stay.
    """

    structure: Structure
    types: list[LeafType]
    values: list[Any]
    live: dict[int, Array] = field(default_factory=dict)
    tied: set[int] = field(default_factory=set)
    dropped: frozenset[int] = frozenset()
    replaced: set[ExactPath] = field(default_factory=set)
    sharded: dict[int, ShardedLeaf] = field(default_factory=dict)
    created: dict[int, torch.Tensor] = field(default_factory=dict)
    may_cast: bool = False
    casts: dict[int, list[Array]] = field(default_factory=dict)
    own: frozenset[int] = frozenset()
    mapped: dict[int, Any] = field(default_factory=dict)
    removed: list[Path] = field(default_factory=list)
    placeless: list[str] = field(default_factory=list)
    unreached: list[Path] = field(default_factory=list)
    exchanged: list[str] = field(default_factory=list)
    classes: dict[str, dict[str, type]] = field(default_factory=dict)
    is_chosen: bool = False

    def class_of(self, module: str, name: str) -> type | None:
        """The script's class for a name in a file; None if there is none, or several in other modules."""
        found = self.classes.get(name, {})
        return found.get(module) or (next(iter(found.values())) if len(found) == 1 else None)

    def arrays(self) -> dict[int, Array]:
        """The array of every leaf to restore: the live one, or a new one of the right type; without aliases and
        sharded tensors.
        """
        shards = self.sharded.keys() | self.created.keys()
        return {index: self.array(index) for index in self.numbers() if index not in shards}

    def array(self, index: int) -> Array:
        """The live array of a leaf, or a new one."""
        return self.live[index] if index in self.live else new_array(self.types[index])

    def numbers(self) -> list[int]:
        """Numbers of the leaves to restore, without aliases."""
        aliases, dropped = self.structure.aliases, self.dropped
        return [index for index in range(len(self.types)) if index not in aliases and index not in dropped]

    def untie_shards(self) -> None:
        """Drop the ties of leaves that are sharded in the live state: each is filled separately."""
        rank_local = self.sharded.keys() | self.created.keys()
        aliases = self.structure.aliases
        kept = {
            index: alias
            for index, alias in aliases.items()
            if index not in rank_local and alias.owner not in rank_local
        }
        if len(kept) == len(aliases):
            return
        parts = {index for index, alias in aliases.items() if index not in kept and not self.is_twin(index, alias)}
        parts -= self.dropped
        for path, node in walk_tree(self.structure.tree, ()) if parts else ():
            if isinstance(node, ArrayLeaf) and node.index in parts:
                raise _part_error(path, self.types[node.index], self.types[aliases[node.index].owner])
        self.structure = replace(self.structure, aliases=kept)

    def has_all_bytes(self, index: int, alias: Alias) -> bool:
        """True if an alias has all bytes of its owner, in the same order."""
        kind, owner = self.types[index], self.types[alias.owner]
        return not alias.offset and alias.strides == contiguous_strides(kind.shape) and kind.nbytes == owner.nbytes

    def is_twin(self, index: int, alias: Alias) -> bool:
        """True if an alias has the same elements as its owner, in the same order and shape."""
        return self.has_all_bytes(index, alias) and self.types[index].shape == self.types[alias.owner].shape


def _part_error(path: Path, kind: LeafType, owner: LeafType) -> StructureMismatchError:
    return StructureMismatchError(
        "a leaf was saved as a view of another one, and the live state has shards of one of the two",
        expected=f"both as they were saved: {kind}, in the memory of {owner}",
        where=f"path {readable(path)}",
        todo="restore both into plain tensors; or leave the view out (exclude=), and make it of the other one",
    )


def place_of(target: Target, index: int) -> Alias:
    """The position of a saved leaf's elements in its owner; an owner's position is in itself."""
    alias = target.structure.aliases.get(index)
    return Alias(index, 0, contiguous_strides(target.types[index].shape)) if alias is None else alias


def decode_values(structure: Structure, where: str) -> list[Any]:
    """Decode the shared values; per-rank ones are DROPPED until filled in."""
    own = structure.per_rank_values.tolist()
    pairs = zip(structure.values, own, strict=True)
    with collection_paused():
        return [DROPPED if skip else decode_value(value, where) for value, skip in pairs]


# --- saved and live items in a common form ----------------------------------------------------------------------------


def is_lacking(saved: Node, live: Node, types: Sequence[LeafType]) -> bool:
    """True if the live state has no counterpart yet of a saved array or container, so that one is created.

    That is None; a tensor on the meta device; or a number where an array of one element was saved: a best loss may
    begin as 1e9, and be a tensor later.
    """
    if isinstance(live, UnmadeLeaf):
        return isinstance(saved, ArrayLeaf)
    if not isinstance(live, ValueLeaf):
        return False
    if isinstance(saved, ArrayLeaf) and type(live.value) in _NUMBERS:
        return math.prod(types[saved.index].shape) == 1
    takes_itself = isinstance(saved, Branch) and saved.is_object
    return live.value is None and not isinstance(saved, ValueLeaf) and not takes_itself


def inside_object(saved: Node, live: Node) -> tuple[Node, Node]:
    """The contents of both items: ``{"m": model}`` and ``{"m": model.state_dict()}`` are restored alike."""
    live_is_object = isinstance(live, Branch) and live.is_object
    if isinstance(saved, Branch) and saved.is_object:
        return saved if live_is_object else saved.children[0], live
    return Branch("object", (None,), (saved,)) if live_is_object else saved, live


def meet(saved: Node, live: Node, values: Sequence[Any]) -> tuple[Node, Node]:
    """Both items in one form: without objects around them, and both as containers of leaves or as value containers.

    A list may have been saved item by item, and be a value container here because it has grown; or the other way
    around.
    """
    saved, live = inside_object(saved, live)
    if isinstance(saved, Branch) and isinstance(live, ValueLeaf):
        kind = container_kind(live.value)
        if kind is not None:
            keys, items = container_items(live.value)
            children: list[Node] = [
                ValueLeaf(-1, item, (*live.path, key)) for key, item in zip(keys, items, strict=True)
            ]
            return saved, Branch(kind, keys, children, container=live.value)
    if isinstance(saved, ValueLeaf) and isinstance(live, Branch) and live.kind in CONTAINER_KINDS:
        value = values[saved.index]
        is_flat = all(isinstance(child, ValueLeaf) and container_kind(child.value) is None for child in live.children)
        if container_kind(value) is not None and (is_flat or (holds_containers(value) and _is_plain(live))):
            return saved, ValueLeaf(-1, live.container)
    return saved, live


def is_cut(saved: Branch, live: Branch, *, is_record: bool) -> bool:
    """True if a live container loses items that the checkpoint lacks, as value containers (lists, dicts) do."""
    if saved.kind == "list":
        return not any(map(has_objects, live.children[len(saved.children) :]))
    return saved.kind in DICTS and (saved.kind == "counter" or not is_record) and _is_plain(live)


def _is_plain(live: Node) -> bool:
    """True if a tree has only small values, to any depth."""
    if isinstance(live, Branch):
        return live.kind in CONTAINER_KINDS and all(map(_is_plain, live.children))
    return isinstance(live, ValueLeaf)


def same_form(saved: Branch, live: Branch) -> bool:
    """True if both objects have the same form, or none."""
    if saved.form is None or live.form is None:
        return saved.form is live.form
    return saved.form.fits(live.form)


def same_mutable(saved: Any, live: Any) -> bool:
    """False if either value is mutable, such as a set, and their types differ."""
    return type(saved) is type(live) or MUTABLE.isdisjoint((type(saved), type(live)))
