"""Pairs every saved item with a live one, before a restore changes anything.

Live tensors and arrays are written in place. What the live state lacks is created: keys of dicts, items of lists,
arrays where it has None (or a number, for one element), and state of an optimizer that has not stepped. A live leaf
that the checkpoint lacks, or that has another kind, shape or dtype, is an error that names the path.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from deeppart._gc import collection_paused
from deeppart.errors import LeafMismatchError, StateError, StructureMismatchError
from deeppart.state.objects import is_optimizer, replaces
from deeppart.state.paths import Key, Path, exact, id_keys, name_kind, readable, some_names
from deeppart.state.restore.classes import resolve
from deeppart.state.restore.composites import check_unmade, check_values, is_composite, is_dropped, match_rebuilt
from deeppart.state.restore.filling import filled_containers, same_where_fixed
from deeppart.state.restore.optimizers import (
    MOST_NAMED,
    Parameters,
    check_module,
    check_optimizer,
    class_name_of,
    goes_by,
    is_unreached,
    plain,
    some,
)
from deeppart.state.restore.scatter import LiveBox
from deeppart.state.restore.sharing import check_ties
from deeppart.state.restore.target import (
    DROPPED,
    OR_CONVERT,
    Pair,
    Place,
    Target,
    is_cut,
    is_lacking,
    leaf_differs,
    meet,
    place_of,
    same_form,
    same_kind,
    same_mutable,
)
from deeppart.state.tensors import SUBCLASS, TORCH_DTYPES, LeafType, has_type, is_sharded, leaf_type, read_shards
from deeppart.state.tree import (
    DICTS,
    ArrayLeaf,
    Branch,
    FlatState,
    Node,
    RankLocal,
    ShardedLeaf,
    UnmadeLeaf,
    ValueLeaf,
    container_kind,
    describe_leaf_value,
    every_node,
)
from deeppart.state.values import MUTABLE, same_value

_SHAPED_IN_TRAINING = (
    "; where a module gives its buffers their shapes in training, train a step before restore, or give what "
    "deeppart.load gives to its load_state_dict()"
)
_OF_ANOTHER_TYPE = "; a module can be converted once it is restored, module.to(dtype)"
#: A dtype with two numbers per byte, which torch cannot convert.
_PACKED = "float4"


def find_targets(target: Target, flat: FlatState) -> None:
    """Pair the saved structure with the live state, in ``target.root`` and ``target.places``. Changes nothing live."""
    resolve(target, flat)
    for found in (target.removed, target.placeless, target.unreached, target.exchanged, target.places, target.tied):
        found.clear()  # of an earlier match, before per-rank leaves of other ranks were mapped
    pairing = _Pairing(target, flat)
    with collection_paused():
        target.root = pairing.pair(target.structure.tree, flat.root, (), _At(fixed=True))
    if pairing.refused:
        raise pairing.refusal()
    target.untie_shards()
    check_ties(target, flat, pairing.sources)


class _At(NamedTuple):
    """What is around an item.

    Attributes:
        fixed: a changed value cannot be stored here, because all containers above are tuples, or are replaced.
        in_object, in_module: it is inside the state_dict() of such an object.
        optimizer: the parameters of the live optimizer inside whose state it is.
        is_data: it is the state_dict() or the data of the object at its path.
        is_replaced: that object is replaced, so that its data are not filled.
    """

    fixed: bool = False
    in_object: bool = False
    in_module: bool = False
    optimizer: Parameters | None = None
    is_data: bool = False
    is_replaced: bool = False


class _Pairing:
    """One walk over both trees.

    Attributes:
        sources: number of a live leaf -> number of the saved leaf that is restored into it.
        refused: errors of items that do not match: the walk continues, so that all of them are named.
    """

    def __init__(self, target: Target, flat: FlatState) -> None:
        self._target, self._flat = target, flat
        self.sources: dict[int, int] = {}
        self.refused: list[StateError] = []
        #: id of a live container -> its saved counterpart: a tree, or a container within a saved value container.
        self._seen: dict[int, Any] = {}

    def refusal(self) -> StateError:
        """The first of :attr:`refused`, which names the others; they are dropped: an error keeps its frames alive."""
        first, names = self.refused[0], [str(each.where).removeprefix("path ") for each in self.refused]
        self.refused = []
        if len(names) > 1:
            first.where = f"paths {some_names(names, most=MOST_NAMED)}"
        return first

    def pair(self, saved: Node, live: Node, path: Path, at: _At) -> Pair:
        """Match an item with the live one at its path."""
        if isinstance(saved, RankLocal):
            return Pair(saved, live, path)
        if self._target.structure.rank0 and not at.fixed and exact(path) in self._target.structure.rank0:
            return self._rank0(saved, live, path, at)
        return self._pair(saved, live, path, at)

    def _rank0(self, saved: Node, live: Node, path: Path, at: _At) -> Pair:
        """Match an item of rank 0's; if it has another structure than here, it replaces the live item."""
        target = self._target
        before = dict(target.places), dict(self.sources), dict(self._seen)
        removed = len(target.removed)
        others, self.refused = self.refused, []
        try:
            pair = self._pair(saved, live, path, at)
            if self.refused:
                raise self.refusal()
            return pair
        except (StructureMismatchError, LeafMismatchError):
            if isinstance(live, Branch) and live.kind == "object":
                raise
            target.places, self.sources, self._seen = before
            del target.removed[removed:]
            return self._new(saved, live, path, at)
        finally:
            self.refused = others

    def _new(self, saved: Node, live: Node | None, path: Path, at: _At) -> Pair:
        """An item that is made, since the live state has nothing like it; unless only a tensor's own class could."""
        for inner, node in every_node(saved, path):
            if isinstance(node, ArrayLeaf) and self._flat.sharded:
                self._shard(node.index, inner, at)
            if isinstance(node, Branch) and node.kind == SUBCLASS:
                raise StructureMismatchError(
                    f"the live state lacks a {node.name} of the checkpoint, and it cannot be created",
                    expected="a live tensor of this class, whose components are filled",
                    where=f"path {readable(inner)}",
                    todo="make it before restore (of an optimizer: take a step), or make it from what deeppart.load "
                    "gives",
                )
        return Pair(saved, live, path, is_new=True)

    def _shard(self, index: int, path: Path, at: _At) -> None:
        """Make the state of a sharded parameter, split as this is. Other sharded leaves that the live state lacks are
        refused: how they are split is unknown. All that is not sharded is made when its bytes are received.
        """
        structure, kind = self._target.structure, self._target.types[index]
        if index in self._target.dropped or index in structure.aliases or structure.per_rank[index]:
            return
        like = at.optimizer.at(path) if at.optimizer is not None else None
        is_split = like is not None and is_sharded(like)
        if like is not None and is_split and tuple(like.shape) == kind.shape and kind.kind == "torch":
            with torch.no_grad():
                made = torch.empty_like(like.detach(), dtype=TORCH_DTYPES[kind.dtype])
            shards = read_shards(made, readable(path))
            boxes = [LiveBox(*each) for each in zip(shards.tensors, shards.boxes, strict=True)]
            self._target.places[index] = Place(made, kind, boxes, is_sharded=True)
        elif index in structure.divisions and (like is None or is_split):  # otherwise it is made like any leaf
            raise StructureMismatchError(
                "the live state lacks a sharded tensor of the checkpoint, and it is not known how to split it",
                expected=f"{kind} (checkpoint)",
                where=f"path {readable(path)}",
                todo="give restore() a state that has it: of an optimizer, what get_optimizer_state_dict returns",
            )

    def _pair(self, saved: Node, live: Node, path: Path, at: _At) -> Pair:
        if isinstance(saved, ArrayLeaf) and isinstance(live, UnmadeLeaf):
            check_unmade(saved, live, self._target, path, movable=not (at.fixed or at.in_object))
            return self._new(saved, live, path, at)
        if is_lacking(saved, live, self._target.structure.types) and not at.fixed:
            return self._new(saved, live, path, at)
        saved, live = meet(saved, live, self._target.values)
        if is_composite(saved) or is_composite(live):
            self._composite(saved, live, path, at, movable=not (at.fixed or at.in_module))
        elif isinstance(saved, Branch):
            if not isinstance(live, Branch) or not same_kind(saved.kind, live.kind) or not same_form(saved, live):
                raise self._kind_error(saved, live, path)
            return Pair(saved, live, path, self._items(saved, live, path, at))
        elif isinstance(saved, ValueLeaf):
            self._value(saved, live, path, at)
        elif isinstance(saved, ArrayLeaf):
            if not isinstance(live, (ArrayLeaf, ShardedLeaf)):
                raise self._kind_error(saved, live, path)
            self._leaf(saved.index, live, path, at)
        return Pair(saved, live, path)

    def _value(self, saved: ValueLeaf, live: Node, path: Path, at: _At) -> None:
        value = self._target.values[saved.index]
        if value is DROPPED:
            return
        if not isinstance(live, ValueLeaf):
            raise self._kind_error(saved, live, path)
        kind, mine = container_kind(value), container_kind(live.value)
        if live.value is not None and ((kind is None) != (mine is None) or not same_mutable(value, live.value)):
            raise self._kind_error(saved, live, path)
        if kind is not None and mine is not None:
            if not same_kind(kind, mine) or (kind == "tuple" and len(value) != len(live.value)):
                raise self._kind_error(saved, live, path)
            self._check_container(live.value, value, path, at)
        if type(live.value) in MUTABLE:
            self._check_shared(value, live.value, path, at)
        elif at.fixed and (kind in (None, "tuple") or mine is None) and not same_where_fixed(live.value, value):
            raise StructureMismatchError(
                "restore cannot replace a value whose containers are all tuples",
                found=f"{describe_leaf_value(live.value)} here, {describe_leaf_value(value)} in the checkpoint",
                where=f"path {readable(path)}",
                todo="put the state into a dict or list",
            )

    def _leaf(self, index: int, live: ArrayLeaf | ShardedLeaf, path: Path, at: _At) -> None:
        """Match a leaf with a live tensor or array of the same type; with a sharded one, if all ranks had one leaf."""
        target = self._target
        expected = target.types[index]
        if isinstance(live, ShardedLeaf):
            if target.structure.per_rank[index]:
                raise LeafMismatchError(
                    f"the live state has shards of a leaf that each rank had saved for itself: {readable(path)}",
                    expected=f"{expected}, one for each rank (checkpoint)",
                    found=f"a {type(live.item).__name__} of {live.kind} (live)",
                    where=f"path {readable(path)}",
                    todo="build the state as it was when it was saved",
                )
            shards = [self._flat.data[number] for number in live.numbers]
            boxes = [LiveBox(*each) for each in zip(shards, live.boxes, strict=True)]
            place = Place(live.item, live.kind, boxes, is_sharded=True)
        else:
            data = self._flat.data[live.index]
            place = Place(data, expected if has_type(data, expected) else leaf_type(data), [LiveBox.whole(data)])
        if index in target.dropped:
            return
        if place.kind is not expected and place.kind != expected:
            inside = isinstance(live, ArrayLeaf) and live.inside
            if inside or not target.may_cast or not can_cast(expected, place.kind):
                raise self._type_error(expected, place, path, at)
        target.places[index] = place
        if isinstance(live, ArrayLeaf):
            self.sources[live.index] = index

    def _type_error(self, expected: LeafType, place: Place, path: Path, at: _At) -> LeafMismatchError:
        found = place.kind
        more = _SHAPED_IN_TRAINING if expected.shape != found.shape else _OF_ANOTHER_TYPE
        castable = " (cast=True does it for this one)" if can_cast(expected, found) else ""
        todo = f"or leave what differs as it is (exclude={readable(path)!r}), {OR_CONVERT}{castable}"
        shards = f", of which this rank has {len(place.boxes)} shards" if place.is_sharded else ""
        return leaf_differs(path, expected, f"{found}{shards}", todo + (more if at.in_object else ""))

    def _composite(self, saved: Node, live: Node, path: Path, at: _At, *, movable: bool) -> None:
        """Match a composite tensor; a new one can replace it if it is ``movable``."""
        if not isinstance(saved, Branch) or not isinstance(live, Branch):
            raise self._kind_error(saved, live, path)
        if (saved.kind, saved.name, list(saved.keys)) != (live.kind, live.name, list(live.keys)):
            raise self._kind_error(saved, live, path)
        if saved.kind != SUBCLASS:
            self.sources |= match_rebuilt(saved, live, self._target, self._flat, path, movable=movable)
            return
        if is_dropped(saved, self._target):
            return
        check_values(saved, live, self._target, path)
        for key, child, inner in zip(saved.keys, saved.children, live.children, strict=True):
            if isinstance(child, ArrayLeaf) and isinstance(inner, ArrayLeaf):
                self._leaf(child.index, inner, (*path, key), at)
            elif not isinstance(child, ValueLeaf):
                self._composite(child, inner, (*path, key), at, movable=False)

    def _items(self, saved: Branch, live: Branch, path: Path, at: _At) -> list[tuple[Key, Pair]]:
        is_replaced = live.form is not None and replaces(live.container, live.form)
        fixed = at.fixed and (at.is_replaced or is_replaced or saved.kind in ("tuple", "namedtuple"))
        if not is_replaced and live.kind not in ("tuple", "namedtuple"):
            self._check_shared(saved, live.container, path, at)
        if saved.kind == "object":
            inside = at._replace(fixed=fixed, is_data=True, is_replaced=is_replaced)
            if saved.form is None:
                inside = self._in_object(saved, live, path, at)
            return [(None, self.pair(saved.children[0], live.children[0], path, inside))]
        if not at.in_object and is_unreached(saved, live, self._target.values):
            self._target.unreached.append(path)
        mine, names = live.by_key(), id_keys(saved.keys)
        lacking = live.keys_besides(names)
        is_record = not path or at.is_data or at.optimizer is not None
        if lacking and not is_cut(saved, live, is_record=is_record):
            raise _lacking_error(list(saved.keys), lacking, path)
        if live.kind in ("dict", "odict"):
            self._target.removed += [(*path, key) for key in lacking]
        if saved.kind in ("tuple", "namedtuple") and len(mine) != len(names):
            raise self._kind_error(saved, live, path)
        pairs: list[tuple[Key, Pair]] = []
        has_rank0 = bool(self._target.structure.rank0)
        below = at._replace(fixed=fixed, is_data=False, is_replaced=False)
        for key, name, child in zip(saved.keys, names, saved.children, strict=True):
            inner, place = mine.get(name), (*path, key)
            try:
                if isinstance(child, ArrayLeaf) and isinstance(inner, ArrayLeaf) and not has_rank0:  # the usual case
                    self._leaf(child.index, inner, place, below)
                    pairs.append((key, Pair(child, inner, place)))
                elif inner is not None:
                    pairs.append((key, self.pair(child, inner, place, below)))
                else:
                    pairs.append((key, self._new(child, None, place, below)))
                    if isinstance(child, Branch) and child.is_object and not at.in_object and saved.kind in DICTS:
                        self._target.placeless.append(f"{readable(place)} ({class_name_of(child)})")
            except (StructureMismatchError, LeafMismatchError) as error:
                self.refused.append(error.with_traceback(None))
        return pairs

    def _in_object(self, saved: Branch, live: Branch, path: Path, at: _At) -> _At:
        """What is around the state of an object with a ``state_dict()``, once it was checked."""
        item, (theirs,), (mine,) = live.container, saved.children, live.children
        is_module = isinstance(item, torch.nn.Module)
        if is_module and isinstance(theirs, Branch) and isinstance(mine, Branch):
            check_module(theirs, mine, type(item).__name__, path)
        optimizer = at.optimizer
        if is_optimizer(item):
            optimizer = Parameters.of(item, path)
            if saved.name and class_name_of(saved) not in goes_by(item):
                exchanged = f"{class_name_of(saved)} in the checkpoint, {type(item).__name__} here"
                self._target.exchanged.append(f"{readable(path)}: {exchanged}")
            if isinstance(theirs, Branch) and isinstance(mine, Branch):
                check_optimizer(theirs, mine, item, optimizer, self._target)
        return _At(False, True, at.in_module or is_module, optimizer, is_data=True)

    def _check_shared(self, saved: Any, container: Any, path: Path, at: _At) -> None:
        """Refuse different contents for a container or object that is at two paths of the live state.

        The result of an object's state_dict() is not checked: it is copied before it is filled.
        """
        if at.in_object or isinstance(container, tuple):
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

    def _check_container(self, live: Any, saved: Any, path: Path, at: _At) -> None:
        """Like :meth:`_check_shared`, for all live containers in a value container."""
        for container, content in () if at.in_object else filled_containers(live, saved):
            self._check_shared(content, container, path, at)

    def _same_values(self, one: Any, other: Any) -> bool:
        """True if two saved trees or containers have the same keys and values."""
        if isinstance(one, Branch) and isinstance(other, Branch):
            mine, theirs = one.by_key(), other.by_key()
            return mine.keys() == theirs.keys() and all(self._same_values(mine[key], theirs[key]) for key in mine)
        if isinstance(one, ArrayLeaf) and isinstance(other, ArrayLeaf):
            # Live leaves are compared when they are filled; a created one is the same at both paths.
            places = (place_of(self._target, each.index) for each in (one, other))
            return one.index in self._target.places or len(set(places)) == 1
        values = {number: ("stays",) if each is DROPPED else each for number, each in self._target.values.items()}
        return same_value(plain(one, values), plain(other, values))

    def _kind_error(self, saved: Node, live: Node, path: Path) -> StateError:
        leaves = (ArrayLeaf, ShardedLeaf, ValueLeaf)
        kind = LeafMismatchError if isinstance(saved, leaves) and isinstance(live, leaves) else StructureMismatchError
        value = self._target.values[saved.index] if isinstance(saved, ValueLeaf) else None
        name = f", the state of {saved.name}" if isinstance(saved, Branch) and saved.is_object else ""
        expected, found = (
            describe_node(saved, value),
            describe_node(live, live.value if isinstance(live, ValueLeaf) else None),
        )
        if expected == found:  # for instance lists of the same length, one of small values and one of arrays
            what = ", with tensors or objects", ", with small values alone"
            expected, found = expected + what[isinstance(saved, ValueLeaf)], found + what[isinstance(live, ValueLeaf)]
        return kind(
            f"the live state differs from the checkpoint at {readable(path)}",
            expected=f"{expected}{name} (checkpoint)",
            found=f"{found} (live)",
            where=f"path {readable(path)}",
            todo="build the state as it was when it was saved",
        )


