"""Flattens a nested state into leaves, in an order that does not depend on the insertion order of dicts.

The walk copies nothing: its result refers to the live objects. The *tokens* that it collects describe structure,
dtypes, shapes, devices and memory order: with equal tokens, everything derived from the structure (classification,
plan, layout) is still valid.
"""

from __future__ import annotations

import json
import keyword
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch

from deeppart.errors import UnsupportedLeafError
from deeppart.model import Box
from deeppart.state.memory import Extents, HeldMemory, array_lacks_memory, freed_memory
from deeppart.state.objects import is_object, object_form, object_state, registered
from deeppart.state.paths import Key, Path, canonical_order, exact, readable
from deeppart.state.tensors import (
    PLAIN_TENSORS,
    LeafType,
    Parts,
    Shards,
    check_array,
    check_tensor,
    class_name,
    decompose,
    dtype_name,
    is_plain,
    is_sharded,
    read_shards,
)
from deeppart.state.tree.flat import (
    ARRAY,
    COMPOSITE,
    FORM,
    NUMPY,
    OBJECT,
    RANK_LOCAL,
    SHARDED,
    VALUE,
    FlatState,
    RankLocalRules,
)
from deeppart.state.tree.nodes import DICT_KINDS, ArrayLeaf, Branch, Node, RankLocal, ShardedLeaf, UnmadeLeaf, ValueLeaf
from deeppart.state.tree.value_containers import container_levels
from deeppart.state.values import encode_key, encode_value, is_value

#: Levels of nested containers, at most: JSON readers stop a little above twice that.
DEEPEST_NESTING = 200
#: Types of dict keys that are identical if they compare equal.
_SIMPLE_KEYS = frozenset({str, int, bool, bytes, type(None)})


def flatten(
    state: Any,
    *,
    live: bool = False,
    state_dicts: dict[int, Any] | None = None,
    cuts: RankLocalRules | None = None,
    may_ask: Callable[[Any], bool] = lambda item: True,
) -> FlatState:
    """Flatten a state; calls ``state_dict()`` exactly once on each object that has it."""
    walk = _Walk(live, state_dicts or {}, cuts, may_ask)
    try:
        walk.flat.root = walk.node(state, ())
        walk.finish()
    except RecursionError as error:  # the caller's stack is deep already
        raise _too_deep(()) from error
    walk.flat.extents = Extents(walk.flat.data)
    hold_memory(walk.flat, walk.flat.extents)
    return walk.flat


def hold_memory(flat: FlatState, extents: Extents) -> None:
    """Hold the memory of the leaves, check that it contains every element, and set the addresses."""
    flat.memory = HeldMemory(flat.data)
    flat.pointers = flat.memory.pointers
    needed = extents.of(flat.data)
    for leaf in flat.memory.lacking(needed):
        found = max(0, flat.memory.bases[leaf] + flat.memory.lengths[leaf] - flat.pointers[leaf])
        raise freed_memory(readable(flat.arrays[leaf].path), int(needed[leaf]), found)
    for leaf in flat.memory.arrays:
        lacking = array_lacks_memory(flat.data[leaf])
        if lacking is not None:
            raise freed_memory(readable(flat.arrays[leaf].path), *lacking)


