"""Makes new containers and objects of saved ones: of all of a state for ``load``, or of what a live state lacks."""

from __future__ import annotations

import functools
from collections import OrderedDict, namedtuple
from collections.abc import Mapping
from functools import partialmethod
from typing import Any

from deeppart.state.objects import DATACLASS, make
from deeppart.state.restore.composites import is_composite, is_dropped, rebuilt
from deeppart.state.restore.target import DROPPED, Target
from deeppart.state.tensors import SUBCLASS, Array
from deeppart.state.tree import DICTS, ArrayLeaf, Branch, Node, ValueLeaf
from deeppart.state.values import TABLE_MAKERS


def build(target: Target, arrays: Mapping[int, Array], node: Node) -> Any:
    """Build a saved state without a live one: an object becomes what its ``state_dict()`` returned.

    Subclasses of tensors become dicts of their components: only their class could make them.
    """
    if isinstance(node, ArrayLeaf):
        return DROPPED if node.index in target.dropped else arrays[node.index]
    if isinstance(node, ValueLeaf):
        return target.values[node.index]
    if not isinstance(node, Branch):
        return DROPPED  # rank-local to another rank
    if is_composite(node) and node.kind != SUBCLASS:
        return DROPPED if is_dropped(node, target) else rebuilt(target, arrays, node)
    children = [build(target, arrays, child) for child in node.children]
    if children and all(child is DROPPED for child in children):
        return DROPPED
    if node.form is not None:
        form = node.form
        kind = target.class_of(*form.about[:2]) if form.kind == DATACLASS else None
        return make(form, children[0], kind, lambda: f"an object saved as a {form}")
    if node.kind == "object":
        return children[0]
    if node.kind == SUBCLASS:
        return DROPPED if is_dropped(node, target) else dict(zip(node.keys, children, strict=True))
    if node.kind in DICTS:
        items = [(key, child) for key, child in zip(node.keys, children, strict=True) if child is not DROPPED]
        return _new_dict(node, items)
    kept = [None if child is DROPPED else child for child in children]  # so that other items keep their index
    if node.kind == "list":
        return kept
    return _namedtuple(node.name, tuple(node.keys))(*kept) if node.kind == "namedtuple" else tuple(kept)


@functools.lru_cache(maxsize=256)
def _namedtuple(name: str, fields: tuple[str, ...]) -> Any:
    """One class for all instances, since making one takes 0.1 ms; it can be pickled, for ``torch.save``."""
    plain = namedtuple(name, fields, rename=True)  # type: ignore[misc]  # the saved fields may be renamed ones: a, _1
    return type(name, (plain,), {"__slots__": (), "__reduce__": partialmethod(_reduced, name, fields)})


def _reduced(row: tuple[Any, ...], name: str, fields: tuple[str, ...]) -> tuple[Any, ...]:
    return _row, (name, fields, tuple(row))


def _row(name: str, fields: tuple[str, ...], items: tuple[Any, ...]) -> Any:
    """An instance from its pickled form."""
    return _namedtuple(name, fields)._make(items)


def _new_dict(node: Branch, items: list[tuple[Any, Any]]) -> dict[Any, Any]:
    if node.kind != "odict":
        made: dict[Any, Any] = TABLE_MAKERS[node.kind](items)
        return made
    ordered = OrderedDict(items)
    if isinstance(node.metadata, dict):
        metadata = OrderedDict((name, dict(entry)) for name, entry in node.metadata.items())
        ordered._metadata = metadata  # type: ignore[attr-defined]
    return ordered
