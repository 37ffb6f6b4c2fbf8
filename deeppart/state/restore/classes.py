"""Finds the classes that a checkpoint names, in the live state and among registered types. Nothing is imported.

In a file, an enum member or an object of a dataclass has the name of its class. The class must be used somewhere in the
live state, or have been given to ``deeppart.register``. A class may have moved to another module since (``__main__`` is
one): the qualified name decides, and the module only if two classes share it.
"""

from __future__ import annotations

import enum
import json
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from deeppart.errors import LeafMismatchError, StructureMismatchError, UnsupportedLeafError
from deeppart.state.objects import (
    DATACLASS,
    REGISTERED,
    ObjectForm,
    SavedRecord,
    field_names,
    known_classes,
    registered_as,
    takes,
)
from deeppart.state.paths import Path, readable, some_names
from deeppart.state.restore.target import Target
from deeppart.state.tree import (
    Branch,
    FlatState,
    Node,
    ValueLeaf,
    container_items,
    container_kind,
    every_node,
    make_container,
)
from deeppart.state.values import CONTAINERS, SavedMember, encode_key

_GROUPS = frozenset({set, frozenset})
#: Types that may have enum members inside.
_MAY_HOLD = CONTAINERS | _GROUPS | {slice}


def resolve(target: Target, flat: FlatState) -> None:
    """Replace saved enum members, in values and keys, by those of the script's classes, and find the class of each
    dataclass. Changes nothing live.
    """
    _know(target, (*known_classes(), *_live_classes(flat.root)))
    tree = _Resolving(target, strict=True).node(target.structure.tree, ())
    target.structure = replace(target.structure, tree=tree)


def resolve_registered(target: Target, tree: Node) -> Node:
    """The same without a live state; members and objects of unregistered classes stay as saved."""
    if not known_classes():
        return tree
    _know(target, known_classes())
    return _Resolving(target, strict=False).node(tree, ())


def _know(target: Target, kinds: Iterable[type]) -> None:
    target.classes = {}
    for kind in kinds:
        named = kind.saved_class[:2] if issubclass(kind, SavedRecord) else (kind.__module__, kind.__qualname__)
        target.classes.setdefault(named[1], {}).setdefault(named[0], kind)


class _Resolving:
    """One walk over a saved tree; ``strict``: every class has to be found."""

    def __init__(self, target: Target, *, strict: bool) -> None:
        self._target, self._strict = target, strict

    def node(self, node: Node, path: Path) -> Node:
        """Resolve the values of a tree in the target; returns the tree with resolved enum members in its keys."""
        if isinstance(node, ValueLeaf):
            values = self._target.values
            values[node.index] = self._value(values[node.index], path)
        if not isinstance(node, Branch):
            return node
        if node.form is not None and self._strict:
            _check_form(node.form, node.children[0], self._target, path)
        keys = tuple([key if type(key) is str else self._value(key, path) for key in node.keys])
        below = [path if node.kind == "object" else (*path, key) for key in keys]
        children = tuple([self.node(child, inner) for child, inner in zip(node.children, below, strict=True)])
        if all(map(operator.is_, (*keys, *children), (*node.keys, *node.children))):
            return node
        return replace(node, keys=keys, children=children)

    def _value(self, value: Any, path: Path) -> Any:
        """A value or key with resolved enum members."""
        kind = type(value)
        if kind is SavedMember:
            found = self._target.class_of(value.module, value.enum)
            return value if found is None and not self._strict else _member(value, found, path)
        if kind is slice:
            return slice(*[self._value(each, path) for each in (value.start, value.stop, value.step)])
        if kind not in _MAY_HOLD:
            return value
        keys, items = (range(len(value)), list(value)) if kind in _GROUPS else container_items(value)
        if not _may_hold(items) and not _may_hold(keys):
            return value
        new_keys, new_items = [self._value(key, path) for key in keys], [self._value(item, path) for item in items]
        return kind(new_items) if kind in _GROUPS else make_container(container_kind(value) or "", new_keys, new_items)