def _lacking_error(saved: list[Any], lacking: list[Any], path: Path) -> StructureMismatchError:
    if path:
        expected = f"keys {some(saved)} (checkpoint)" if saved else "no keys there (checkpoint)"
    else:  # keys that the live state lacks have been left out before
        expected = f"of the outermost keys here only {some(saved)}" if saved else "none of the outermost keys here"
        expected += " (checkpoint)"
    return StructureMismatchError(
        f"the live state has leaves that the checkpoint lacks: {readable((*path, lacking[0]))}",
        expected=expected,
        found=f"also {some(lacking)} (live)",
        where=f"path {readable(path)}",
        todo=_of_other_parameters(saved, lacking, path)
        or "remove them from the state given to restore, or restore a checkpoint that has them; rename= if only names "
        "have changed; strict=False leaves them as they are, which in a new model is random",
    )


def _of_other_parameters(saved: list[Any], lacking: list[Any], path: Path) -> str | None:
    """What to do if the state of an optimizer has a name for each parameter here, and a number there, or nothing."""
    theirs, mine = set(map(type, saved)), set(map(type, lacking))
    if path[-1:] != ("state",):
        return None
    if (theirs, mine) == ({int}, {str}):
        return (
            "the checkpoint has the optimizer itself, whose state numbers the parameters, and the live state what "
            "get_optimizer_state_dict() gives, which names them: give restore() the optimizer itself. To change over, "
            "restore so once, and save what get_optimizer_state_dict() gives from then on"
        )
    if (theirs, mine) == ({str}, {int}):
        return (
            "the checkpoint has what get_optimizer_state_dict() gave, which names the parameters, and the live state "
            "an optimizer's own state, which numbers them: give restore() what get_optimizer_state_dict(model, "
            "optimizer) gives, and that to set_optimizer_state_dict() afterwards"
        )
    if (theirs, mine) == (set(), {int}):
        return "the optimizer had not stepped when it was saved, and the live one has: restore into one that is new"
    return None


