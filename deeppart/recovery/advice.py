"""Advice for the caller if a live state and a checkpoint do not match.

The usual causes: one of them is nested one level deeper, or was saved from a wrapper that adds a prefix to the names of
its parameters; or an optimizer differs from the saved one. Both trees are walked along their common keys, down to the
first such difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

import torch

from deeppart.state.objects import is_optimizer
from deeppart.state.paths import Key, Path, id_key, id_keys, readable, some_names
from deeppart.state.restore import Choice, Request, aligned
from deeppart.state.tensors import LeafType
from deeppart.state.tree import DICTS, ArrayLeaf, Branch, Node, ShardedLeaf, UnmadeLeaf, ValueLeaf, inside_objects

#: Prefix -> (the wrapper that adds it to every name, the attribute of the module inside).
_WRAPPERS = {
    "module._orig_mod.": ("DistributedDataParallel over torch.compile", ".module._orig_mod"),
    "_orig_mod.module.": ("torch.compile over DistributedDataParallel", "._orig_mod.module"),
    "module.": ("DistributedDataParallel or DataParallel", ".module"),
    "_orig_mod.": ("torch.compile", "._orig_mod"),
}
_MOST_KEYS = 5
#: Words of a name that may have been renamed, plus one.
_MOST_WORDS = 4
#: The keys of an optimizer's ``state_dict()``.
KEYS = frozenset({"state", "param_groups"})
#: Returns the type of a leaf of a tree.
TypeOf = Callable[[ArrayLeaf], LeafType]


def advice(saved: Node, live: Node) -> str | None:
    """An action that makes the live state fit the checkpoint, or None if no usual cause is recognized."""
    found = optimizer_advice(saved, live) or _advice(saved, live, ())
    if found is None and (exchanged := exchanged_optimizers(saved, live)):
        return (
            f"the optimizer is of another class ({'; '.join(exchanged)}): build it as it was when it was saved, or "
            "leave it out of the state that is restored"
        )
    return found


def _advice(saved: Node, live: Node, path: Path) -> str | None:
    theirs, mine = _as_dict(saved), _as_dict(live)
    if theirs is None and mine is None:
        return None
    if theirs is not None and mine is not None:
        ours, others = mine.by_key(), theirs.by_key()
        common = [(key, name) for key, name in zip(theirs.keys, others, strict=True) if name in ours]
        for key, name in common:
            found = _advice(others[name], ours[name], (*path, key))
            if found is not None:
                return found
        found = _wrapper(theirs, mine, path) if ours.keys() != others.keys() else None
        if found is not None or common:
            return found
    if theirs is not None and (inside := _alike(theirs, live)) is not None:
        here = "the whole state" if not path else f"the item at {readable(path)}"
        return f"the checkpoint has a level more: {here} is a dict with {_some(theirs)} there: {_call(theirs, inside)}"
    if mine is not None and (inside := _alike(mine, saved)) is not None:
        what = f"state[{inside!r}]" if not path else readable((*path, inside))
        return (
            f"the checkpoint has a level less: it was saved from the item at {readable((*path, inside))} here; "
            f"restore({what}), and save dicts with {_some(mine)} from now on"
        )
    if theirs is not None and not path:
        return _part_inside(theirs, mine) or f"the checkpoint is a dict with {_some(theirs)}: {_call(theirs, None)}"
    return None


def renaming(saved: Node, live: Node, saved_type: TypeOf, live_type: TypeOf, path: Path = ()) -> str | None:
    """The ``rename`` from saved to live names of a dict, found by the shapes of the items; None if there is none."""
    theirs, mine = _as_dict(saved), _as_dict(live)
    if theirs is None or mine is None:
        return None
    ours, others = mine.by_key(), theirs.by_key()
    lacking = [key for key, name in zip(mine.keys, ours, strict=True) if name not in others]
    extra = [key for key, name in zip(theirs.keys, others, strict=True) if name not in ours]
    if extra and len(extra) == len(lacking) and all(type(key) is str for key in extra + lacking):
        before = {key: _shape(others[id_key(key)], saved_type) for key in extra}
        after = {key: _shape(ours[id_key(key)], live_type) for key in lacking}
        both = {
            key: _shape(ours[name], live_type)
            for key, name in zip(mine.keys, ours, strict=True)
            if name in others and type(key) is str
        }
        for there, here in sorted(product(range(_MOST_WORDS), repeat=2), key=sum):
            rules = _rules(_by_prefix(before, there), _by_prefix(after, here), _by_prefix(both, here))
            if path:  # without the path, the rule would apply to all dicts
                rules = {readable((*path, old)): readable((*path, new)) for old, new in rules.items()}
            request = Request(rules=tuple(rules.items()))
            renamed = {request.renamed(path, key)[0] for key in theirs.keys}
            if rules and renamed == set(mine.keys) and (path or not _acts_below(request, theirs, path)):
                left = ", ".join(rules.values())
                return (
                    f"if only the names have changed: restore(state, rename={json.dumps(rules)}); strict=False would "
                    f"leave {left} as the live state has it, which in a new model is random"
                )
    common = [(key, name) for key, name in zip(mine.keys, ours, strict=True) if name in others]
    found = (renaming(others[name], ours[name], saved_type, live_type, (*path, key)) for key, name in common)
    return next((each for each in found if each is not None), None)


def _acts_below(request: Request, node: Node | Branch, path: Path) -> bool:
    """True if rules rename anything below the items of a dict."""
    if not isinstance(node, Branch):
        return False
    below = [((*path, key), child) for key, child in zip(node.keys, node.children, strict=True)]
    return any(
        (len(place) > 1 and request.renamed(place[:-1], place[-1])[0] != place[-1])
        or _acts_below(request, child, place)
        for place, child in below
    )


def _by_prefix(shapes: dict[str, Any], words: int) -> dict[str, dict[str, Any]]:
    """Names grouped by their first words: prefix -> rest of the name -> shape."""
    found: dict[str, dict[str, Any]] = {}
    for name, shape in shapes.items():
        parts = name.split(".")
        found.setdefault(".".join(parts[:words]), {})[".".join(parts[words:])] = shape
    return found


def _rules(
    saved: dict[str, dict[str, Any]], live: dict[str, dict[str, Any]], common: dict[str, dict[str, Any]]
) -> dict[str, str]:
    """Pattern -> name, if each group of saved names has the same rests and shapes as exactly one live group.

    None if a group that both have looks like a renamed one: names may have been shifted.
    """
    rests = {repr(sorted(rest.items())): prefix for prefix, rest in live.items()}
    alike = {repr(sorted(rest.items())): prefix for prefix, rest in saved.items()}
    if len(rests) < len(live) or len(alike) < len(saved) or rests.keys() != alike.keys():
        return {}
    if rests.keys() & {repr(sorted(rest.items())) for rest in common.values()}:
        return {}
    return {_pattern(prefix, saved[prefix]): _pattern(rests[rest], saved[prefix]) for rest, prefix in alike.items()}


def _pattern(prefix: str, rests: Iterable[str]) -> str:
    """A pattern of all names with a prefix."""
    if not prefix:
        return "*"
    return prefix if list(rests) == [""] else f"{prefix}.*"


def _shape(node: Node, type_of: TypeOf) -> object:
    """Equal for two items that may be the same under different names."""
    node = inside_objects(node)
    if isinstance(node, Branch):
        names = map(str, node.keys)
        return {name: _shape(child, type_of) for name, child in zip(names, node.children, strict=True)}
    if isinstance(node, ArrayLeaf):
        return type_of(node).dtype, list(type_of(node).shape)
    return (node.kind.dtype, list(node.kind.shape)) if isinstance(node, (ShardedLeaf, UnmadeLeaf)) else None


def unreached_optimizers(saved: Node, live: Node, values: Sequence[Any]) -> list[Path]:
    """Paths at which the live state has the result of an optimizer's ``state_dict()``, and not all that is restored
    reaches the optimizer.

    The dict is not the optimizer's. Their tensors are the same if it has stepped, but items created in the dict do not
    reach it, nor do settings such as the learning rate.
    """
    found = []
    for path, other, mine in _pairs(saved, live):
        theirs = inside_objects(other)
        if mine.kind == "object" or not isinstance(theirs, Branch) or set(mine.keys) != KEYS:
            continue
        ours, others = mine.by_key(), theirs.by_key()
        if others.keys() != ours.keys():
            continue
        before, after = (_as_dict(each[id_key("state")]) for each in (ours, others))
        if before is None or after is None or not after.keys or all(type(key) is str for key in after.keys):
            continue  # with names: from get_optimizer_state_dict, whose caller uses set_optimizer_state_dict
        groups = id_key("param_groups")
        if not before.keys or _values_differ(others[groups], ours[groups], values):
            found.append(path)
    return found


def _values_differ(saved: Node, live: Node, values: Sequence[Any]) -> bool:
    if isinstance(saved, ValueLeaf) and isinstance(live, ValueLeaf):
        return bool(values[saved.index] != live.value)
    if isinstance(saved, Branch) and isinstance(live, Branch):
        ours, others = live.by_key(), saved.by_key()
        return any(_values_differ(others[key], each, values) for key, each in ours.items() if key in others)
    return False


def placeless_objects(saved: Node, live: Node) -> list[str]:
    """Objects with a saved state that a dict of the live state lacks, as in ``scheduler (LambdaLR)``.

    Their states are restored as dicts, and loaded by no object.
    """
    found = list[str]()
    for path, other, mine in _pairs(saved, live):
        theirs = inside_objects(other)
        if not isinstance(theirs, Branch) or theirs.kind not in DICTS or mine.kind == "object":
            continue  # an object's own state has no objects
        ours = mine.by_key()
        found += [
            f"{readable((*path, key))} ({child.name.rpartition('.')[2]})"
            for key, name, child in zip(theirs.keys, id_keys(theirs.keys), theirs.children, strict=True)
            if name not in ours and isinstance(child, Branch) and child.is_object
        ]
    return found


def placeless_notice(names: list[str]) -> str:
    """A warning about :func:`placeless_objects`."""
    return (
        f"the live state has nothing at {', '.join(names)}: what was saved from an object there is a dict now, and no "
        "object has taken it. Put the object itself into the state, or call its load_state_dict() with the dict"
    )


def choice_notices(choice: Choice) -> list[str]:
    """Warnings about items left out without an explicit request, and about names that differ."""
    found = []
    if choice.beside:
        names = some_names(list(map(readable, choice.beside)))
        found.append(
            f"left in the checkpoint, since the live state has no such key: {names}. Put what is to be restored into "
            "the state, or say what you want: keys="
        )
    if choice.unmet:
        found.append(
            f"globs of keys or exclude that cover nothing here or in the checkpoint: {', '.join(choice.unmet)}"
        )
    if choice.unwrapped:
        names = some_names([readable(path) for path in choice.unwrapped])
        found.append(
            f"the names at {names} differ from those in the checkpoint by words that wrappers insert "
            "(DistributedDataParallel module., torch.compile _orig_mod.), and were matched without that"
        )
    return found


def unplaced_notice(names: str, paths: Sequence[Path]) -> str:
    """A warning about sharded tensors that were left out, as in a restore of the model alone."""
    todo = ""
    if any("state" in path for path in paths):
        todo = (
            ". Of an optimizer, put the optimizer itself into the state, or what get_optimizer_state_dict() gives, "
            "which has a place for each"
        )
    why = "the live state has no place for sharded tensors there, nor says how they are split"
    return f"left out, since {why}: {names}{todo}"


def removed_notice(names: str) -> str:
    """A warning about items removed from dicts of small values."""
    return (
        f"removed, since dicts of small values become what was saved: {names}. What is new, and not in the checkpoint, "
        "stays with strict=False"
    )


def unreached_notice(paths: list[Path]) -> str:
    """A warning about :func:`unreached_optimizers`."""
    names = ", ".join(map(readable, paths))
    return (
        f"what optimizer.state_dict() gave was filled at {names}, but the optimizer does not know of it: not of its "
        "learning rate, and not of its state unless it had stepped. Put the optimizer itself into the state, or call "
        "its load_state_dict() with what is there now"
    )


def exchanged_optimizers(saved: Node, live: Node) -> list[str]:
    """Optimizers of another class than the saved ones, as ``opt: Adam in the checkpoint, AdamW here``.

    Their ``load_state_dict`` may accept foreign state, including settings such as the weight decay.
    """
    return [
        f"{readable(path)}: {theirs.name.rpartition('.')[2]} in the checkpoint, {type(mine.container).__name__} here"
        for path, theirs, mine in _pairs(saved, live)
        if theirs.kind == mine.kind == "object"
        and is_optimizer(mine.container)
        and theirs.name.rpartition(".")[2] not in _goes_by(mine.container)
    ]


def _goes_by(optimizer: torch.optim.Optimizer) -> set[str]:
    """Names of an optimizer's class and of the torch class that it extends, also of a wrapped optimizer.

    For torch's own classes only the first: AdamW extends Adam, but differs from it.
    """
    names = set()
    for each in (optimizer, getattr(optimizer, "optimizer", None)):
        if is_optimizer(each):
            classes = type(each).__mro__
            torchs = (at for at, kind in enumerate(classes) if kind.__module__.startswith("torch.optim."))
            names |= {kind.__name__ for kind in classes[: next(torchs, 0) + 1]}
    return names


def exchanged_notice(lines: list[str]) -> str:
    """A warning about :func:`exchanged_optimizers`."""
    return (
        f"an optimizer is of another class than the one that was saved ({'; '.join(lines)}): its settings and its "
        "state are the saved one's now. If that is not meant, leave it out of the state that is restored"
    )


def _wrapper(theirs: Branch, mine: Branch, path: Path) -> str | None:
    """Advice if the names of one side are those of the other with a prefix."""
    saved, live = _names(theirs), _names(mine)
    where = f" at {readable(path)}" if path else ""
    for prefix, (wrapper, attribute) in _WRAPPERS.items():
        if _overlap({prefix + name for name in live}, saved):
            return (
                f"the checkpoint's names{where} begin with {prefix!r}: it was saved from a model inside {wrapper}, and "
                "some of the names behind that are others; with strict=False, what has a place is restored; from now "
                f"on save the model inside: `wrapped{attribute}`"
            )
        if _overlap({prefix + name for name in saved}, live):
            return (
                f"the live names{where} begin with {prefix!r}: the model is inside {wrapper}, and some of the names "
                "behind that are others in the checkpoint; with strict=False, what has a place is restored; give "
                f"restore the model inside: `wrapped{attribute}`"
            )
    return None


def _alike(outer: Branch, wanted: Any) -> Key | None:
    """The key of the child whose names are those of ``wanted``; None if there is none."""
    inner = _as_dict(wanted)
    if inner is None:
        return None
    for key, child in zip(outer.keys, outer.children, strict=True):
        one = _as_dict(child)
        if one is not None and (_overlap(_names(one), _names(inner)) or aligned(one.keys, inner.keys, whole=True)):
            return key
    return None


def _part_inside(theirs: Branch, mine: Branch | None) -> str | None:
    """A call that restores a part of the checkpoint one level deeper: the model of an application's state."""
    names = set() if mine is None else _names(mine)
    if mine is None or not names or len(names) < len(mine.keys):
        return None
    for key, child in zip(theirs.keys, theirs.children, strict=True):
        inside = _as_dict(child)
        if inside is not None and names <= _names(inside):
            given = "{" + ", ".join(f'"{name}": {name if name.isidentifier() else "..."}' for name in mine.keys) + "}"
            globs = ", ".join(f'"{readable((key, name))}"' for name in mine.keys)
            return f'the checkpoint has them at {readable((key,))}: restore({{"{key}": {given}}}, keys=[{globs}])'
    return None


