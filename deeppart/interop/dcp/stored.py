"""What a step holds, by the names that DCP has for it, as one rank sees it; and what is asked for of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from deeppart.errors import StructureMismatchError, UnsupportedLeafError
from deeppart.interop.dcp.names import Item, Keys, by_name, is_one, walk_values
from deeppart.model.boxes import Box
from deeppart.state.document.structure import (
    DICTS,
    SavedApart,
    SavedArray,
    SavedBranch,
    SavedNode,
    SavedSharded,
    SavedValue,
    array_numbers,
    walk_tree,
)
from deeppart.state.restore.classes import resolve_registered
from deeppart.state.restore.composites import is_composite
from deeppart.state.restore.merge import build
from deeppart.state.restore.target import DROPPED, Target
from deeppart.state.tree.composites import SUBCLASS
from deeppart.state.tree.leaves import TORCH_DTYPES, Array
from deeppart.state.tree.paths import Path, readable


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that DCP has a name for.

    Attributes:
        item: the name, and the type of a tensor.
        path: where it stands in the saved state.
        leaf: number of the leaf that is the tensor; None of anything else.
        node: of what has leaves in it, but is no tensor to DCP, such as a tuple of tensors; None of anything else.
        value: of a small value, itself.
    """

    item: Item
    path: Path
    leaf: int | None = None
    node: SavedNode | None = None
    value: Any = None


class Wanted(NamedTuple):
    """A box of a tensor that is asked for.

    Attributes:
        box: which.
        into: what it is put into, of the same sizes.
    """

    box: Box
    into: torch.Tensor


class Stored:
    """A step.

    Attributes:
        target: as given.
        tree: the saved nesting, with the caller's own classes where they are registered.
        entries: by DCP's names.
    """

    def __init__(self, target: Target, where: str) -> None:
        self.target = target
        self.tree = resolve_registered(target, target.structure.tree)
        tree = _inside(self.tree)
        is_table = isinstance(tree, SavedValue) and isinstance(target.values[tree.index], dict)
        if not (is_table or (isinstance(tree, SavedBranch) and tree.kind in DICTS)):
            raise StructureMismatchError(
                "DCP loads dicts, and this checkpoint is none",
                expected="a dict outermost",
                where=where,
                todo="load it by deeppart.load, or by Checkpointer.restore",
            )
        entries = {entry.item.path: entry for entry in self._walk(self.tree, (), ())}
        named = by_name((entry.item for entry in entries.values()), where)
        self.entries: Mapping[str, Entry] = {name: entries[item.path] for name, item in named.items()}

    def built(self, name: str, arrays: dict[int, Array]) -> Any:
        """What is no tensor to DCP, from its leaves."""
        node = self.entries[name].node
        assert node is not None
        return build(self.target, arrays, node)

    def refuse_to_build(self, name: str) -> None:
        """See that something that is no tensor to DCP can be made without a live one."""
        entry = self.entries[name]
        found = None if entry.node is None else _subclass_in(entry.node)
        if found is not None:
            raise UnsupportedLeafError(
                "a tensor of a subclass cannot be loaded by dcp.load: only its class could make it",
                found=f"a {found}",
                where=f"path {readable(entry.path)}",
                todo="restore it into a live one: Checkpointer.restore; or load what it is made of: deeppart.load",
            )

    def leaves_in(self, name: str) -> set[int]:
        """Numbers of the leaves in it."""
        node = self.entries[name].node
        return set() if node is None else array_numbers(node)

    def _walk(self, node: SavedNode, path: Keys, real: Path) -> Iterator[Entry]:
        node = _inside(node)
        if isinstance(node, (SavedApart, SavedSharded)):
            return
        if isinstance(node, SavedValue):
            value = self.target.values[node.index]
            if value is DROPPED:
                return
            for inner, each in walk_values(value, path):
                yield Entry(Item(inner), real, value=each)
        elif isinstance(node, SavedArray):
            kind = self.target.types[node.index]
            if kind.kind == "torch":
                item = Item(path, TORCH_DTYPES[kind.dtype], kind.shape)
                yield Entry(item, real, leaf=node.index)
            else:
                yield Entry(Item(path), real, node=node)
        elif node.form is None and node.kind in DICTS:
            for key, child in zip(node.keys, node.children, strict=True):
                yield from self._walk(child, (*path, str(key)), (*real, key))
        elif node.kind == "list" and self._is_taken_apart(node):
            for place, child in enumerate(node.children):
                yield from self._walk(child, (*path, place), (*real, place))
        elif array_numbers(node):
            yield Entry(Item(path), real, node=node)
        else:
            yield Entry(Item(path), real, value=build(self.target, {}, node))

    def _is_taken_apart(self, node: SavedBranch) -> bool:
        """True if DCP would take a list apart."""
        for child in map(_inside, node.children):
            if isinstance(child, SavedArray):
                if self.target.types[child.index].kind == "torch":
                    return True
            elif isinstance(child, SavedBranch):
                if child.form is None and (child.kind in DICTS or is_composite(child)):
                    return True
                if child.kind == "list" and self._is_taken_apart(child):
                    return True
            elif isinstance(child, SavedValue):
                value = self.target.values[child.index]
                if isinstance(value, dict) or not is_one(value):
                    return True
        return False


