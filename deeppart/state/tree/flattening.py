"""Flattens a nested state into leaves, in an order that does not depend on the insertion order of dicts.

The walk copies nothing: its result refers to the live objects.
"""

from __future__ import annotations

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
from deeppart.state.tree.flat import NUMPY, FlatState, RankLocalRules
from deeppart.state.tree.nodes import DICT_KINDS, ArrayLeaf, Branch, Node, RankLocal, ShardedLeaf, UnmadeLeaf, ValueLeaf
from deeppart.state.tree.value_containers import container_levels
from deeppart.state.values import encode_key, encode_value, is_value

#: Types of dict keys that can be stored.
_SIMPLE_KEYS = frozenset({str, int, bool, bytes, type(None)})
#: Levels of nested containers, at most: JSON readers stop a little above twice that.
DEEPEST_NESTING = 200


def flatten(
    state: Any,
    *,
    live: bool = False,
    state_dicts: dict[int, Any] | None = None,
    cuts: RankLocalRules | None = None,
    may_ask: Callable[[Any], bool] = lambda item: True,
) -> FlatState:
    """Flatten a state; calls ``state_dict()`` exactly once on each object that has it.

    ``state_dicts`` has the results by the identity of the object; those of other objects are added.
    """
    walk = _Walk(live, {} if state_dicts is None else state_dicts, cuts, may_ask)
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
        self._dicts = 0

    def node(self, item: Any, path: Path) -> Node:
        rank_local = None if self._cuts is None else self._cut(self._cuts, path, item)
        if rank_local is not None:
            self._later.append((rank_local, item, set(self._open)))
            return rank_local
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
            return self._items(item, path, kind._fields, "namedtuple")
        if is_object(item):
            return self._object(item, path)
        encode_value(item, readable(path))  # raises the error that names path and type
        raise AssertionError("is_value and encode_value disagree")

    def finish(self) -> None:
        """Flatten the rank-local items: rank 0's, then this rank's."""
        flat = self.flat
        ends = [(len(flat.arrays), len(flat.values))]
        leads = self._cuts is not None and self._cuts.leads
        self._cuts = None if self._cuts is None else RankLocalRules(splits=self._cuts.splits, excluded=self._excluded)
        for mine in (False, True):
            for rank_local, item, opened in self._later:
                if rank_local.mine is not mine:
                    continue
                flat.rank_local.append(rank_local)
                if mine or leads:
                    self._open, self._in_rank0 = set(opened), not mine
                    self._in_part = rank_local.part
                    rank_local.node = self.node(item, rank_local.path)
            ends.append((len(flat.arrays), len(flat.values)))
        for leaf, shards in self._shards:
            leaf.first = len(flat.arrays)
            for tensor in shards.tensors:
                if not is_plain(tensor):
                    check_tensor(tensor, readable(leaf.path))
                self._leaf(self._noted(tensor), leaf.path)
        for number, value in enumerate(flat.values, start=len(flat.arrays)):
            value.index = number
        counts = zip(zip(*ends, strict=True), (len(flat.arrays), len(flat.values)), strict=True)
        flat.holders = np.concatenate([np.searchsorted(each, np.arange(count), "right") for each, count in counts])

    def _cut(self, cuts: RankLocalRules, path: Path, item: Any) -> RankLocal | None:
        if cuts.mine and exact(path) in cuts.mine:
            return RankLocal(path, True, part=exact(path) in cuts.parts)
        if cuts.rank0 is None:
            return None
        inner = not (is_value(item) or container_levels(item) == 1 or isinstance(item, (torch.Tensor, np.ndarray)))
        return RankLocal(path, False) if cuts.rank0(path, inner) else None

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
        leaf = self._leaf(self._noted(tensor), path)
        leaf.inside = inside
        return leaf

    def _composite(self, tensor: torch.Tensor, parts: Parts, path: Path, inside: int) -> Branch:
        """A tensor made of component tensors. It is never divided: all of it is shared, or none."""
        keys = list(parts.items)
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
        check_array(found, readable(path))
        self.flat.types += (found.dtype, found.shape, NUMPY, bool(found.flags.c_contiguous) or found.strides)
        self.flat.pointers.append(found.ctypes.data)
        return self._leaf(found, path)

    def _noted(self, tensor: torch.Tensor) -> torch.Tensor:
        """Add the type and address of a plain tensor; returns the tensor to read, or to write if the state is live."""
        flat = self.flat
        if not self._live and (tensor.is_conj() or tensor.is_neg()):
            flat.unresolved[len(flat.pointers)] = tensor
            tensor = tensor.resolve_conj().resolve_neg()
        flat.types += (tensor.dtype, tensor.shape, tensor.device, tensor.is_contiguous() or tensor.stride())
        flat.pointers.append(tensor.data_ptr())
        return tensor

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
        self.flat.sharded.append(leaf)
        self._shards.append((leaf, found))
        return leaf

    def _leaf(self, data: Any, path: Path) -> ArrayLeaf:
        leaf = ArrayLeaf(len(self.flat.arrays), path)
        self.flat.arrays.append(leaf)
        self.flat.data.append(data)
        return leaf

    def _value(self, value: Any, path: Path) -> ValueLeaf:
        leaf = ValueLeaf(-1, value, path)  # numbered at the end
        self.flat.values.append(leaf)
        return leaf

    def _dict(self, container: dict[Any, Any], path: Path, kind: str) -> Branch:
        self._dicts += 1
        number, order = self._dicts, self._kept(container, path)
        keys = self._keys(order, path)
        self._enter(container, path)
        children = [self.node(container[key], (*path, key)) for key in keys]
        self._open.discard(id(container))
        rank_local: dict[Key, RankLocal] = {}
        if self._cuts is not None:
            items = zip(keys, children, strict=True)
            rank_local = {key: child for key, child in items if isinstance(child, RankLocal)}
        for position, key in enumerate(order if rank_local else ()):
            if key in rank_local:
                rank_local[key].position = position
        # By identity: == fails between keys such as numpy scalars and tuples.
        if not all(map(operator.is_, order, keys)):
            self.flat.orders.append((number, list(order)))
            mine, shared = ([key for key in each if key not in rank_local] for each in (order, keys))
            is_shared = not self.flat.rank_local
            if kind == "odict" and path and is_shared and not all(map(operator.is_, mine, shared)):
                self.flat.ordered.append((path, mine))
        return Branch(kind, keys, children, container=container, path=path)

    def _kept(self, container: dict[Any, Any], path: Path) -> Collection[Key]:
        """The keys that are not excluded, in the order of the dict."""
        excluded = self._excluded
        return container if excluded is None else [key for key in container if not excluded.covers((*path, key))]

    def _keys(self, container: Collection[Key], path: Path) -> list[Key]:
        where = f"{readable(path)}, a dict key"
        for key in container if not set(map(type, container)) <= _SIMPLE_KEYS else ():
            encode_key(key, where)  # raises the error for one that cannot be stored
        try:
            return canonical_order(container)
        except UnsupportedLeafError as error:  # the key has no canonical order
            error.where = f"path {where}"
            raise

    def _items(self, container: Sequence[Any], path: Path, keys: Sequence[Key], kind: str) -> Branch:
        if self._excluded is not None:
            for key in keys:
                self._excluded.refuse((*path, key), f"an item of a {kind}")
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
        self._enter(item, path)
        if id(item) not in self._state_dicts:
            asked = form is not None or self._may_ask(item)
            self._state_dicts[id(item)] = object_state(item, form, path) if asked else {}
        given = self._state_dicts[id(item)]
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