def _overlap(one: set[str], other: set[str]) -> bool:
    """True if most of the names are the same."""
    return bool(one) and 2 * len(one & other) > max(len(one), len(other))


def _as_dict(node: Any) -> Branch | None:
    """A dict, or the ``state_dict()`` of an object if it is a dict; otherwise None."""
    node = inside_objects(node)
    return node if isinstance(node, Branch) and node.kind in DICTS else None


def _pairs(saved: Node, live: Node, path: Path = ()) -> Iterator[tuple[Path, Branch, Branch]]:
    """Pairs of containers and objects at the same path, outermost first; without those inside an object's state."""
    if not isinstance(saved, Branch) or not isinstance(live, Branch):
        return
    yield path, saved, live
    theirs = inside_objects(saved)
    if live.kind == "object" or not isinstance(theirs, Branch):
        return
    others = theirs.by_key()
    for key, name, child in zip(live.keys, id_keys(live.keys), live.children, strict=True):
        if name in others:
            yield from _pairs(others[name], child, (*path, key))


def _names(node: Branch) -> set[str]:
    return {key for key in node.keys if isinstance(key, str)}


def _some(node: Branch) -> str:
    names = [str(key) for key in node.keys[:_MOST_KEYS]]
    more = f" and {len(node.keys) - len(names)} more" if len(node.keys) > len(names) else ""
    return ("the key " if len(node.keys) == 1 else "the keys ") + ", ".join(names) + more