def _check_form(form: ObjectForm, data: Node, target: Target, path: Path) -> None:
    if form.kind == DATACLASS:
        kind = target.class_of(*form.about[:2])
        if kind is None:
            raise _unknown(f"an object of the dataclass {form.about[0]}.{form.about[1]}", form.about[1], path)
        if not issubclass(kind, SavedRecord):
            value = target.values[data.index] if isinstance(data, ValueLeaf) else None
            keys = data.keys if isinstance(data, Branch) else tuple(value) if isinstance(value, dict) else ()
            _check_fields(form, kind, keys, path, chosen=target.is_chosen)
    if form.kind == REGISTERED and registered_as(form.about[0]) is None:
        raise StructureMismatchError(
            f"the checkpoint has an object of a type registered as {form.about[0]!r}, which is not registered here",
            where=f"path {readable(path)}",
            todo=f"call deeppart.register(type, to, from_, name={form.about[0]!r}) before restore; deeppart.load gives "
            "the plain data",
        )


def _check_fields(form: ObjectForm, kind: type, attributes: Sequence[Any], path: Path, *, chosen: bool) -> None:
    """Refuse a class whose fields are not the saved ones, or that cannot have the other saved attributes."""
    saved, mine = form.about[2], field_names(kind)
    gone = [name for name in saved if name not in mine and not (chosen and name not in attributes)]
    lost = list(dict.fromkeys([*gone, *(name for name in attributes if not takes(kind, name))]))
    added = [name for name in mine if name not in saved and not (chosen and name in attributes)]
    if lost or added:
        what = [f"lost {some_names(lost)}"] * bool(lost) + [f"got {some_names(added)}"] * bool(added)
        raise StructureMismatchError(
            f"the dataclass {kind.__qualname__} has {' and '.join(what)} since the checkpoint was saved",
            expected=f"fields {some_names(saved)} (checkpoint)",
            found=f"fields {some_names(mine)} (live)",
            where=f"path {readable(path)}",
            todo="restore with strict=False, which keeps the live values of new fields and leaves lost ones out; or "
            "make the object of what deeppart.load gives, and save that from now on",
        )


def _unknown(what: str, name: str, path: Path) -> StructureMismatchError:
    return StructureMismatchError(
        f"the checkpoint has {what}, and that class is not known here",
        expected="a live state that has something of this class, or deeppart.register() of it",
        where=f"path {readable(path)}",
        todo=f"call deeppart.register({name.rpartition('.')[2]}) before restore: nothing is imported by its name",
    )


def _may_hold(items: Iterable[Any]) -> bool:
    return not (_MAY_HOLD | {SavedMember}).isdisjoint(map(type, items))


def _member(saved: SavedMember, kind: type | None, path: Path) -> enum.Enum:
    if kind is None or not issubclass(kind, enum.Enum):
        raise _unknown(f"a member of the enum {saved.module}.{saved.enum}", saved.enum, path)
    found = kind.__members__.get(saved.name or "")
    if found is None and issubclass(kind, enum.Flag) and type(saved.value) is int:
        try:
            found = kind(saved.value)  # a combination of flags
        except ValueError:
            found = None
    if found is None or (saved.has_value and not _has_value(found, saved.value)):
        raise LeafMismatchError(
            f"the enum {kind.__qualname__} has no such member",
            expected=f"{saved}, the value {saved.value!r:.80} (checkpoint)",
            found=f"{found!r:.80}" if found is not None else f"{', '.join(kind.__members__)} (live)",
            where=f"path {readable(path)}",
            todo="give the class the member back, with its value; or convert what deeppart.load gives",
        )
    return found


def _has_value(member: enum.Enum, value: Any) -> bool:
    try:
        hash(member.value)
        return json.dumps(encode_key(member.value, "")) == json.dumps(encode_key(value, ""))
    except (UnsupportedLeafError, TypeError):  # the saved member had a storable value
        return False


def _live_classes(root: Node) -> Iterator[type]:
    """The enums and dataclasses that a live state uses."""
    for _, node in every_node(root, ()):
        if isinstance(node, ValueLeaf):
            yield from _classes_in((node.value,))
        elif isinstance(node, Branch):
            yield from _classes_in(node.keys)
            if node.form is not None and node.form.kind == DATACLASS:
                yield type(node.container)


def _classes_in(values: Iterable[Any]) -> Iterator[type]:
    kinds = set(map(type, values))
    yield from (kind for kind in kinds if isinstance(kind, enum.EnumMeta))
    if kinds.isdisjoint(_MAY_HOLD):
        return
    for value in values:
        if type(value) is slice:
            yield from _classes_in((value.start, value.stop, value.step))
        elif type(value) in _MAY_HOLD:
            yield from _classes_in(value)
            yield from _classes_in(value.values() if isinstance(value, dict) else ())