class _Walk:
    def __init__(
        self, live: bool, state_dicts: dict[int, Any], cuts: RankLocalRules | None, may_ask: Callable[[Any], bool]
    ) -> None:
        self._live, self._may_ask = live, may_ask
        self._state_dicts = state_dicts
        self.flat = FlatState(root=ValueLeaf(0))
        self._open: set[int] = set()
        self._cuts = cuts
        self._excluded = None if cuts is None or not cuts.leaves_out else cuts.excluded
        self._later: list[tuple[RankLocal, Any, set[int]]] = []
        self._shards: list[tuple[ShardedLeaf, Shards]] = []
        self._in_rank0 = self._in_part = False

    def node(self, item: Any, path: Path) -> Node:
        rank_local = None if self._cuts is None else self._cut(self._cuts, path, item)
        if rank_local is not None:
            self.flat.tokens.append(RANK_LOCAL)
            return self._add_rank_local(rank_local, item)
        kind = type(item)
        if (kind is torch.Tensor or kind is torch.nn.Parameter) and not hasattr(item, "global_offsets"):
            return self._tensor(item, path)
        levels = container_levels(item)
        if levels and (self._cuts is None or self._cuts.may_be_value(path, levels)):
            return self._value(item, path)
        if kind in DICT_KINDS:
            return self._dict(item, path, DICT_KINDS[kind])
        if kind is list or kind is tuple:
            return self._items(item, path, range(len(item)), kind.__name__)
        if is_value(item):
            return self._value(item, path)
        if registered(kind) is not None:
            return self._object(item, path)
        if isinstance(item, torch.Tensor):
            return self._sharded(item, path) if is_sharded(item) else self._tensor(item, path)
        if isinstance(item, np.ndarray):
            return self._array(item, path)
        if isinstance(item, tuple) and hasattr(kind, "_fields") and hasattr(kind, "_make"):
            self._check_namedtuple(kind, path)
            self.flat.tokens += (kind.__name__, *kind._fields)
            return self._items(item, path, kind._fields, "namedtuple")
        if is_object(item):
            return self._object(item, path)
        encode_value(item, readable(path))  # raises the error that names path and type
        raise AssertionError("is_value and encode_value disagree")

    def finish(self) -> None:
        """Flatten the rank-local items: rank 0's, then this rank's."""
        flat = self.flat
        flat.shared, flat.shared_sharded = flat.sizes(), len(flat.sharded)
        leads = self._cuts is not None and self._cuts.leads
        self._cuts = None if self._cuts is None else RankLocalRules(splits=self._cuts.splits, excluded=self._excluded)
        for mine in (False, True):
            for rank_local, item, opened in self._later:
                if rank_local.mine is not mine:
                    continue
                flat.rank_local.append(rank_local)
                flat.tokens += (RANK_LOCAL, rank_local.path)
                if mine or leads:
                    self._open, self._in_rank0 = set(opened), not mine
                    self._in_part = rank_local.part
                    rank_local.node = self.node(item, rank_local.path)
            if not mine:
                flat.common = len(flat.arrays), len(flat.values)
        flat.before_shards = len(flat.arrays)
        for leaf, shards in self._shards:
            note_shards(flat, leaf, shards, live=self._live)

    def _cut(self, cuts: RankLocalRules, path: Path, item: Any) -> RankLocal | None:
        if cuts.mine and exact(path) in cuts.mine:
            return RankLocal(path, True, part=exact(path) in cuts.parts)
        if cuts.rank0 is None:
            return None
        inner = not (is_value(item) or container_levels(item) == 1 or isinstance(item, (torch.Tensor, np.ndarray)))
        return RankLocal(path, False) if cuts.rank0(path, inner) else None

    def _add_rank_local(self, rank_local: RankLocal, item: Any) -> RankLocal:
        self._later.append((rank_local, item, set(self._open)))
        return rank_local

    def _tensor(self, tensor: torch.Tensor, path: Path, inside: int = 0) -> Node:
        """``inside``: how many of the path's last keys are within a tensor of which this is a component."""
        if not is_plain(tensor):
            if self._live and not inside and type(tensor) in PLAIN_TENSORS and tensor.is_meta:
                kind = LeafType("torch", dtype_name(tensor.dtype, readable(path)), tuple(tensor.shape))
                self.flat.unmade.append(UnmadeLeaf(path, kind, tensor))
                return self.flat.unmade[-1]
            parts = decompose(tensor, readable(path))
            if parts is not None:
                return self._composite(tensor, parts, path, inside + 1)
            check_tensor(tensor, readable(path))
        if self._in_part and not inside:
            return self._unsharded(tensor, path)
        leaf = self._leaf(noted(self.flat, tensor, live=self._live), path)
        leaf.inside = inside
        return leaf

    def _composite(self, tensor: torch.Tensor, parts: Parts, path: Path, inside: int) -> Branch:
        """A tensor made of component tensors. It is never divided: all of it is shared, or none."""
        keys = list(parts.items)
        self.flat.tokens += (COMPOSITE, parts.kind, parts.name, len(keys), *keys)
        self._enter(tensor, path)
        children: list[Node] = []
        for key, item in parts.items.items():
            if isinstance(item, torch.Tensor):
                children.append(self._tensor(item, (*path, key), inside))
            else:
                children.append(self._value(item, (*path, key)))
                self.flat.values[-1].inside = inside
        self._open.discard(id(tensor))
        return Branch(parts.kind, keys, children, parts.name, container=tensor, path=path)

    def _array(self, found: np.ndarray[Any, Any], path: Path) -> ArrayLeaf:
        note_array(self.flat, found, path)
        return self._leaf(found, path)

    def _unsharded(self, tensor: torch.Tensor, path: Path) -> ShardedLeaf:
        """A tensor that some ranks have, each of them in full."""
        boxes = (Box.whole(tuple(tensor.shape)),) if tensor.numel() else ()
        return self._note_sharded(
            tensor, Shards(tensor.dtype, tuple(tensor.shape), boxes, (tensor,) * len(boxes)), path
        )

    def _sharded(self, tensor: torch.Tensor, path: Path) -> ShardedLeaf:
        return self._note_sharded(tensor, read_shards(tensor, readable(path)), path)

    def _note_sharded(self, tensor: torch.Tensor, found: Shards, path: Path) -> ShardedLeaf:
        if self._in_rank0:
            raise UnsupportedLeafError(
                "a sharded tensor stands where only rank 0's is saved",
                found=f"a {type(tensor).__name__}, of which rank 0 has a part",
                where=f"path {readable(path)}",
                todo='leave it out of what `replicated` calls "rank0"',
            )
        kind = LeafType("torch", dtype_name(found.dtype, readable(path)), found.shape)
        leaf = ShardedLeaf(path, len(self.flat.sharded), kind, tensor, found.boxes, -1, found.layout)
        self.flat.tokens += (SHARDED, str(kind))
        self.flat.sharded.append(leaf)
        self._shards.append((leaf, found))
        return leaf

    def _leaf(self, data: Any, path: Path) -> ArrayLeaf:
        self.flat.tokens.append(ARRAY)
        leaf = ArrayLeaf(len(self.flat.arrays), path)
        self.flat.arrays.append(leaf)
        self.flat.data.append(data)
        return leaf

    def _value(self, value: Any, path: Path) -> ValueLeaf:
        self.flat.tokens.append(VALUE)
        leaf = ValueLeaf(len(self.flat.values), value, path)
        self.flat.values.append(leaf)
        return leaf

    def _dict(self, container: dict[Any, Any], path: Path, kind: str) -> Branch:
        order = self._kept(container, path)
        keys = shared = self._keys(order, path)
        rank_local: dict[Key, RankLocal] = {}
        if self._cuts is not None:
            found = [(key, self._cut(self._cuts, (*path, key), container[key])) for key in keys]
            rank_local = {key: cut for key, cut in found if cut is not None}
            for position, key in enumerate(order if rank_local else ()):
                if key in rank_local:
                    rank_local[key].position = position
            shared = [key for key in keys if key not in rank_local]
        self.flat.tokens += (kind, len(shared))
        if all(type(key) is str for key in shared):
            self.flat.tokens += shared
        else:
            # 1 == True == 1.0, but they are different keys in a file; so are (1,) and (True,), 0.0 and -0.0. And
            # numpy scalars do not compare with tuples.
            texts = [None if type(key) in _SIMPLE_KEYS else self._encoded(key, path) for key in shared]
            self.flat.tokens += [key if text is None else text for key, text in zip(shared, texts, strict=True)]
            self.flat.tokens += [type(key) if text is None else text for key, text in zip(shared, texts, strict=True)]
        # By identity: == fails between keys such as numpy scalars and tuples.
        if not all(map(operator.is_, order, keys)):
            self.flat.orders.append((len(self.flat.tokens), list(order)))
            mine = [key for key in order if key not in rank_local] if rank_local else list(order)
            if kind == "odict" and path and not all(map(operator.is_, mine, shared)):
                self.flat.ordered.append((len(self.flat.tokens), path, mine))
        self._enter(container, path)
        if rank_local:
            children: list[Node] = [
                self._add_rank_local(rank_local[key], container[key])
                if key in rank_local
                else self.node(container[key], (*path, key))
                for key in keys
            ]
        else:
            children = [self.node(container[key], (*path, key)) for key in keys]
        self._open.discard(id(container))
        return Branch(kind, keys, children, container=container, path=path)

    def _kept(self, container: dict[Any, Any], path: Path) -> Collection[Key]:
        """The keys that are not excluded, in the order of the dict."""
        excluded = self._excluded
        return container if excluded is None else [key for key in container if not excluded.covers((*path, key))]

    def _keys(self, container: Collection[Key], path: Path) -> list[Key]:
        try:
            return canonical_order(container)
        except UnsupportedLeafError as error:  # the key has no canonical order
            error.where = f"path {readable(path)}, a dict key"
            raise

    def _encoded(self, key: Key, path: Path) -> str:
        """A key as text, different for any two different keys."""
        return json.dumps(encode_key(key, f"{readable(path)}, a dict key"))

    def _items(self, container: Sequence[Any], path: Path, keys: Sequence[Key], kind: str) -> Branch:
        if self._excluded is not None:
            for key in keys:
                self._excluded.refuse((*path, key), f"an item of a {kind}")
        self.flat.tokens += (kind, len(container))
        self._enter(container, path)
        children = [self.node(item, (*path, key)) for key, item in zip(keys, container, strict=True)]
        self._open.discard(id(container))
        name = type(container).__name__ if kind == "namedtuple" else ""
        return Branch(kind, keys, children, name, container=container, path=path)

    def _check_namedtuple(self, kind: type, path: Path) -> None:
        """Refuse names with which ``load`` could not make a namedtuple."""
        if not kind.__name__.isidentifier() or keyword.iskeyword(kind.__name__):
            raise UnsupportedLeafError(
                f"the state holds a namedtuple called {kind.__name__!r}, which no class can be called",
                expected="a namedtuple whose name is an identifier",
                found=f"{kind.__module__}.{kind.__qualname__}",
                where=f"path {readable(path)}",
                todo="rename the class",
            )

    def _object(self, item: Any, path: Path) -> Branch:
        form = object_form(item)
        if form is None:
            self.flat.tokens.append(OBJECT)
        else:
            self.flat.tokens += (FORM, form.kind, *form.about)
        self._enter(item, path)
        if id(item) in self._state_dicts:
            given = self._state_dicts[id(item)]
        else:
            given = object_state(item, form, path) if form is not None or self._may_ask(item) else {}
        if self._excluded is not None and form is not None:
            for key in given if isinstance(given, dict) else ():
                self._excluded.refuse((*path, key), f"a field of a {type(item).__name__}")
        child = self.node(given, path)
        self._open.discard(id(item))
        name = class_name(item) if form is None else str(form)
        return Branch("object", (None,), [child], name, form, container=item, path=path)

    def _enter(self, container: Any, path: Path) -> None:
        if len(self._open) >= DEEPEST_NESTING:
            raise _too_deep(path)
        if id(container) in self._open:
            raise UnsupportedLeafError(
                "the state contains itself",
                found=f"a {type(container).__name__} inside itself",
                where=f"path {readable(path)}",
                todo="break the cycle before saving",
            )
        self._open.add(id(container))


