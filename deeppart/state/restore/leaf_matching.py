"""Matches every saved leaf with a live one, before a restore changes anything.

Live tensors and arrays are written in place. What the live state lacks is created: keys of dicts, items of lists,
arrays where it has None (or a number, for one element), and state of an optimizer that has not stepped. A live leaf
that the checkpoint lacks, or that has another kind, shape or dtype, is an error that names the path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch

from deeppart._gc import collection_paused
from deeppart.errors import LeafMismatchError, StateError, StructureMismatchError
from deeppart.state.objects import is_optimizer, replaces
from deeppart.state.paths import Path, exact, id_keys, name_kind, readable, some_names
from deeppart.state.restore.classes import resolve
from deeppart.state.restore.composites import (
    check_created,
    check_unmade,
    check_values,
    is_composite,
    is_dropped,
    match_rebuilt,
)
from deeppart.state.restore.filling import places, same_where_fixed
from deeppart.state.restore.request import bare_name
from deeppart.state.restore.target import (
    DROPPED,
    Target,
    is_cut,
    is_lacking,
    meet,
    place_of,
    same_form,
    same_mutable,
)
from deeppart.state.tensors import (
    SUBCLASS,
    TORCH_DTYPES,
    Array,
    LeafType,
    has_type,
    is_sharded,
    leaf_type,
)
from deeppart.state.tree import (
    DICTS,
    Alias,
    ArrayLeaf,
    Branch,
    FlatState,
    Node,
    RankLocal,
    ShardedLeaf,
    UnmadeLeaf,
    ValueLeaf,
    container_kind,
    contiguous_strides,
    describe_leaf_value,
    find_aliases,
    walk_tree,
)
from deeppart.state.values import MUTABLE, same_value

_SHAPED_IN_TRAINING = (
    "; where a module gives its buffers their shapes in training, train a step before restore, or give what "
    "deeppart.load gives to its load_state_dict()"
)
_OF_ANOTHER_TYPE = "; a module can be converted once it is restored, module.to(dtype)"
#: Names of the tensors that torch's optimizers keep for each element of a parameter.
_OF_ELEMENTS = frozenset(
    "acc_delta ax exp_avg exp_avg_sq exp_inf grad_avg max_exp_avg_sq momentum_buffer prev square_avg sum".split()
)
#: Leaves that do not match and are named in an error, at most.
MOST_NAMED = 10
#: A dtype with two numbers per byte, which torch cannot convert.
_PACKED = "float4"


def find_targets(target: Target, flat: FlatState) -> None:
    """Match the saved structure with the live state and fill in ``target.live``. Changes nothing live."""
    resolve(target, flat)
    for found in (target.removed, target.placeless, target.unreached, target.exchanged):
        found.clear()  # of an earlier match, before per-rank leaves of other ranks were mapped
    matching = _Matching(target, flat)
    with collection_paused():
        matching.node(target.structure.tree, flat.root, (), _At(fixed=True))
    if matching.refused:
        raise matching.refusal()
    target.untie_shards()
    check_ties(target, flat, matching.places)


class _At(NamedTuple):
    """What is around an item.

    Attributes:
        fixed: a changed value cannot be stored here, because all containers above are tuples, or are replaced.
        in_object, in_module, in_optimizer: it is inside the state_dict() of such an object.
        is_data: it is the state_dict() or the data of the object at its path.
        is_replaced: that object is replaced, so that its data are not filled.
    """

    fixed: bool = False
    in_object: bool = False
    in_module: bool = False
    in_optimizer: bool = False
    is_data: bool = False
    is_replaced: bool = False


class _Matching:
    """One walk over both trees.

    Attributes:
        places: number of a live leaf -> number of the saved leaf that is restored into it.
        refused: errors of items that do not match: the walk continues, so that all of them are named.
    """

    def __init__(self, target: Target, flat: FlatState) -> None:
        self._target, self._flat = target, flat
        self.places: dict[int, int] = {}
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

    def node(self, saved: Node, live: Node, path: Path, at: _At) -> None:
        """Match an item."""
        if isinstance(saved, RankLocal):
            return
        if self._target.structure.rank0 and not at.fixed and exact(path) in self._target.structure.rank0:
            self._rank0(saved, live, path, at)
        else:
            self._node(saved, live, path, at)

    def _rank0(self, saved: Node, live: Node, path: Path, at: _At) -> None:
        """Match an item of rank 0's; if it has another structure than here, it replaces the live item."""
        before = dict(self._target.live), dict(self._target.casts), dict(self.places), dict(self._seen)
        removed = len(self._target.removed)
        others, self.refused = self.refused, []
        try:
            self._node(saved, live, path, at)
            if self.refused:
                raise self.refusal()
        except (StructureMismatchError, LeafMismatchError):
            check_created(saved, path)
            if isinstance(live, Branch) and live.kind == "object":
                raise
            self._target.live, self._target.casts, self.places, self._seen = before
            del self._target.removed[removed:]
            self._target.replaced.add(exact(path))
        finally:
            self.refused = others

    def _node(self, saved: Node, live: Node, path: Path, at: _At) -> None:
        if isinstance(saved, ArrayLeaf) and isinstance(live, UnmadeLeaf):
            check_unmade(saved, live, self._target, path, movable=not (at.fixed or at.in_object))
            return
        if is_lacking(saved, live, self._target.structure.types) and not at.fixed:
            check_created(saved, path)
            return
        saved, live = meet(saved, live, self._target.values)
        if is_composite(saved) or is_composite(live):
            self._composite(saved, live, path, at, movable=not (at.fixed or at.in_module))
        elif isinstance(saved, Branch):
            if not isinstance(live, Branch) or not _same_kind(saved.kind, live.kind) or not same_form(saved, live):
                raise self._kind_error(saved, live, path)
            self._branch(saved, live, path, at)
        elif isinstance(saved, ArrayLeaf):
            if isinstance(live, ShardedLeaf):
                self._sharded(saved, live, path)
                return
            if not isinstance(live, ArrayLeaf):
                raise self._kind_error(saved, live, path)
            self._array(saved.index, live, path, at)
        elif isinstance(saved, ValueLeaf) and self._target.values[saved.index] is not DROPPED:
            self._value(saved, live, path, at)

    def _value(self, saved: ValueLeaf, live: Node, path: Path, at: _At) -> None:
        value = self._target.values[saved.index]
        if not isinstance(live, ValueLeaf):
            raise self._kind_error(saved, live, path)
        kind, mine = container_kind(value), container_kind(live.value)
        if live.value is not None and ((kind is None) != (mine is None) or not same_mutable(value, live.value)):
            raise self._kind_error(saved, live, path)
        if kind is not None and mine is not None:
            if not _same_kind(kind, mine) or (kind == "tuple" and len(value) != len(live.value)):
                raise self._kind_error(saved, live, path)
            self._check_container(live.value, value, path, at)
        if type(live.value) in MUTABLE:
            self._check_shared(value, live.value, path, at)
            return
        if at.fixed and (kind in (None, "tuple") or mine is None):
            self._check_fixed(value, live, path)

    def _check_fixed(self, saved: Any, live: ValueLeaf, path: Path) -> None:
        if not same_where_fixed(live.value, saved):
            raise StructureMismatchError(
                "restore cannot replace a value whose containers are all tuples",
                found=f"{describe_leaf_value(live.value)} here, {describe_leaf_value(saved)} in the checkpoint",
                where=f"path {readable(path)}",
                todo="put the state into a dict or list",
            )

    def _array(self, index: int, live: ArrayLeaf, path: Path, at: _At) -> None:
        if index in self._target.dropped:
            return
        data = self._flat.data[live.index]
        expected = self._target.types[index]
        if not has_type(data, expected):
            found = leaf_type(data)
            if self._target.may_cast and not live.inside and can_cast(expected, found):
                self._target.casts[index] = [data]
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
                + (more if at.in_object else ""),
            )
        self._target.live[index] = data
        self.places[live.index] = index

    def _composite(self, saved: Node, live: Node, path: Path, at: _At, *, movable: bool) -> None:
        """Match a composite tensor; a new one can replace it if it is ``movable``."""
        if not isinstance(saved, Branch) or not isinstance(live, Branch):
            raise self._kind_error(saved, live, path)
        if (saved.kind, saved.name, list(saved.keys)) != (live.kind, live.name, list(live.keys)):
            raise self._kind_error(saved, live, path)
        if saved.kind != SUBCLASS:
            self.places |= match_rebuilt(saved, live, self._target, self._flat, path, movable=movable)
            return
        if is_dropped(saved, self._target):
            return
        check_values(saved, live, self._target, path)
        for key, child, inner in zip(saved.keys, saved.children, live.children, strict=True):
            if isinstance(child, ArrayLeaf) and isinstance(inner, ArrayLeaf):
                self._array(child.index, inner, (*path, key), at)
            elif not isinstance(child, ValueLeaf):
                self._composite(child, inner, (*path, key), at, movable=False)

    def _sharded(self, saved: ArrayLeaf, live: ShardedLeaf, path: Path) -> None:
        """Match a live sharded tensor with a leaf of the same type of which all ranks had equal replicas."""
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
            self._target.casts[saved.index] = [self._flat.data[number] for number in live.numbers]
        elif expected != live.kind:
            raise LeafMismatchError(
                f"a leaf differs between the checkpoint and the live state: {readable(path)}",
                expected=f"{expected} (checkpoint)",
                found=f"{live.kind}, of which this rank has {len(live.boxes)} shards (live)",
                where=f"path {readable(path)}",
                todo="build the state as it was when it was saved, or convert what deeppart.load gives",
            )
        self._target.sharded[saved.index] = live

    def _branch(self, saved: Branch, live: Branch, path: Path, at: _At) -> None:
        is_replaced = live.form is not None and replaces(live.container, live.form)
        fixed = at.fixed and (at.is_replaced or is_replaced or saved.kind in ("tuple", "namedtuple"))
        if not is_replaced and live.kind not in ("tuple", "namedtuple"):
            self._check_shared(saved, live.container, path, at)
        if saved.form is not None:
            inside = at._replace(fixed=fixed, is_data=True, is_replaced=is_replaced)
            self.node(saved.children[0], live.children[0], path, inside)
            return
        if saved.kind == "object":
            item, of_optimizer = live.container, is_optimizer(live.container)
            if of_optimizer and saved.name and _class_name(saved) not in _goes_by(item):
                exchanged = f"{_class_name(saved)} in the checkpoint, {type(item).__name__} here"
                self._target.exchanged.append(f"{readable(path)}: {exchanged}")
            check_object(saved, live, self._target, path)
            in_module = at.in_module or isinstance(item, torch.nn.Module)
            inside = _At(False, True, in_module, at.in_optimizer or of_optimizer, is_data=True)
            self.node(saved.children[0], live.children[0], path, inside)
            return
        if not at.in_object and _is_unreached(saved, live, self._target.values):
            self._target.unreached.append(path)
        mine = live.by_key()
        names = id_keys(saved.keys)
        theirs = set(names)
        lacking = [key for key, name in zip(live.keys, mine, strict=True) if name not in theirs]
        is_record = not path or at.is_data or at.in_optimizer
        if lacking and not is_cut(saved, live, is_record=is_record):
            raise _lacking_error(list(saved.keys), lacking, path)
        if live.kind in ("dict", "odict"):
            self._target.removed += [(*path, key) for key in lacking]
        if saved.kind in ("tuple", "namedtuple") and len(mine) != len(theirs):
            raise self._kind_error(saved, live, path)
        plain = not self._target.structure.rank0
        below = at._replace(fixed=fixed, is_data=False, is_replaced=False)
        for key, name, child in zip(saved.keys, names, saved.children, strict=True):
            inner = mine.get(name)
            try:
                if plain and isinstance(child, ArrayLeaf) and isinstance(inner, ArrayLeaf):
                    self._array(child.index, inner, (*path, key), below)
                elif inner is None:
                    check_created(child, (*path, key))
                    if isinstance(child, Branch) and child.is_object and not at.in_object and saved.kind in DICTS:
                        self._target.placeless.append(f"{readable((*path, key))} ({_class_name(child)})")
                else:
                    self.node(child, inner, (*path, key), below)
            except (StructureMismatchError, LeafMismatchError) as error:
                self.refused.append(error.with_traceback(None))

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
        if at.in_object:
            return
        pairs = list(places(live, saved))
        contents = {id(container): content for container, content in pairs}
        if len(contents) == len(pairs) and contents.keys().isdisjoint(self._seen):
            self._seen.update(contents)
            return
        for container, content in pairs:
            self._check_shared(content, container, path, at)

    def _same_values(self, one: Any, other: Any) -> bool:
        """True if two saved trees or containers have the same keys and values."""
        if isinstance(one, Branch) and isinstance(other, Branch):
            mine, theirs = one.by_key(), other.by_key()
            return mine.keys() == theirs.keys() and all(self._same_values(mine[key], theirs[key]) for key in mine)
        if isinstance(one, ArrayLeaf) and isinstance(other, ArrayLeaf):
            # Live leaves are compared when they are filled; a created one is the same at both paths.
            places = (place_of(self._target, each.index) for each in (one, other))
            return one.index in self._target.live or len(set(places)) == 1
        return same_value(_plain(one, self._content), _plain(other, self._content))

    def _content(self, leaf: ValueLeaf) -> Any:
        value = self._target.values[leaf.index]
        return ("stays",) if value is DROPPED else value

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