def _call(node: Branch, inside: Key | None) -> str:
    """The call of restore with a dict of these keys, as text."""
    items = [f'"{key}": {key if str(key).isidentifier() else "..."}' for key in node.keys[:_MOST_KEYS]]
    items += ["..."] if len(node.keys) > _MOST_KEYS else []
    as_what = "" if inside is None else f", with the live one as {str(inside)!r}"
    return f"restore({{{', '.join(items)}}}){as_what}"


# --- optimizers that number their parameters, and those that name them ------------------------------------------------


def optimizer_advice(saved: Node, live: Node) -> str | None:
    """How to restore optimizers that differ from the saved ones; None if none do."""
    for path, other, each in _pairs(saved, live):
        theirs, mine = inside_objects(other), inside_objects(each)
        if not isinstance(theirs, Branch) or not isinstance(mine, Branch) or set(theirs.keys) != KEYS:
            continue
        if set(mine.keys) == KEYS:
            name = readable(path) if path else "the whole state"
            if (found := _state_advice(_state(theirs), _state(mine), name)) is not None:
                return found
    return None


def _state_advice(saved: list[Key] | None, live: list[Key] | None, name: str) -> str | None:
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
    """True for no keys, too: an optimizer that has not stepped."""
    return all(type(key) is int for key in keys)


def _state(node: Branch) -> list[Key] | None:
    """The keys of an optimizer's state; None if that is no dict."""
    state = inside_objects(node.by_key()[id_key("state")])
    return list(state.keys) if isinstance(state, Branch) and state.kind in DICTS else None