def _too_deep(path: Path) -> UnsupportedLeafError:
    return UnsupportedLeafError(
        "the state is nested too deeply",
        expected=f"at most {DEEPEST_NESTING} containers and objects inside each other",
        where=f"path {readable(path)[:200]} ...",
        todo="flatten the deepest containers",
    )


# --- types and addresses of leaves ------------------------------------------------------------------------------------


def note_tensor(flat: FlatState, tensor: torch.Tensor, path: Path, *, live: bool) -> torch.Tensor:
    """Check a tensor and add its type and address to a flat state; returns the tensor to read (or write, if live)."""
    if not is_plain(tensor):
        check_tensor(tensor, readable(path))
    return noted(flat, tensor, live=live)


def noted(flat: FlatState, tensor: torch.Tensor, *, live: bool) -> torch.Tensor:
    """Add the type and address of a plain tensor to a flat state; returns the tensor to read (or write, if live)."""
    if not live and (tensor.is_conj() or tensor.is_neg()):
        flat.unresolved[len(flat.pointers)] = tensor
        tensor = tensor.resolve_conj().resolve_neg()
    flat.types += (tensor.dtype, tensor.shape, tensor.device, tensor.is_contiguous() or tensor.stride())
    flat.pointers.append(tensor.data_ptr())
    return tensor


def note_shards(flat: FlatState, leaf: ShardedLeaf, shards: Shards, *, live: bool) -> None:
    """Append this rank's shards of a sharded tensor to a flat state."""
    leaf.first = len(flat.arrays)
    for box, tensor in zip(shards.boxes, shards.tensors, strict=True):
        flat.tokens += (SHARDED, str(box))
        flat.data.append(note_tensor(flat, tensor, leaf.path, live=live))
        flat.arrays.append(ArrayLeaf(len(flat.arrays), leaf.path))


def note_array(flat: FlatState, found: np.ndarray[Any, Any], path: Path) -> None:
    """Like :func:`note_tensor`, for a numpy array."""
    check_array(found, readable(path))
    flat.types += (found.dtype, found.shape, NUMPY, bool(found.flags.c_contiguous) or found.strides)
    flat.pointers.append(found.ctypes.data)