def _same_kind(saved: str, live: str) -> bool:
    return saved == live or (saved in DICTS and live in DICTS)


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


# --- modules and optimizers -------------------------------------------------------------------------------------------


def check_object(saved: Branch, live: Branch, target: Target, path: Path) -> None:
    """Refuse keys that a module lacks, or other parameter groups than an optimizer has, before anything is changed."""
    values = target.values
    inner_saved, inner_live = saved.children[0], live.children[0]
    if not isinstance(inner_saved, Branch) or not isinstance(inner_live, Branch):
        return
    if isinstance(live.container, torch.nn.Module):
        theirs, mine = set(inner_saved.keys), set(inner_live.keys)
        extra = [key for key in inner_saved.keys if key not in mine]
        lacking = [key for key in inner_live.keys if key not in theirs]
        if extra:
            kind = type(live.container).__name__
            raise StructureMismatchError(
                f"the checkpoint has leaves that the live module lacks: {readable((*path, extra[0]))}",
                expected=f"keys {some(lacking)} (live {kind})"
                if lacking
                else f"no other keys than those of the {kind}",
                found=f"also {some(extra)} (checkpoint)",
                where=f"path {readable(path)}",
                todo="build the module as it was when it was saved; rename= if only names have changed; or leave them "
                f"out (strict=False{', which leaves what the checkpoint lacks at random values' if lacking else ''}); "
                'if ranks have parts of one model, such as pipeline stages, say so: replicated={"the/path/*": "parts"}',
            )
    if is_optimizer(live.container):
        if any(each.is_meta for group in live.container.param_groups for each in group["params"]):
            raise StructureMismatchError(
                f"an optimizer has parameters on the meta device, where its state would be lost: {readable(path)}",
                where=f"path {readable(path)}",
                todo="call module.to_empty(device=...) first, and build the optimizer over its parameters then",
            )
        if texts := [key for key in _state_keys(inner_saved) if isinstance(key, str) and key.isdecimal()]:
            raise StructureMismatchError(
                f"an optimizer's state was saved with texts as parameter numbers: {readable(path)}",
                expected="numbers, as the live optimizer has them",
                found=some(texts),
                where=f"path {readable(path)}",
                todo="DCP makes texts of them: import that checkpoint again, or give what deeppart.load gives, with "
                "numbers, to its load_state_dict()",
            )
        groups = [
            _groups(inner_saved, lambda leaf: values[leaf.index]),
            _groups(inner_live, lambda leaf: leaf.value),
        ]
        shapes = [[len(_sequence(group, "params")) for group in each] for each in groups]
        if shapes[0] != shapes[1]:
            raise StructureMismatchError(
                f"an optimizer has other parameter groups than in the checkpoint: {readable(path)}",
                expected=f"parameters per group {shapes[0]} (checkpoint)",
                found=f"{shapes[1]} (live)",
                where=f"path {readable(path)}",
                todo="build the optimizer over the same parameters, in the same groups",
            )
        # torch only uses the numbers of the parameters, and would give one parameter the state of another.
        names = [chain.from_iterable(_sequence(group, "param_names") for group in each) for each in groups]
        pairs = [pair for pair in zip(*names, strict=False) if all(isinstance(name, str) for name in pair)]
        if differing := [pair for pair in pairs if bare_name(pair[0]) != bare_name(pair[1])]:
            raise StructureMismatchError(
                f"an optimizer has other parameters than in the checkpoint, or in another order: {readable(path)}",
                expected=f"{some([theirs for theirs, _ in differing])} (checkpoint)",
                found=f"{some([mine for _, mine in differing])} (live)",
                where=f"path {readable(path)}",
                todo="give the optimizer named_parameters() in the order in which they were saved; or, if only the "
                "names have changed, parameters()",
            )
        if type(live.container).__module__.startswith("torch.optim."):  # others may keep them in other shapes
            _check_moments(inner_saved, live.container, target.types, path)


