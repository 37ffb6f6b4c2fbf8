"""Restoring into a live state: every saved leaf is matched with a live one, before anything is touched.

Live tensors and arrays are written in place. What the live state lacks is created: keys of dicts, items of lists,
what was saved where it has None (an array of one element also where it has a number), state of an optimizer that has
not stepped. What the checkpoint lacks, or what has another kind, shape or dtype, is an error that names the path.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from deeppart._gc import collection_paused
from deeppart.errors import LeafMismatchError, StateError, StructureMismatchError
from deeppart.state.document.structure import DICTS, SavedApart, SavedArray, SavedBranch, SavedNode, SavedValue
from deeppart.state.restore.casting import can_cast
from deeppart.state.restore.classes import resolve
from deeppart.state.restore.composites import (
    check_created,
    check_unmade,
    check_values,
    is_composite,
    is_dropped,
    match_rebuilt,
)
from deeppart.state.restore.counterparts import (
    both_plain,
    has_object,
    is_cut,
    is_lacking,
    meet,
    same_form,
    same_mutable,
)
from deeppart.state.restore.describing import describe_node, first_inside
from deeppart.state.restore.filling import places, same_where_fixed
from deeppart.state.restore.live_objects import MOST_NAMED, check_object, some
from deeppart.state.restore.target import DROPPED, Target, place_of
from deeppart.state.restore.tied_leaves import check_ties
from deeppart.state.tree.composites import SUBCLASS, branch_name
from deeppart.state.tree.flat import ArrayLeaf, Branch, FlatState, Node, ShardedLeaf, UnmadeLeaf, ValueLeaf
from deeppart.state.tree.leaves import has_type, leaf_type, new_array
from deeppart.state.tree.objects import is_optimizer, replaces
from deeppart.state.tree.paths import Path, exact, id_keys, readable, some_names
from deeppart.state.tree.runs import RUN_KINDS, describe_leaf_value, make_run, run_kind, same_leaf_value
from deeppart.state.tree.values import MUTABLE

_SHAPED_IN_TRAINING = (
    "; where a module gives its buffers their shapes in training, train a step before restore, or give what "
    "deeppart.load gives to its load_state_dict()"
)
_OF_ANOTHER_TYPE = "; a module can be converted once it is restored, module.to(dtype)"


def find_targets(target: Target, flat: FlatState) -> None:
    """Match the saved structure with the live state and fill in ``target.live``. Changes nothing live."""
    resolve(target, flat)
    matching = _Matching(target, flat)
    with collection_paused():
        matching.node(target.structure.tree, flat.root, (), fixed=True)
    if matching.refused:
        raise matching.refusal()
    target.untie_shards()
    check_ties(target, flat, matching.places)
    for index, (_, error) in target.mistied.items():
        if index not in target.live:  # a component, which is not compared with what it shares memory with
            raise error
    for index, path in target.structure.rank0_leaves().items() if target.replaced else ():
        if path in target.replaced:
            target.live.pop(index, None)


class _Matching:
    """One walk over both trees.

    Attributes:
        places: number of a live leaf -> number of the saved leaf that goes there.
        refused: why items of containers do not match: the walk goes on, so that all of them are named.
    """

    def __init__(self, target: Target, flat: FlatState) -> None:
        self._target, self._flat = target, flat
        self.places: dict[int, int] = {}
        self.refused: list[StateError] = []
        #: id of a live container -> what goes there: a saved tree, or a container within a saved run.
        self._seen: dict[int, Any] = {}
        self._objects = self._modules = self._optimizers = 0
        self._data: Node | None = None  # of the last object
        #: True for the data of an object of which another takes the place: they are not filled.
        self._replaced = False

    def refusal(self) -> StateError:
        """The first of :attr:`refused`, which names the others; they are forgotten: an error keeps its frames alive."""
        first, names = self.refused[0], [str(each.where).removeprefix("path ") for each in self.refused]
        self.refused = []
        if len(names) > 1:
            first.where = f"paths {some_names(names, most=MOST_NAMED)}"
        return first

    def node(self, saved: SavedNode, live: Node, path: Path, *, fixed: bool) -> None:
        """``fixed``: a changed value cannot be put here, because everything above is a tuple."""
        if isinstance(saved, SavedApart):
            return
        if self._target.structure.rank0 and not fixed and exact(path) in self._target.structure.rank0:
            self._rank0(saved, live, path)
        else:
            self._node(saved, live, path, fixed)

    def _rank0(self, saved: SavedNode, live: Node, path: Path) -> None:
        """Match an item of rank 0's; if it has another structure here, it replaces the live item."""
        if has_object(live):
            self._target.with_objects.add(exact(path))
        before = dict(self._target.live), dict(self.places), dict(self._seen)
        depths, removed = (self._objects, self._modules, self._optimizers), len(self._target.removed)
        others, self.refused = self.refused, []
        try:
            self._node(saved, live, path, False)
            if self.refused:
                raise self.refusal()
        except (StructureMismatchError, LeafMismatchError):
            check_created(saved, path)
            if isinstance(live, Branch) and live.kind == "object":
                raise
            self._target.live, self.places, self._seen = before
            self._objects, self._modules, self._optimizers = depths
            del self._target.removed[removed:]
            self._target.replaced.add(exact(path))
        finally:
            self.refused = others

    def _node(self, saved: SavedNode, live: Node, path: Path, fixed: bool) -> None:
        if isinstance(saved, SavedArray) and isinstance(live, UnmadeLeaf):
            check_unmade(saved, live, self._target, path, movable=not (fixed or self._objects))
            return
        if is_lacking(saved, live, self._target.structure.types) and not fixed:
            check_created(saved, path)
            return
        saved, live = meet(saved, live, self._target.values)
        if is_composite(saved) or is_composite(live):
            self._composite(saved, live, path, movable=not (fixed or self._modules))
        elif isinstance(saved, SavedBranch):
            if not isinstance(live, Branch) or not _same_kind(saved.kind, live.kind) or not same_form(saved, live):
                raise self._kind_error(saved, live, path)
            self._branch(saved, live, path, fixed)
        elif isinstance(saved, SavedArray):
            if isinstance(live, ShardedLeaf):
                self._sharded(saved, live, path)
                return
            if not isinstance(live, ArrayLeaf):
                raise self._kind_error(saved, live, path)
            self._array(saved.index, live, path)
        elif isinstance(saved, SavedValue) and self._target.values[saved.index] is not DROPPED:
            self._value(saved, live, path, fixed)

    def _value(self, saved: SavedValue, live: Node, path: Path, fixed: bool) -> None:
        value = self._target.values[saved.index]
        if not isinstance(live, ValueLeaf):
            raise self._kind_error(saved, live, path)
        kind, mine = run_kind(value), run_kind(live.value)
        if live.value is not None and ((kind is None) != (mine is None) or not same_mutable(value, live.value)):
            raise self._kind_error(saved, live, path)
        if kind is not None and mine is not None:
            if not _same_kind(kind, mine) or (kind == "tuple" and len(value) != len(live.value)):
                raise self._kind_error(saved, live, path)
            self._check_run(live.value, value, path)
        if type(live.value) in MUTABLE:
            self._check_shared(value, live.value, path)
            return
        if fixed and (kind in (None, "tuple") or mine is None):
            self._check_fixed(value, live, path)

    def _check_fixed(self, saved: Any, live: ValueLeaf, path: Path) -> None:
        if not same_where_fixed(live.value, saved):
            raise StructureMismatchError(
                "restore cannot replace a value whose containers are all tuples",
                found=f"{describe_leaf_value(live.value)} here, {describe_leaf_value(saved)} in the checkpoint",
                where=f"path {readable(path)}",
                todo="put the state into a dict or list",
            )

    def _array(self, index: int, live: ArrayLeaf, path: Path) -> None:
        if index in self._target.dropped:
            return
        data = self._flat.data[live.index]
        expected = self._target.types[index]
        if not has_type(data, expected):
            found = leaf_type(data)
            if self._target.may_cast and not live.inside and can_cast(expected, found):
                self._target.casts[index] = data
                self.places[live.index] = index
                return
            more = _SHAPED_IN_TRAINING if expected.shape != found.shape else _OF_ANOTHER_TYPE
            castable = " (cast=True does it for this one)" if can_cast(expected, found) else ""
            raise LeafMismatchError(
                f"a leaf differs between the checkpoint and the live state: {readable(path)}",
                expected=f"{expected} (checkpoint)",
                found=f"{found} (live)",
                where=f"path {readable(path)}",
                todo="build the state as it was when it was saved, or leave what differs as it is "
                f"(exclude={readable(path)!r}), or convert what deeppart.load gives{castable}"
                + (more if self._objects else ""),
            )
        self._target.live[index] = data
        self.places[live.index] = index

    def _composite(self, saved: SavedNode, live: Node, path: Path, *, movable: bool) -> None:
        """A tensor that is made of others; another one can take its place if it is ``movable``."""
        if not isinstance(saved, SavedBranch) or not isinstance(live, Branch):
            raise self._kind_error(saved, live, path)
        name = branch_name(live.kind, live.container)
        if (saved.kind, saved.name, list(saved.keys)) != (live.kind, name, list(live.keys)):
            raise self._kind_error(saved, live, path)
        if saved.kind != SUBCLASS:
            self.places |= match_rebuilt(saved, live, self._target, self._flat, path, movable=movable)
            return
        if is_dropped(saved, self._target):
            return
        check_values(saved, live, self._target, path)
        for key, child, inner in zip(saved.keys, saved.children, live.children, strict=True):
            if isinstance(child, SavedArray) and isinstance(inner, ArrayLeaf):
                self._array(child.index, inner, (*path, key))
            elif not isinstance(child, SavedValue):
                self._composite(child, inner, (*path, key), movable=False)

    def _sharded(self, saved: SavedArray, live: ShardedLeaf, path: Path) -> None:
        """A live tensor of which this rank has shards gets a leaf of the same type, if all ranks had the same bytes."""
        expected = self._target.types[saved.index]
        if self._target.structure.per_rank[saved.index]:
            raise LeafMismatchError(
                f"the live state has shards of a leaf that each rank had saved for itself: {readable(path)}",
                expected=f"{expected}, one for each rank (checkpoint)",
                found=f"a {type(live.item).__name__} of {live.kind} (live)",
                where=f"path {readable(path)}",
                todo="build the state as it was when it was saved",
            )
        if expected != live.kind and self._target.may_cast and can_cast(expected, live.kind):
            shapes = (tuple(self._flat.data[number].shape) for number in live.numbers)
            self._target.cast_shards[saved.index] = [new_array(replace(expected, shape=shape)) for shape in shapes]
        elif expected != live.kind:
            raise LeafMismatchError(
                f"a leaf differs between the checkpoint and the live state: {readable(path)}",
                expected=f"{expected} (checkpoint)",
                found=f"{live.kind}, of which this rank has {len(live.boxes)} shards (live)",
                where=f"path {readable(path)}",
                todo="build the state as it was when it was saved, or convert what deeppart.load gives",
            )
        self._target.sharded[saved.index] = live

    def _branch(self, saved: SavedBranch, live: Branch, path: Path, fixed: bool) -> None:
        around, self._replaced = self._replaced, False
        is_replaced = live.form is not None and replaces(live.container, live.form)
        fixed = fixed and (around or is_replaced or saved.kind in ("tuple", "namedtuple"))
        if not is_replaced and live.kind not in ("tuple", "namedtuple"):
            self._check_shared(saved, live.container, path)
        if live.kind == "object":
            self._data = live.children[0]
        if saved.form is not None:
            self._replaced = is_replaced
            self.node(saved.children[0], live.children[0], path, fixed=fixed)
            self._replaced = False
            return
        if saved.kind == "object":
            check_object(saved, live, self._target.values, path)
            depths = self._objects, self._modules, self._optimizers
            self._objects += 1
            self._modules += isinstance(live.container, torch.nn.Module)
            self._optimizers += is_optimizer(live.container)
            self.node(saved.children[0], live.children[0], path, fixed=False)
            self._objects, self._modules, self._optimizers = depths
            return
        mine = dict(zip(id_keys(live.keys), live.children, strict=True))
        names = id_keys(saved.keys)
        theirs = set(names)
        lacking = [key for key, name in zip(live.keys, mine, strict=True) if name not in theirs]
        is_record = not path or live is self._data or self._optimizers > 0
        if lacking and not is_cut(saved, live, is_record=is_record):
            raise _lacking_error(list(saved.keys), lacking, path)
        if live.kind in ("dict", "odict"):
            self._target.removed += [(*path, key) for key in lacking]
        if saved.kind in ("tuple", "namedtuple") and len(mine) != len(theirs):
            raise self._kind_error(saved, live, path)
        plain = not self._target.structure.rank0
        depths = self._objects, self._modules, self._optimizers
        for key, name, child in zip(saved.keys, names, saved.children, strict=True):
            inner = mine.get(name)
            try:
                if plain and isinstance(child, SavedArray) and isinstance(inner, ArrayLeaf):
                    self._array(child.index, inner, (*path, key))
                elif inner is None:
                    check_created(child, (*path, key))
                elif fixed or not both_plain(child, inner, self._target.values):
                    self.node(child, inner, (*path, key), fixed=fixed)
            except (StructureMismatchError, LeafMismatchError) as error:
                self.refused.append(error.with_traceback(None))
                (self._objects, self._modules, self._optimizers), self._replaced = depths, False

    def _check_shared(self, saved: Any, container: Any, path: Path) -> None:
        """A container or object that stands at two places of the live state can hold only one thing.

        What an object's state_dict() gave is not looked at: it is copied before it is filled.
        """
        if self._objects or isinstance(container, tuple):
            return
        first = self._seen.setdefault(id(container), saved)
        if first is not saved and not self._same_values(first, saved):
            raise StructureMismatchError(
                f"one live {type(container).__name__} stands at several places, but the checkpoint holds different "
                "contents for them",
                found=f"the {type(container).__name__} at {readable(path)} is also somewhere before it",
                where=f"path {readable(path)}",
                todo="give each place of the live state a container of its own",
            )

    def _check_run(self, live: Any, saved: Any, path: Path) -> None:
        """Like :meth:`_check_shared`, for all live containers in a run."""
        if self._objects:
            return
        pairs = list(places(live, saved))
        contents = {id(container): content for container, content in pairs}
        if len(contents) == len(pairs) and contents.keys().isdisjoint(self._seen):
            self._seen.update(contents)
            return
        for container, content in pairs:
            self._check_shared(content, container, path)

    def _same_values(self, one: Any, other: Any) -> bool:
        """True if two saved trees, or containers within runs, hold the same keys and values (arrays: check_ties)."""
        if isinstance(one, SavedBranch) and isinstance(other, SavedBranch):
            mine = dict(zip(id_keys(one.keys), one.children, strict=True))
            theirs = dict(zip(id_keys(other.keys), other.children, strict=True))
            return mine.keys() == theirs.keys() and all(self._same_values(mine[key], theirs[key]) for key in mine)
        if isinstance(one, SavedArray) and isinstance(other, SavedArray):
            # Where there is something live to fill, check_ties looks; what is created has one of them at both places.
            return one.index in self._target.live or place_of(self._target, one.index) == place_of(
                self._target, other.index
            )
        if isinstance(one, SavedArray) or isinstance(other, SavedArray):
            return False
        a, b = (self._contents(one), self._contents(other))
        return a is b or (a is not DROPPED and b is not DROPPED and same_leaf_value(a, b))

    def _contents(self, saved: Any) -> Any:
        """The content of a saved tree of values; DROPPED if it has anything else, or if a value is not restored."""
        if isinstance(saved, SavedValue):
            return self._target.values[saved.index]
        if not isinstance(saved, SavedBranch):
            return DROPPED if isinstance(saved, (SavedArray, SavedApart)) else saved
        items = [self._contents(child) for child in saved.children]
        if saved.kind not in RUN_KINDS or any(item is DROPPED for item in items):
            return DROPPED
        return make_run(saved.kind, saved.keys, items)

    def _kind_error(self, saved: SavedNode, live: Node, path: Path) -> StateError:
        leaves = (SavedArray, SavedValue, ArrayLeaf, ShardedLeaf, ValueLeaf)
        kind = LeafMismatchError if isinstance(saved, leaves) and isinstance(live, leaves) else StructureMismatchError
        value = self._target.values[saved.index] if isinstance(saved, SavedValue) else None
        name = (
            f", the state of {saved.name}"
            if isinstance(saved, SavedBranch) and saved.kind == "object" and saved.form is None
            else ""
        )
        expected, found = (
            describe_node(saved, value),
            describe_node(live, live.value if isinstance(live, ValueLeaf) else None),
        )
        if expected == found:  # lists of one length, for instance, of small values here and of arrays there
            expected, found = expected + first_inside(saved), found + first_inside(live)
        return kind(
            f"the live state differs from the checkpoint at {readable(path)}",
            expected=f"{expected}{name} (checkpoint)",
            found=f"{found} (live)",
            where=f"path {readable(path)}",
            todo="build the state as it was when it was saved",
        )


def _same_kind(saved: str, live: str) -> bool:
    return saved == live or (saved in DICTS and live in DICTS)


def _lacking_error(saved: list[Any], lacking: list[Any], path: Path) -> StructureMismatchError:
    if path:
        expected = f"keys {some(saved)} (checkpoint)" if saved else "no keys there (checkpoint)"
    else:  # those that the live state has no place for have been left out before
        expected = f"of the outermost keys here only {some(saved)}" if saved else "none of the outermost keys here"
        expected += " (checkpoint)"
    return StructureMismatchError(
        f"the live state has leaves that the checkpoint lacks: {readable((*path, lacking[0]))}",
        expected=expected,
        found=f"also {some(lacking)} (live)",
        where=f"path {readable(path)}",
        todo="remove them from the state given to restore, or restore a checkpoint that has them; strict=False leaves "
        "them as they are, which in a new model is random",
    )
