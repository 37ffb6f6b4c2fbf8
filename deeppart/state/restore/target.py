"""The targets of saved leaves in a live state, and the conversion of saved and live items to a common form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from deeppart.errors import LeafMismatchError, StructureMismatchError
from deeppart.state.document import RankDocument, Structure
from deeppart.state.paths import Key, Path, readable
from deeppart.state.restore.scatter import LiveBox
from deeppart.state.tensors import Array, LeafType
from deeppart.state.tree import (
    CONTAINER_KINDS,
    DICTS,
    Alias,
    ArrayLeaf,
    Branch,
    Node,
    UnmadeLeaf,
    ValueLeaf,
    container_items,
    container_kind,
    contiguous_strides,
    every_node,
    holds_containers,
    walk_tree,
)
from deeppart.state.values import MUTABLE

OR_CONVERT = "or convert what deeppart.load gives"
_NUMBERS = frozenset({int, float, bool, complex})


class _Dropped:
    """Marks a saved leaf that is not restored (``per_rank="drop"``)."""


DROPPED = _Dropped()


@dataclass(slots=True)
class Place:
    """The live tensor or array into which a saved leaf is restored.

    Attributes:
        item: the tensor or array in the live state; or a sharded tensor made for it, because the live state lacks it.
        kind: its type; with another dtype than the saved leaf, what was received is converted.
        boxes: its memory on this rank: all of it, or shards.
        is_sharded: it is a tensor of which each rank has shards.
    """

    item: Any
    kind: LeafType
    boxes: list[LiveBox]
    is_sharded: bool = False


@dataclass(slots=True)
class Pair:
    """A saved item and the live one that it is restored into.

    Attributes:
        saved, live: both in one form (:func:`meet`). A placeholder is saved where the live item stays. If the item is
            new, ``live`` is what it replaces, or None.
        path: its path.
        items: the pairs of what is in a container or an object, with their saved keys.
        is_new: the live state has no counterpart, so that one is made.
    """

    saved: Node
    live: Node | None
    path: Path
    items: Sequence[tuple[Key, Pair]] = ()
    is_new: bool = False


@dataclass(slots=True)
class Target:
    """Maps saved leaves to their targets.

    Attributes:
        structure: the saved structure.
        types: leaf number -> its type, as this rank will receive it.
        values: number of a value -> it, or DROPPED.
        places: leaf number -> the tensor or array to write into; for other leaves, arrays are made.
        tied: numbers of leaves whose place is a view of another one, just as when they were saved.
        root: the pair of the states, once they were matched.
        dropped: numbers of leaves and values that are not restored.
        may_cast: true if floating-point leaves may have another dtype in the live state.
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
    types: dict[int, LeafType]
    values: dict[int, Any]
    places: dict[int, Place] = field(default_factory=dict)
    tied: set[int] = field(default_factory=set)
    root: Pair | None = None
    dropped: frozenset[int] = frozenset()
    may_cast: bool = False
    own: frozenset[int] = frozenset()
    mapped: dict[int, Any] = field(default_factory=dict)
    removed: list[Path] = field(default_factory=list)
    placeless: list[str] = field(default_factory=list)
    unreached: list[Path] = field(default_factory=list)
    exchanged: list[str] = field(default_factory=list)
    classes: dict[str, dict[str, type]] = field(default_factory=dict)
    is_chosen: bool = False

    @classmethod
    def of_rank(cls, structure: Structure, own: RankDocument | None, rank: int | None) -> Target:
        """For what one rank had; without its per-rank leaves and values if its document is None."""
        in_parts = {number: value.of(rank) for number, value in structure.in_parts.items()}
        found = cls(structure, dict(structure.types), {**structure.values, **in_parts})
        if own is None:
            found.drop(frozenset(np.flatnonzero(structure.per_rank).tolist()))
        else:
            found.types |= own.types
            found.values |= own.values
        return found

    def drop(self, numbers: Set[int]) -> None:
        """Restore none of these leaves and values."""
        self.dropped |= numbers
        self.values.update(dict.fromkeys(self.values.keys() & numbers, DROPPED))

    def class_of(self, module: str, name: str) -> type | None:
        """The script's class for a name in a file; None if there is none, or several in other modules."""
        found = self.classes.get(name, {})
        return found.get(module) or (next(iter(found.values())) if len(found) == 1 else None)

    def is_cast(self, index: int) -> bool:
        """True if the live leaf has another dtype, so that what was received is converted."""
        place, kind = self.places.get(index), self.types[index]
        return place is not None and place.kind is not kind and place.kind != kind

    def live(self, index: int) -> Array | None:
        """The live array that receives a whole leaf; None if there is none, or a sharded one, or of another dtype."""
        place = self.places.get(index)
        return None if place is None or place.is_sharded or self.is_cast(index) else place.item

    def numbers(self) -> list[int]:
        """Numbers of the leaves to restore, without aliases."""
        aliases, dropped = self.structure.aliases, self.dropped
        return [index for index in self.types if index not in aliases and index not in dropped]

    def untie_shards(self) -> None:
        """Drop the ties of leaves that are sharded in the live state: each is filled separately."""
        sharded = {index for index, place in self.places.items() if place.is_sharded}
        aliases = self.structure.aliases
        kept = {index: alias for index, alias in aliases.items() if sharded.isdisjoint((index, alias.owner))}
        if len(kept) == len(aliases):
            return
        parts = {index for index, alias in aliases.items() if index not in kept and not self.is_twin(index, alias)}
        parts -= self.dropped
        for path, node in walk_tree(self.structure.tree, ()) if parts else ():
            if isinstance(node, ArrayLeaf) and node.index in parts:
                raise _part_error(path, self.types[node.index], self.types[aliases[node.index].owner])
        self.structure = replace(self.structure, aliases=kept)

    def is_twin(self, index: int, alias: Alias) -> bool:
        """True if an alias has the same elements as its owner, in the same order and shape."""
        kind, owner = self.types[index], self.types[alias.owner]
        is_whole = not alias.offset and alias.strides == contiguous_strides(kind.shape) and kind.nbytes == owner.nbytes
        return is_whole and kind.shape == owner.shape