def _subclass_in(node: SavedNode) -> str | None:
    """The name of the class of the first tensor of a subclass in it."""
    if not isinstance(node, SavedBranch):
        return None
    if node.kind == SUBCLASS:
        return node.name
    return next((found for child in node.children if (found := _subclass_in(child)) is not None), None)


def live_tree(tree: SavedNode, live: Mapping[int, Any]) -> dict[str, Any]:
    """A live state that has a place for some leaves of a saved one, and for nothing else.

    Places of lists that come before one that is wanted hold None.
    """
    found: dict[str, Any] | None = _live(tree, live)
    return _least(tree) if found is None else found


def _least(tree: SavedNode) -> dict[str, Any]:
    """A live state that wants one small thing: an empty one would want all, and one of other names is refused."""
    path = next(_values(tree, ()), None)
    if path is None:
        path = min((path for path, _ in walk_tree(tree, ())), default=())[:1]
    state: Any = None
    for key in reversed(path):
        state = {key: state}
    return state or {}


def _values(node: SavedNode, path: Path) -> Iterator[Path]:
    """Paths of small values that a live state of dicts alone can have, by names."""
    node = _inside(node)
    if isinstance(node, SavedValue) and path:
        yield path
    elif isinstance(node, SavedBranch) and node.form is None and node.kind in DICTS:
        for key, child in sorted(zip(node.keys, node.children, strict=True), key=lambda each: str(each[0])):
            if type(key) is str:
                yield from _values(child, (*path, key))


def _live(node: SavedNode, live: Mapping[int, Any]) -> Any:
    node = _inside(node)
    if isinstance(node, SavedArray):
        return live.get(node.index)
    if not isinstance(node, SavedBranch) or node.form is not None:
        return None
    children = [_live(child, live) for child in node.children]
    if all(child is None for child in children):
        return None
    if node.kind in DICTS:
        return {key: child for key, child in zip(node.keys, children, strict=True) if child is not None}
    return children if node.kind == "list" else None


def _inside(node: SavedNode) -> SavedNode:
    """What an object gave as its state."""
    while isinstance(node, SavedBranch) and node.kind == "object" and node.form is None:
        node = node.children[0]
    return node


def whole(wanted: Sequence[Wanted], item: Item) -> torch.Tensor | None:
    """What all of a tensor is to be put into, if that is asked for, and in its own type; else None."""
    if len(wanted) == 1 and wanted[0].box.sizes == item.shape and wanted[0].into.dtype == item.dtype:
        return wanted[0].into
    return None