# --- dtypes -----------------------------------------------------------------------------------------------------------


def can_cast(saved: LeafType, live: LeafType) -> bool:
    """True if both are floating-point, or both complex, with the same shape. Integers might not fit."""
    if saved.shape != live.shape or saved.kind != live.kind:
        return False
    if saved.kind == "numpy":
        kinds = np.dtype(saved.dtype).kind, np.dtype(live.dtype).kind
        return kinds in (("f", "f"), ("c", "c"))
    if saved.dtype.startswith(_PACKED) or live.dtype.startswith(_PACKED):
        return False
    one, other = TORCH_DTYPES[saved.dtype], TORCH_DTYPES[live.dtype]
    both_float = one.is_floating_point and other.is_floating_point
    return both_float or (one.is_complex and other.is_complex)


# --- descriptions for error messages ----------------------------------------------------------------------------------


def describe_node(node: Node, value: Any) -> str:
    """A short description of a node."""
    if isinstance(node, UnmadeLeaf):
        return f"{node.kind} on the meta device"
    if isinstance(node, Branch) and is_composite(node):
        return f"a {node.name}" if node.kind == SUBCLASS else f"a {node.kind} tensor"
    if isinstance(node, Branch):
        return f"{name_kind(node.kind)} of {len(node.children)}" if node.form is None else f"a {node.form}"
    if isinstance(node, ArrayLeaf):
        return "an array"
    if isinstance(node, ShardedLeaf):
        return f"a sharded tensor of {node.kind}"
    kind = container_kind(value)
    if kind is not None:
        return f"{name_kind(kind)} of {len(value)}"
    return "None" if value is None else f"a value of type {type(value).__name__}"
