"""Advice about optimizers whose state is not what the checkpoint has.

An optimizer's own state numbers its parameters; what ``get_optimizer_state_dict`` of torch gives has their names. The
one cannot be restored into the other, nor the state of one that has stepped from one that had not.
"""

from __future__ import annotations

from typing import Any

from deeppart.state.document.structure import DICTS, SavedBranch, SavedNode
from deeppart.state.tree.flat import Branch, Node
from deeppart.state.tree.paths import IdKey, Key, Path, id_key, id_keys, readable

#: The keys of what an optimizer's ``state_dict()`` gives.
KEYS = frozenset({"state", "param_groups"})


def optimizer_advice(saved: SavedNode, live: Node, path: Path = ()) -> str | None:
    """What to give to ``restore`` where an optimizer is not as it was saved; None where none is."""
    theirs, mine = inside(saved), inside(live)
    if not isinstance(theirs, SavedBranch) or not isinstance(mine, Branch):
        return None
    if set(theirs.keys) == set(mine.keys) == KEYS:
        return _advice(_state(theirs), _state(mine), readable(path) if path else "the whole state")
    if theirs.kind not in DICTS or mine.kind not in DICTS:
        return None
    others = children(theirs)
    for key, name, child in zip(mine.keys, id_keys(mine.keys), mine.children, strict=True):
        if name in others and (found := optimizer_advice(others[name], child, (*path, key))) is not None:
            return found
    return None


def _advice(saved: list[Key] | None, live: list[Key] | None, name: str) -> str | None:
    if saved is None or live is None:
        return None
    if saved and _are_numbers(saved) and live and not _are_numbers(live):
        return (
            f"the checkpoint has the optimizer itself at {name}, whose state numbers the parameters, and the live "
            "state what get_optimizer_state_dict() gives, which names them: give restore() the optimizer itself. To "
            "change over, restore so once, and save what get_optimizer_state_dict() gives from then on"
        )
    if saved and not _are_numbers(saved) and _are_numbers(live):
        return (
            f"the checkpoint has at {name} what get_optimizer_state_dict() gave, which names the parameters, and the "
            "live state an optimizer's own state, which numbers them: give restore() what "
            "get_optimizer_state_dict(model, optimizer) gives, and that to set_optimizer_state_dict() afterwards"
        )
    if not saved and live:
        return (
            f"the optimizer at {name} had not stepped when it was saved, and the live one has: restore into one that "
            "is new"
        )
    return None


def _are_numbers(keys: list[Key]) -> bool:
    """Of no keys, too: an optimizer that has not stepped."""
    return all(type(key) is int for key in keys)


def _state(node: SavedBranch | Branch) -> list[Key] | None:
    """The keys of an optimizer's state; None if that is no dict."""
    state = inside(children(node)[id_key("state")])
    return list(state.keys) if isinstance(state, (SavedBranch, Branch)) and state.kind in DICTS else None


def children(node: SavedBranch | Branch) -> dict[IdKey, Any]:
    """The items of a container by key."""
    return dict(zip(id_keys(node.keys), node.children, strict=True))


def inside(node: Any) -> Any:
    """The result of an object's ``state_dict()``."""
    while isinstance(node, (SavedBranch, Branch)) and node.kind == "object":
        node = node.children[0]
    return node
