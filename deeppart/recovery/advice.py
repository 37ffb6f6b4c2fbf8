"""Sentences for the caller: about what was restored otherwise than he may expect, and about a state that does not fit.

What they say was found when the live state was matched (:class:`~deeppart.state.restore.Choice`,
:class:`~deeppart.state.restore.Target`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from deeppart.state.paths import Path, readable, some_names
from deeppart.state.restore import Choice, Target, bare_name
from deeppart.state.tree import DICTS, Branch, Node, inside_objects


def warnings_of(choice: Choice, target: Target) -> Iterator[str]:
    """Warnings about saved items that may not have been restored as the caller expected."""
    if choice.left_out:
        yield (
            "left out, since the live state neither has these sharded tensors (of an optimizer, put the optimizer "
            f"itself into the state) nor says how they are split: {_names([item.path for item in choice.left_out])}"
        )
    if choice.beside:
        yield (
            f"left in the checkpoint, since the live state has no such key: {_names(choice.beside)}. Put what is to be "
            "restored into the state, or say what you want: keys="
        )
    if choice.unmet:
        yield f"globs of keys or exclude that cover nothing here or in the checkpoint: {', '.join(choice.unmet)}"
    if choice.unwrapped:
        yield (
            f"the names at {_names(choice.unwrapped)} differ from those in the checkpoint by words that wrappers "
            "insert (DistributedDataParallel module., torch.compile _orig_mod.), and were matched without that"
        )
    if target.removed:
        yield (
            f"removed, since dicts of small values become what was saved: {_names(target.removed)}. What is new, and "
            "not in the checkpoint, stays with strict=False"
        )
    if target.placeless:
        yield (
            f"the live state has nothing at {', '.join(target.placeless)}: what was saved from an object there is a "
            "dict now, and no object has taken it. Put the object itself into the state, or call its "
            "load_state_dict() with the dict"
        )
    if target.unreached:
        yield (
            f"what optimizer.state_dict() gave was filled at {_names(target.unreached)}, but the optimizer does not "
            "know of it: not of its learning rate, and not of its state unless it had stepped. Put the optimizer "
            "itself into the state, or call its load_state_dict() with what is there now"
        )
    if target.exchanged:
        yield (
            f"an optimizer is of another class than the one that was saved ({'; '.join(target.exchanged)}): its "
            "settings and its state are the saved one's now. If that is not meant, leave it out of the state that is "
            "restored"
        )


def _names(paths: Sequence[Path]) -> str:
    return some_names(list(map(readable, paths)))


def advice(saved: Node, live: Node) -> str | None:
    """What to do if the outermost dicts do not fit: usually one of the states is nested a level deeper."""
    theirs, mine = _items(saved), _items(live)
    if theirs is None:
        return None
    for key, child in theirs.items():
        if _are_alike(_items(child), mine):
            return f"the checkpoint has a level more, with the live state as {key!r}: restore({{{key!r}: state}})"
    for key, child in (mine or {}).items():
        if _are_alike(_items(child), theirs):
            return f"the checkpoint has a level less: it was saved from what is {key!r} here: restore(state[{key!r}])"
    if mine is not None and not theirs.keys().isdisjoint(mine):
        return None
    return (
        f"the checkpoint has the keys {some_names(list(map(repr, theirs)))}: give restore() a dict with them, or "
        "rename= if only names have changed"
    )


def _items(node: Node) -> dict[Any, Node] | None:
    """The items of a dict, or of the ``state_dict()`` of an object; otherwise None."""
    node = inside_objects(node)
    if not isinstance(node, Branch) or node.kind not in DICTS:
        return None
    return dict(zip(node.keys, node.children, strict=True))


def _are_alike(outer: dict[Any, Node] | None, inner: dict[Any, Node] | None) -> bool:
    """True if one dict has most of another one's names, but for words of wrappers."""
    one, other = ({bare_name(key) for key in each or () if isinstance(key, str)} for each in (outer, inner))
    return bool(one) and 2 * len(one & other) > len(other)