def _check_moments(saved: Branch, optimizer: Any, types: Sequence[LeafType], path: Path) -> None:
    """What an optimizer keeps for each element of a parameter has the shape of the one that gets it by its number."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    state = saved.by_key().get("state")
    for number, moments in zip(state.keys, state.children, strict=True) if isinstance(state, Branch) else ():
        if type(number) is not int or not 0 <= number < len(parameters) or not isinstance(moments, Branch):
            continue
        for name, leaf in zip(moments.keys, moments.children, strict=True):
            shape = types[leaf.index].shape if name in _OF_ELEMENTS and isinstance(leaf, ArrayLeaf) else None
            if shape is not None and shape != tuple(parameters[number].shape):
                raise StructureMismatchError(
                    f"an optimizer has other parameters than in the checkpoint, or in another order: {readable(path)}",
                    expected=f"shape {list(shape)} of parameter {number}, as its {name} (checkpoint)",
                    found=f"shape {list(parameters[number].shape)} (live)",
                    where=f"path {readable((*path, 'state', number, name))}",
                    todo="give the optimizer the parameters in the order in which they were saved",
                )


def _state_keys(state_dict: Branch) -> Sequence[object]:
    """The keys of an optimizer's state, one for each parameter that has any."""
    state = state_dict.by_key().get("state")
    return state.keys if isinstance(state, Branch) else ()


