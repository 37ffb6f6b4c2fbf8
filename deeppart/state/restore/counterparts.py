"""The saved and the live side of a place in the state, brought into one form so that they can be matched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from deeppart.state.document.structure import DICTS, SavedArray, SavedBranch, SavedNode, SavedValue
from deeppart.state.restore.filling import holds_containers
from deeppart.state.tree.flat import Branch, Node, UnmadeLeaf, ValueLeaf
from deeppart.state.tree.leaves import LeafType
from deeppart.state.tree.runs import RUN_KINDS, run_items, run_kind
from deeppart.state.tree.values import MUTABLE

_NUMBERS = frozenset({int, float, bool, complex})
_PLAIN = frozenset({int, float, str, bool, type(None)})


def is_lacking(saved: SavedNode, live: Node, types: Sequence[LeafType]) -> bool:
    """True if the live state has nothing yet in the place of a saved array or container, so that one is created.

    That is None; a tensor on the meta device; or a number where an array of one element was saved: a best loss begins
    as 1e9, and is a tensor later.
    """
    if isinstance(live, UnmadeLeaf):
        return isinstance(saved, SavedArray)
    if not isinstance(live, ValueLeaf):
        return False
    if isinstance(saved, SavedArray) and type(live.value) in _NUMBERS:
        return math.prod(types[saved.index].shape) == 1
    takes_itself = isinstance(saved, SavedBranch) and saved.kind == "object" and saved.form is None
    return live.value is None and not isinstance(saved, SavedValue) and not takes_itself


def inside_object(saved: SavedNode, live: Node) -> tuple[SavedNode, Node]:
    """``{"m": model}`` and ``{"m": model.state_dict()}`` hold the same: look through the object on one side."""
    live_is_object = isinstance(live, Branch) and live.kind == "object" and live.form is None
    if isinstance(saved, SavedBranch) and saved.kind == "object" and saved.form is None:
        return saved if live_is_object else saved.children[0], live
    return SavedBranch("object", (None,), (saved,)) if live_is_object else saved, live


def meet(saved: SavedNode, live: Node, values: Sequence[Any]) -> tuple[SavedNode, Node]:
    """The two sides in one form: inside objects, and both as a container of leaves or both as a run of values.

    A list may have been saved item by item and be a run here, since it has grown or an older library has saved it; or
    be short here, and have been saved as a run.
    """
    saved, live = inside_object(saved, live)
    if isinstance(saved, SavedBranch) and isinstance(live, ValueLeaf):
        kind = run_kind(live.value)
        if kind is not None:
            keys, items = run_items(live.value)
            children: list[Node] = [
                ValueLeaf((*live.path, key), item, -1) for key, item in zip(keys, items, strict=True)
            ]
            return saved, Branch(kind, live.value, keys, children)
    if isinstance(saved, SavedValue) and isinstance(live, Branch) and live.kind in RUN_KINDS:
        value = values[saved.index]
        is_flat = all(isinstance(child, ValueLeaf) and run_kind(child.value) is None for child in live.children)
        if run_kind(value) is not None and (is_flat or (holds_containers(value) and _is_plain(live))):
            return saved, ValueLeaf((), live.container, -1)
    return saved, live


def both_plain(saved: SavedNode, live: Node, values: list[Any]) -> bool:
    """True if a value simply replaces another one: the usual case, answered at little cost."""
    return (
        type(saved) is SavedValue
        and type(live) is ValueLeaf
        and type(live.value) in _PLAIN
        and type(values[saved.index]) in _PLAIN
    )


def is_cut(saved: SavedBranch, live: Branch, *, is_record: bool) -> bool:
    """True if a live container loses what the checkpoint lacks, as all runs do: a list, or a dict of small values."""
    if saved.kind == "list":
        return not any(has_object(child, forms=False) for child in live.children[len(saved.children) :])
    return saved.kind in DICTS and (saved.kind == "counter" or not is_record) and _is_plain(live)


def has_object(live: Node, *, forms: bool = True) -> bool:
    """True if there is an object in it. ``forms``: also one of a form, which could be made again."""
    if not isinstance(live, Branch):
        return False
    is_object = live.kind == "object" and (forms or live.form is None)
    return is_object or any(has_object(child, forms=forms) for child in live.children)


def _is_plain(live: Node) -> bool:
    """True if it has only small values, to any depth."""
    if isinstance(live, Branch):
        return live.kind in RUN_KINDS and all(map(_is_plain, live.children))
    return isinstance(live, ValueLeaf)


def same_form(saved: SavedBranch, live: Branch) -> bool:
    """True if a live object is of the form of a saved one; or if neither has a form."""
    if saved.form is None or live.form is None:
        return saved.form is live.form
    return saved.form.fits(live.form)


def same_mutable(saved: Any, live: Any) -> bool:
    """True unless one of two values is one that changes, such as a set, and the other is of another type."""
    return type(saved) is type(live) or MUTABLE.isdisjoint((type(saved), type(live)))