def _part_error(path: Path, kind: LeafType, owner: LeafType) -> StructureMismatchError:
    return StructureMismatchError(
        "a leaf was saved as a view of another one, and the live state has shards of one of the two",
        expected=f"both as they were saved: {kind}, in the memory of {owner}",
        where=f"path {readable(path)}",
        todo="restore both into plain tensors; or leave the view out (exclude=), and make it of the other one",
    )


def leaf_differs(
    path: Path, expected: object, found: object, todo: str = OR_CONVERT, component: str = ""
) -> LeafMismatchError:
    """The error for a leaf of another type than was saved."""
    what = f", its {component}" if component else ""
    return LeafMismatchError(
        f"a leaf differs between the checkpoint and the live state: {readable(path)}{what}",
        expected=f"{expected} (checkpoint)",
        found=f"{found} (live)",
        where=f"path {readable(path)}",
        todo=f"build the state as it was when it was saved, {todo}",
    )


def place_of(target: Target, index: int) -> Alias:
    """The position of a saved leaf's elements in its owner; an owner's position is in itself."""
    alias = target.structure.aliases.get(index)
    return Alias(index, 0, contiguous_strides(target.types[index].shape)) if alias is None else alias


# --- saved and live items in a common form ----------------------------------------------------------------------------


def is_lacking(saved: Node, live: Node, types: Mapping[int, LeafType]) -> bool:
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


def meet(saved: Node, live: Node, values: Mapping[int, Any]) -> tuple[Node, Node]:
    """Both items in one form: with an object around both or neither, and both as containers of leaves or as value
    containers.

    ``{"m": model}`` and ``{"m": model.state_dict()}`` are restored alike. A list may have been saved item by item, and
    be a value container here because it has grown; or the other way around.
    """
    live_is_object = isinstance(live, Branch) and live.is_object
    if isinstance(saved, Branch) and saved.is_object:
        saved = saved if live_is_object else saved.children[0]
    elif live_is_object:
        saved = Branch("object", (None,), (saved,))
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
        lost = live.children[len(saved.children) :]
        return not any(isinstance(child, Branch) and child.has_objects for child in lost)
    return saved.kind in DICTS and (saved.kind == "counter" or not is_record) and _is_plain(live)


def _is_plain(live: Node) -> bool:
    """True if a tree has only small values, to any depth."""
    nodes = (node for _, node in every_node(live, ()))
    return all(
        isinstance(node, ValueLeaf) or (isinstance(node, Branch) and node.kind in CONTAINER_KINDS) for node in nodes
    )


def same_kind(saved: str, live: str) -> bool:
    """True if items of one kind of container can be put into another kind, one by one."""
    return saved == live or (saved in DICTS and live in DICTS)


def same_form(saved: Branch, live: Branch) -> bool:
    """True if both objects have the same form, or none."""
    if saved.form is None or live.form is None:
        return saved.form is live.form
    return saved.form.fits(live.form)


def same_mutable(saved: Any, live: Any) -> bool:
    """False if either value is mutable, such as a set, and their types differ."""
    return type(saved) is type(live) or MUTABLE.isdisjoint((type(saved), type(live)))
