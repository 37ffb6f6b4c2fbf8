"""Selects which saved items are restored into a live state, and which live items stay unchanged.

The result is a saved tree in the shape of the live one: without the items that are not requested, with a placeholder
(:class:`RankLocal`) where a live item stays, and with the live names. The rest of a restore treats it like a checkpoint
with just this content.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch

from deeppart.errors import StructureMismatchError
from deeppart.state.objects import DEQUE, is_optimizer
from deeppart.state.paths import IdKey, Key, Path, covers, id_key, id_keys, nearest_globs, readable, some_names
from deeppart.state.restore.composites import is_composite
from deeppart.state.restore.request import MISSING, UNEXPECTED, Request, aligned
from deeppart.state.restore.target import is_cut, meet, same_kind
from deeppart.state.tree import (
    DICTS,
    ArrayLeaf,
    Branch,
    Node,
    RankLocal,
    ValueLeaf,
    container_items,
    container_kind,
    every_node,
    numbers_in,
    walk_tree,
)

_STAYS = RankLocal()


@dataclass(frozen=True, slots=True)
class Absent:
    """A saved item whose key the live dict lacks, or for which it has None; not in optimizers, which create them.

    Attributes:
        path: its path.
        numbers: those of its leaves and values.
        around: the live dict.
        is_none: the live dict has None under the key.
        in_module: the dict is a module's.
    """

    path: Path
    numbers: set[int]
    around: Branch
    is_none: bool
    in_module: bool


@dataclass(slots=True)
class Choice:
    """The result of :func:`choose`.

    Attributes:
        tree: the saved items to restore, in the shape of the live state.
        missing: live items that the checkpoint lacks, and that stay unchanged.
        unexpected: saved items that the live state lacks, and that are left out.
        beside: items of the outermost dict that the live one lacks, left out because they were not requested.
        renamed: pairs of the saved and the live path of items, for rules of ``rename``.
        unwrapped: paths of dicts whose names differed by wrappers.
        unmet: globs of the caller that cover nothing in the checkpoint or the live state.
        absent: items of the tree for which the live state has no place yet.
        left_to_others: those that other ranks have.
        left_out: those that have sharded tensors, and cannot be split.
    """

    tree: Node
    missing: list[Path] = field(default_factory=list)
    unexpected: list[Path] = field(default_factory=list)
    beside: list[Path] = field(default_factory=list)
    renamed: list[tuple[Path, Path]] = field(default_factory=list)
    unwrapped: list[Path] = field(default_factory=list)
    unmet: list[str] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)
    left_to_others: list[Absent] = field(default_factory=list)
    left_out: list[Absent] = field(default_factory=list)


def choose(
    saved: Node, live: Node, values: Mapping[int, Any], request: Request, outermost: Collection[IdKey] | None
) -> Choice:
    """Select the items to restore; changes nothing."""
    walk = _Choosing(values, request, outermost)
    walk.found.tree = walk.node(saved, live, (), _At((), request.keys is None)) or _STAYS
    walk.check(saved, live)
    return walk.found


@dataclass(frozen=True, slots=True)
class _At:
    """The position of a walk.

    Attributes:
        saved_path: the path in the checkpoint.
        asked: true if ``keys`` cover the path, or a container above it.
        whole: true within an item that is restored whole or not at all: an optimizer, whose states are numbered, and
            any object with a ``state_dict()`` except modules.
        in_module, in_optimizer: true within a live module, and within a live optimizer.
    """

    saved_path: Path
    asked: bool
    whole: bool = False
    in_module: bool = False
    in_optimizer: bool = False


class _Choosing:
    """One walk over both trees.

    Attributes:
        found: the result so far.
    """

    def __init__(self, values: Mapping[int, Any], request: Request, outermost: Collection[IdKey] | None) -> None:
        self._values, self._request, self._outermost = values, request, outermost
        self._rules_met: set[int] = set()
        self._any_asked = request.keys is None
        self.found = Choice(_STAYS)

    def node(self, saved: Node, live: Node | None, path: Path, at: _At) -> Node | None:
        """What of a saved item is restored into a live one, or created without one; None if nothing of it is."""
        request = self._request
        if request.excludes(path):
            return None
        at = self._with_keys_checked(path, at)
        if not at.asked and not request.may_choose_below(path):
            return None
        if isinstance(saved, RankLocal):
            return saved
        if isinstance(live, Branch) and live.kind == "object":
            item = live.container
            at = replace(
                at,
                whole=at.whole or not _has_items(live),
                in_module=at.in_module or isinstance(item, torch.nn.Module),
                in_optimizer=at.in_optimizer or is_optimizer(item),
            )
            live = live.children[0]
        if isinstance(saved, Branch) and saved.kind == "object":
            child = self.node(saved.children[0], live, path, at)
            if child is None or isinstance(child, RankLocal):
                return child
            return saved if child is saved.children[0] else replace(saved, children=(child,))
        met = None if live is None else meet(saved, live, self._values)[1]
        if isinstance(saved, Branch) and isinstance(met, Branch) and _are_alike(saved, met):
            return self._items(saved, met, path, at)
        pruned = self._pruned(saved, path, at)
        if pruned is not None and isinstance(saved, ValueLeaf) and isinstance(met, ValueLeaf):
            self._check_whole(self._values[saved.index], met.value, path, at)
        return pruned

    def _check_whole(self, saved: Any, live: Any, path: Path, at: _At) -> None:
        """Refuse a live value container in which something is to stay: it is replaced as a whole."""
        request = self._request
        if request.may_exclude_below(path) and _any_item(live, path, request.excludes):
            raise _divided_error(path)
        if request.strict is True or at.whole or not isinstance(saved, dict) or not isinstance(live, dict) or not live:
            return
        if isinstance(saved, Counter):
            return
        differing = set(id_keys(list(saved))) ^ set(id_keys(list(live)))
        if differing:
            raise StructureMismatchError(
                "a large dict of small values is restored as a whole, and has other keys in the checkpoint",
                found=f"{len(differing)} keys that only one of them has",
                where=f"path {readable(path)}",
                todo="leave it out (exclude=), or restore it alone, with strict=True: it becomes what was saved",
            )

    def _items(self, saved: Branch, live: Branch, path: Path, at: _At) -> Node:
        takes_all = at.asked and not self._request.exclude
        kept: list[tuple[Key, Node]] = []
        names = self._names(saved, live, path, at)
        mine, theirs = live.by_key(), id_keys(names)
        for old, key, name, child in zip(saved.keys, names, theirs, saved.children, strict=True):
            if takes_all and type(child) is ArrayLeaf and type(mine.get(name)) is ArrayLeaf:
                kept.append((key, child))  # the usual case
                continue
            inner = (*path, key)
            whole = at.whole or saved.kind == "counter"
            below = _At((*at.saved_path, old), at.asked, whole, at.in_module, at.in_optimizer)
            here = mine.get(name)
            found = self.node(child, here, inner, below)
            if here is None and (found is None or not self._is_created(found, inner, below, live)):
                continue
            found = found or _STAYS
            kept.append((key, found))
            is_none = isinstance(here, ValueLeaf) and here.value is None
            if (here is None or (is_none and found is not _STAYS)) and saved.kind in DICTS and not at.in_optimizer:
                self.found.absent.append(Absent(inner, numbers_in(found), live, is_none, at.in_module))
        lacking = live.keys_besides(theirs)
        is_whole = saved.kind == "list" and is_cut(saved, live, is_record=False)
        # An absent count is 0: a mixture with live counts would be those of two runs.
        around = replace(at, whole=at.whole or is_whole or saved.kind == "counter")
        staying = [key for key in lacking if self._stays((*path, key), around)]
        kept += [(key, _STAYS) for key in staying]
        is_refused = len(staying) < len(lacking)  # reported as missing, or removed
        if saved.kind == "list" and any(key != number for number, (key, _) in enumerate(kept)):
            raise _hole_error(path)
        if not at.asked and not is_refused and all(_is_empty(child) for _, child in kept):
            return _STAYS
        same = len(kept) == len(saved.children) and all(
            key is old and child is before
            for (key, child), old, before in zip(kept, saved.keys, saved.children, strict=True)
        )
        return saved if same else saved.with_items(kept)

    def _names(self, saved: Branch, live: Branch, path: Path, at: _At) -> Sequence[Key]:
        """The live names of the saved keys."""
        if saved.kind not in DICTS:
            return saved.keys
        names = list(saved.keys)
        if self._request.rules:
            for number, key in enumerate(saved.keys):
                names[number], rule = self._request.renamed(path, key)
                if rule is not None:
                    self._rules_met.add(rule)
                if names[number] != key:
                    self.found.renamed.append(((*at.saved_path, key), (*path, names[number])))
            _check_names(names, saved.keys, path)
        counterparts = aligned(names, list(live.keys), whole=at.whole or self._request.strict is True)
        if counterparts:
            self.found.unwrapped.append(path)
            names = [counterparts.get(name, name) for name in names]
            _check_names(names, saved.keys, path)
        return names if names != list(saved.keys) else saved.keys

    def _is_created(self, saved: Node, path: Path, at: _At, live: Branch) -> bool:
        """True if a requested item is created that a live container lacks."""
        if at.whole or live.kind not in DICTS:  # a list may have become longer
            return True
        if live.keys and self._request.accepts(path, UNEXPECTED):  # an empty container takes everything
            self.found.unexpected.append(path)
            return False
        is_beside = len(path) == 1 and self._outermost is not None and id_key(path[0]) not in self._outermost
        if is_beside and not _is_small(saved):
            self.found.beside.append(path)
            return False
        return True

    def _pruned(self, saved: Node, path: Path, at: _At) -> Node | None:
        """An item that is not matched item by item, without what is not requested; None if nothing is left."""
        if at.asked and not self._request.may_exclude_below(path):
            return saved
        if not isinstance(saved, Branch) or is_composite(saved):
            meets = self._request.excludes if at.asked else self._request.covers
            if isinstance(saved, ValueLeaf) and _any_item(self._values[saved.index], path, meets):
                raise _divided_error(path)
            return saved if at.asked else None
        children = [self.node(child, None, inner, at) for inner, child in saved.items(path)]
        kept = [(key, child) for key, child in zip(saved.keys, children, strict=True) if child is not None]
        if not kept:
            return None
        if all(map(operator.is_, children, saved.children)):
            return saved
        if len(kept) < len(children) and saved.kind not in DICTS:
            raise _hole_error(path)
        return saved.with_items(kept)

    def _with_keys_checked(self, path: Path, at: _At) -> _At:
        """The same position, with ``keys`` checked for its path."""
        if at.asked or not self._request.covers(path):
            return at
        self._any_asked = True
        return replace(at, asked=True)

    def _stays(self, path: Path, at: _At) -> bool:
        """True if a live item that the checkpoint lacks stays unchanged."""
        request = self._request
        if request.excludes(path) or not self._with_keys_checked(path, at).asked:
            return True
        if at.whole or not request.accepts(path, MISSING):
            return False
        self.found.missing.append(path)
        return True

    def check(self, saved: Node, live: Node) -> None:
        """Check the request as a whole, at the end of the walk."""
        request, found = self._request, self.found
        if not self._any_asked:
            keys = unmet_globs(replace(request, exclude=()), saved, live, ()) or request.keys or ()
            raise StructureMismatchError(
                "nothing in the checkpoint or the live state matches the keys asked for, or it is excluded",
                found=f"keys {', '.join(keys)}",
                todo="`deeppart show DIR` lists the paths",
            )
        if unmet := [pattern for number, (pattern, _) in enumerate(request.rules) if number not in self._rules_met]:
            raise StructureMismatchError(
                "a rule of rename matches nothing in the checkpoint",
                found=", ".join(unmet),
                todo="`deeppart show DIR` lists the names, with the words of wrappers such as `module.`; a pattern "
                "without `/` is compared with single keys, one with `/` with whole paths, in which `*` does not go "
                "beyond a `/`",
            )
        if request.keys is None and found.unexpected and not any(True for _ in walk_tree(found.tree, ())):
            raise StructureMismatchError(
                "the live state has no place for anything in the checkpoint",
                expected=some_names(list(map(readable, found.unexpected))),
                found=some_names(list(map(readable, found.missing))) or "nothing else",
                todo="give restore() the state under the names with which it was saved, or rename=",
            )


def _has_items(live: Branch) -> bool:
    """True if items inside an object can be restored separately: for modules, and objects saved as their attributes."""
    return isinstance(live.container, torch.nn.Module) or (live.form is not None and live.form.kind != DEQUE)


def _any_item(value: Any, path: Path, meets: Callable[[Path], bool]) -> bool:
    """True if ``meets`` is true for any path in a container of small values."""
    if container_kind(value) is None:
        return False
    pairs = zip(*container_items(value), strict=True)
    return any(meets((*path, key)) or _any_item(item, (*path, key), meets) for key, item in pairs)


def _is_empty(chosen: Node) -> bool:
    """True for a placeholder, unless it is one for an item that is not in the tree yet (``without_rank_local``)."""
    return isinstance(chosen, RankLocal) and not chosen.path


def _is_small(saved: Node) -> bool:
    """True if a tree has neither tensors nor objects: such an item, like an epoch, is created if it is missing."""
    nodes = (node for _, node in every_node(saved, ()))
    return all(isinstance(node, ValueLeaf) or (isinstance(node, Branch) and node.kind != "object") for node in nodes)


def _divided_error(path: Path) -> StructureMismatchError:
    return StructureMismatchError(
        "a container of small values is restored as a whole, and only some of it is asked for, or excluded",
        where=f"path {readable(path)}",
        todo=f"ask for {readable(path)!r}, or exclude all of it",
    )


def _hole_error(path: Path) -> StructureMismatchError:
    return StructureMismatchError(
        "only some items of a list or tuple are asked for, and the live state lacks others before them",
        where=f"path {readable(path)}",
        todo=f"ask for all of {readable(path)!r}, or have the others in the live state",
    )


def _check_names(names: Sequence[Key], saved: Sequence[Key], path: Path) -> None:
    first: dict[IdKey, Key] = {}
    for name, key in zip(names, saved, strict=True):
        if id_key(name) in first:
            raise StructureMismatchError(
                f"two items of the checkpoint get one name: {readable((*path, name))}",
                found=f"{first[id_key(name)]!r} and {key!r}",
                where=f"path {readable(path)}",
                todo="make the rules of rename tell them apart",
            )
        first[id_key(name)] = key


def _are_alike(saved: Branch, live: Branch) -> bool:
    """True if both are containers whose items can be matched one by one."""
    return not is_composite(saved) and not is_composite(live) and same_kind(saved.kind, live.kind)


# --- globs and rules that match nothing -------------------------------------------------------------------------------


def unmet_globs(request: Request, saved: Node, live: Node, others: Collection[Path]) -> list[str]:
    """Globs of ``keys`` and ``exclude`` that cover nothing in the checkpoint or the live state, with similar ones."""
    left = dict.fromkeys((*(request.keys or ()), *request.exclude))
    for glob in request.settings:
        left.pop(glob, None)

    def paths() -> Iterator[str]:
        nodes = chain(every_node(saved, ()), every_node(live, ()))
        return map(readable, chain(others, (path for path, _ in nodes if path)))

    for path in paths():
        if not left:
            return []
        for glob in [each for each in left if covers(path, [each])]:
            del left[glob]
    known = dict.fromkeys(paths()) if left else {}
    return [f"{glob} (perhaps {' or '.join(near)})" if (near := nearest_globs(glob, known)) else glob for glob in left]