def _groups(state_dict: Branch, value_of: Callable[[ValueLeaf], Any]) -> list[dict[Any, Any]]:
    """The parameter groups of an optimizer's state_dict."""
    groups = _plain(state_dict.by_key().get("param_groups"), value_of)
    return [group for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []


def _class_name(saved: Branch) -> str:
    return saved.name.rpartition(".")[2]


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


def _is_unreached(saved: Branch, live: Branch, values: Sequence[Any]) -> bool:
    """True if a dict is the result of an optimizer's ``state_dict()``, and not all that is restored reaches it.

    The dict is not the optimizer's. Their tensors are the same if it has stepped, but items created in the dict do not
    reach it, nor do settings such as the learning rate.
    """
    if live.kind not in DICTS or not set(saved.keys) == set(live.keys) == {"state", "param_groups"}:
        return False
    before, after = _state_keys(live), _state_keys(saved)
    if not after or all(type(key) is str for key in after):
        return False  # with names: from get_optimizer_state_dict, whose caller uses set_optimizer_state_dict
    groups = zip(_groups(saved, lambda leaf: values[leaf.index]), _groups(live, lambda leaf: leaf.value), strict=False)
    return not before or any(old[key] != new[key] for new, old in groups for key in old.keys() & new.keys())


def _sequence(group: dict[Any, Any], name: str) -> Sequence[Any]:
    """A list in a group; empty if there is none."""
    found = group.get(name)
    return found if isinstance(found, (list, tuple)) else ()


def _plain(node: Any, value_of: Callable[[ValueLeaf], Any]) -> Any:
    """Lists, dicts and small values of a tree, with None for its other leaves; a container of values is one already."""
    if isinstance(node, ValueLeaf):
        return value_of(node)
    if not isinstance(node, Branch):
        return None if isinstance(node, (ArrayLeaf, ShardedLeaf, RankLocal, UnmadeLeaf)) else node
    items = [_plain(child, value_of) for child in node.children]
    return items if node.kind in ("list", "tuple") else dict(zip(node.keys, items, strict=False))


def some(keys: Any) -> str:
    """The first keys, and how many there are."""
    return some_names(list(map(repr, keys)), most=MOST_NAMED)


# --- leaves that share memory -----------------------------------------------------------------------------------------


def check_ties(target: Target, flat: FlatState, places: dict[int, int]) -> None:
    """Find the live leaves that share memory as the saved ones did: they are filled once.

    Others that share memory are received separately, and compared, before they are filled. That is not possible for
    components of composite tensors, and for arrays of another dtype: these are refused.
    """
    found = [places.get(index) for index in range(len(flat.data))]
    saved_types = [None if saved is None or saved in target.casts else target.types[saved] for saved in found]
    types = [kind or leaf_type(data) for kind, data in zip(saved_types, flat.data, strict=True)]
    for index, alias in find_aliases(flat, types).items():
        saved, owner = places.get(index), places.get(alias.owner)
        if saved is None or owner is None:
            continue
        reads_alike = _reads_as(flat.data[index]) == _reads_as(flat.data[alias.owner])
        if reads_alike and _tied_alike(target, saved, owner, alias):
            # Under other names than the saved ones, it may be the saved owner that is an alias here.
            target.tied.add(saved if saved in target.structure.aliases else owner)
        elif saved not in target.live or owner not in target.live:
            raise StructureMismatchError(
                "leaves that share memory in the live state were saved as separate leaves, or shared it in another way",
                found=f"{readable(flat.arrays[index].path)} lies inside {readable(flat.arrays[alias.owner].path)}",
                where=f"path {readable(flat.arrays[index].path)}",
                todo="untie them in the live state, or remove one of them from the state given to restore",
            )


def _reads_as(data: Array) -> tuple[bool, bool]:
    """Whether a leaf is its memory conjugated, and negated (``z.conj()``, ``z.conj().imag``)."""
    return (data.is_conj(), data.is_neg()) if isinstance(data, torch.Tensor) else (False, False)


def _tied_alike(target: Target, saved: int, owner: int, live: Alias) -> bool:
    """True if saved leaf ``saved`` is the same view of saved leaf ``owner`` as ``live`` is of the live owner."""
    one, other = place_of(target, saved), place_of(target, owner)
    shape = target.types[owner].shape
    if one.owner != other.owner or _steps(shape, other.strides) != _steps(shape, contiguous_strides(shape)):
        return False
    shape = target.types[saved].shape
    return one.offset - other.offset == live.offset and _steps(shape, one.strides) == _steps(shape, live.strides)


def _steps(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of dimensions with more than one element; others have no meaning."""
    return tuple(stride for length, stride in zip(shape, strides, strict=True) if length > 1)


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


# --- sharded tensors that the live state lacks ------------------------------------------------------------------------


def create_sharded(target: Target, flat: FlatState, sharded: frozenset[int]) -> None:
    """Create the state that is missing for sharded parameters, split as these are, in ``target.created``.

    Refuses other sharded leaves that the live state lacks: how they are split is unknown. All that is not sharded is
    created by :meth:`Target.array`.
    """
    if not flat.sharded:
        return
    optimizers = dict(_optimizers(flat.root, ()))
    for path, node in walk_tree(target.structure.tree, ()):
        if not isinstance(node, ArrayLeaf) or _has_place(target, node.index):
            continue
        like, kind = _parameter(path, optimizers), target.types[node.index]
        if like is not None and is_sharded(like) and tuple(like.shape) == kind.shape and kind.kind == "torch":
            with torch.no_grad():
                target.created[node.index] = torch.empty_like(like.detach(), dtype=TORCH_DTYPES[kind.dtype])
        elif node.index in sharded and (like is None or is_sharded(like)):  # otherwise it is created like any leaf
            raise StructureMismatchError(
                "the live state lacks a sharded tensor of the checkpoint, and it is not known how to split it",
                expected=f"{kind} (checkpoint)",
                where=f"path {readable(path)}",
                todo="give restore() a state that has it: of an optimizer, what get_optimizer_state_dict returns",
            )


def _has_place(target: Target, index: int) -> bool:
    return (
        index in target.live
        or index in target.casts
        or index in target.sharded
        or index in target.dropped
        or index in target.structure.aliases
        or bool(target.structure.per_rank[index])
    )


def _optimizers(node: Node, path: Path) -> Iterator[tuple[Path, list[Any]]]:
    """The path of each live optimizer, and its parameters in the order of their numbers."""
    if not isinstance(node, Branch):
        return
    if is_optimizer(node.container):
        yield path, [each for group in node.container.param_groups for each in group["params"]]
        return
    if node.kind == "object":
        yield from _optimizers(node.children[0], path)
        return
    for key, child in zip(node.keys, node.children, strict=True):
        yield from _optimizers(child, (*path, key))


def _parameter(path: Path, optimizers: dict[Path, list[Any]]) -> Any:
    """The parameter of a leaf at ``.../state/NUMBER/NAME`` of an optimizer; None for other paths."""
    parameters = optimizers.get(path[:-3], []) if len(path) >= 3 and path[-3] == "state" else []
    number = path[-2] if parameters else None
    return parameters[number] if type(number) is int and 0 <= number < len(parameters) else None
