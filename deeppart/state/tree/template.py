"""Flattens a state again whose structure has not changed: the usual case, at a fraction of the cost.

A template keeps the tree of the last state without its arrays. It visits every container and array, compares keys,
kinds and types with the kept ones, and builds only the list of arrays. Any difference ends the attempt, and the state
is flattened from scratch.

This runs while training waits, on objects that tensor bytes have evicted from the processor's caches. So it touches
little memory: each tensor once, and otherwise only contiguous lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from deeppart.state.memory import HeldMemory
from deeppart.state.objects import object_form, object_state
from deeppart.state.paths import readable
from deeppart.state.tensors import COMPOSITES, PLAIN_TENSORS, decompose, shards_again
from deeppart.state.tree.flat import NUMPY, FlatState, RankLocalRules
from deeppart.state.tree.flattening import flatten, hold_memory
from deeppart.state.tree.nodes import DICT_KINDS, ArrayLeaf, Branch, Node, RankLocal, ShardedLeaf, UnmadeLeaf, ValueLeaf
from deeppart.state.tree.value_containers import CONTAINER_KINDS, LEAST_ROWS, container_levels
from deeppart.state.values import is_value

#: Takes the item for one node; False if it does not fit.
_Filler = Callable[[Any], bool]
#: dtype, shape, device (None for the CPU), whether it is contiguous, whether its dtype is complex.
_TensorKind = tuple[torch.dtype, torch.Size, torch.device | None, bool | tuple[int, ...], bool]


class Template:
    """Flattens a series of states with the same structure."""

    def __init__(self) -> None:
        self._flat: FlatState | None = None
        self._fill: _Filler | None = None
        self._branches: list[Branch] = []
        self._state_dicts: dict[int, Any] = {}
        self._data: list[Any] = []
        self._later: list[tuple[int, _Filler, Any]] = []
        self._shards: list[tuple[int, Sequence[torch.Tensor], Sequence[_TensorKind | None]]] = []
        self.cuts: RankLocalRules | None = None

    def flatten(self, state: Any) -> FlatState:
        """Like :func:`.flatten`; its result is valid until the next call or :meth:`clear`.

        If the structure is that of the last call, ``tokens``, ``types`` and ``orders`` are the same objects as then.
        """
        try:
            if self._fill is not None and self._flat is not None:
                self._data, self._later, self._shards = [], [], []
                if self._fill(state) and self._fill_later() and self._hold(self._flat):
                    return self._flat
            # state_dict() may be a collective call: it is called once per object even if this attempt failed
            flat = flatten(state, state_dicts=self._state_dicts, cuts=self.cuts)
        finally:
            self._state_dicts, self._data, self._later, self._shards = {}, [], [], []
        self._take(flat)
        return flat

    def cut(self, cuts: RankLocalRules | None) -> FlatState:
        """Flatten the state of the last call again with other rules; calls no ``state_dict()``."""
        state_dicts: dict[int, Any] = {}
        root = _item(self._known.root, self._known, state_dicts)
        self.cuts = cuts
        flat = flatten(root, state_dicts=state_dicts, cuts=cuts)
        self._take(flat)
        return flat

    @property
    def _known(self) -> FlatState:
        if self._flat is None:
            raise RuntimeError("no state was flattened yet")
        return self._flat

    def _take(self, flat: FlatState) -> None:
        self._flat, self._branches = flat, []
        self._fill = self._filler(flat.root, {})

    def _fill_later(self) -> bool:
        """Take the rank-local items in the order of their leaves, then the shards of tensors."""
        if not all(fill(item) for _, fill, item in sorted(self._later, key=lambda entry: entry[0])):
            return False
        # Already in order, unless some of the tensors are rank-local.
        self._shards.sort(key=lambda entry: entry[0])
        return all(self._take_tensors(tensors, kinds) for _, tensors, kinds in self._shards)

    def _hold(self, flat: FlatState) -> bool:
        """Set the arrays of the flat state; False if the memory of one of them is missing."""
        flat.data = self._data
        try:
            hold_memory(flat, flat.extents)
        except RuntimeError:
            return False
        return True

    def clear(self) -> None:
        """Drop all references to the state's tensors and containers."""
        if self._flat is not None:
            self._flat.data, self._flat.memory = [], HeldMemory([])
            for value in self._flat.values:
                value.value = None
            for branch in self._branches:
                branch.container = None
            for leaf in self._flat.sharded:
                leaf.item = None

    def _filler(self, node: Node, kinds: dict[Any, Any]) -> _Filler:
        """``kinds`` interns tensor kinds: thousands of leaves share a handful of them."""
        if isinstance(node, ArrayLeaf):
            return self._array_filler(node, kinds)
        if isinstance(node, ValueLeaf):
            return _value_filler(node, self.cuts)
        if isinstance(node, RankLocal):
            return self._rank_local_filler(node, kinds)
        if isinstance(node, ShardedLeaf):
            return self._sharded_filler(node, kinds)
        if isinstance(node, UnmadeLeaf):
            raise TypeError("a tensor without memory is in no state that is saved")
        self._branches.append(node)
        if node.kind == "object":
            return self._object_filler(node, self._filler(node.children[0], kinds))
        if node.kind in COMPOSITES:
            return _composite_filler(node, [self._filler(child, kinds) for child in node.children])
        take = self._children_taker(node, kinds)
        if type(node.container) in DICT_KINDS:
            return _dict_filler(node, take, _run_test(node, self.cuts))
        return _items_filler(node, take, _run_test(node, self.cuts))

    def _rank_local_filler(self, rank_local: RankLocal, kinds: dict[Any, Any]) -> _Filler:
        position = next(position for position, each in enumerate(self._known.rank_local) if each is rank_local)
        if rank_local.node is None:
            return lambda item: True
        inner = self._filler(rank_local.node, kinds)

        def fill(item: Any) -> bool:
            self._later.append((position, inner, item))
            return True

        return fill

    def _children_taker(self, branch: Branch, kinds: dict[Any, Any]) -> Callable[[Sequence[Any]], bool]:
        """A function that takes the items of a container, in canonical order."""
        wanted = [self._tensor_kind(child, kinds) for child in branch.children]
        if all(wanted):
            return lambda items: self._take_tensors(items, wanted)
        fillers = [self._filler(child, kinds) for child in branch.children]
        return lambda items: all(fill(item) for fill, item in zip(fillers, items, strict=True))

    def _tensor_kind(self, node: Node, kinds: dict[Any, Any]) -> _TensorKind | None:
        if not isinstance(node, ArrayLeaf):
            return None
        dtype, shape, device, order = self._known.types[4 * node.index : 4 * node.index + 4]
        if device is NUMPY:
            return None
        kind = (dtype, shape, None if device.type == "cpu" else device, order, dtype.is_complex)
        same: _TensorKind = kinds.setdefault(kind, kind)
        return same

    def _take_tensors(self, items: Iterable[Any], kinds: Iterable[Any]) -> bool:
        try:
            for item, (dtype, shape, device, order, is_complex) in zip(items, kinds, strict=True):
                # Other layouts differ in dtype, or have no shape or memory; no kind has the meta device.
                if (
                    type(item) not in PLAIN_TENSORS
                    or item.dtype is not dtype
                    or item.shape != shape
                    or (not item.is_cpu if device is None else item.device != device)
                    or (item.is_contiguous() or item.stride()) != order
                    or item.is_neg()
                    or (is_complex and item.is_conj())
                ):
                    return False
        except RuntimeError:
            return False
        self._data += items
        return True

    def _array_filler(self, leaf: ArrayLeaf, kinds: dict[Any, Any]) -> _Filler:
        kind = self._tensor_kind(leaf, kinds)
        if kind is not None:
            return lambda item: self._take_tensors((item,), (kind,))
        dtype, shape, _, order = self._known.types[4 * leaf.index : 4 * leaf.index + 4]

        def fill(item: Any) -> bool:
            if type(item) is not np.ndarray or item.dtype != dtype or item.shape != shape:
                return False
            self._data.append(item)
            return bool((bool(item.flags.c_contiguous) or item.strides) == order)

        return fill

    def _sharded_filler(self, leaf: ShardedLeaf, kinds: dict[Any, Any]) -> _Filler:
        kind, wanted = type(leaf.item), [self._tensor_kind(ArrayLeaf(n, leaf.path), kinds) for n in leaf.numbers]
        index, shape, boxes, layout = leaf.index, leaf.kind.shape, leaf.boxes, leaf.layout

        def fill(item: Any) -> bool:
            tensors = None
            if type(item) is kind:
                is_plain = kind in PLAIN_TENSORS
                tensors = (item,) * len(wanted) if is_plain else shards_again(item, shape, boxes, layout)
            if tensors is None:
                return False
            leaf.item = item
            self._shards.append((index, tensors, wanted))
            return True

        return fill

    def _object_filler(self, branch: Branch, fill_state_dict: _Filler) -> _Filler:
        kind, form, path = type(branch.container), branch.form, branch.path

        def fill(item: Any) -> bool:
            if type(item) is not kind or (form is not None and object_form(item) != form):
                return False
            branch.container = item
            state_dict = object_state(item, form, path)
            self._state_dicts[id(item)] = state_dict
            return fill_state_dict(state_dict)

        return fill


def _item(node: Node, flat: FlatState, state_dicts: dict[int, Any]) -> Any:
    """The live item of a node; adds the results of ``state_dict()`` calls to ``state_dicts``."""
    if isinstance(node, UnmadeLeaf):
        raise TypeError("a tensor without memory is in no state that is saved")
    if isinstance(node, ShardedLeaf):
        return node.item
    if isinstance(node, ArrayLeaf):
        return flat.data[node.index]
    if isinstance(node, ValueLeaf):
        return node.value
    if isinstance(node, RankLocal):
        return None if node.node is None else _item(node.node, flat, state_dicts)
    for child in node.children:
        item = _item(child, flat, state_dicts)
        if node.kind == "object":
            state_dicts[id(node.container)] = item
    return node.container


def _value_filler(leaf: ValueLeaf, cuts: RankLocalRules | None) -> _Filler:
    path, inside = leaf.path, leaf.inside

    def fill(item: Any) -> bool:
        leaf.value = item
        if inside:
            return not isinstance(item, torch.Tensor)
        if is_value(item):
            return True
        levels = container_levels(item)
        return levels > 0 and (cuts is None or cuts.may_be_value(path, levels))

    return fill


def _dict_filler(
    branch: Branch, take: Callable[[Sequence[Any]], bool], is_run: Callable[[Any], bool] | None
) -> _Filler:
    kind, order = type(branch.container), list(branch.container)
    types = None if all(type(key) is str for key in order) else [type(key) for key in order]
    exact = all(type(key) in (str, int, bool, bytes, type(None)) for key in order)
    positions = {key: position for position, key in enumerate(order)}
    canonical = [positions[key] for key in branch.keys]
    in_order = canonical == list(range(len(order)))

    def fill(item: Any) -> bool:
        if type(item) is not kind or not exact or list(item) != order:
            return False
        if types is not None and [type(key) for key in item] != types:
            return False
        if is_run is not None and is_run(item):
            return False
        branch.container = item
        items = list(item.values())
        return take(items if in_order else [items[position] for position in canonical])

    return fill


def _composite_filler(branch: Branch, fillers: Sequence[_Filler]) -> _Filler:
    """Fills a composite tensor; one whose components have other shapes now does not fit."""
    kind, cls, keys, path = branch.kind, type(branch.container), list(branch.keys), branch.path

    def fill(item: Any) -> bool:
        parts = decompose(item, readable(path)) if type(item) is cls else None
        if parts is None or (parts.kind, parts.name) != (kind, branch.name) or list(parts.items) != keys:
            return False
        branch.container = item
        return all(take(each) for take, each in zip(fillers, parts.items.values(), strict=True))

    return fill


def _items_filler(
    branch: Branch, take: Callable[[Sequence[Any]], bool], is_run: Callable[[Any], bool] | None
) -> _Filler:
    kind, count = type(branch.container), len(branch.children)

    def fill(item: Any) -> bool:
        branch.container = item
        if type(item) is not kind or len(item) != count or (is_run is not None and is_run(item)):
            return False
        return take(item)

    return fill


def _run_test(branch: Branch, cuts: RankLocalRules | None) -> Callable[[Any], bool] | None:
    """A function that says whether other values at the same keys make it a value container; None if they cannot."""
    flat = all(isinstance(child, ValueLeaf) for child in branch.children)
    if not flat and (len(branch.children) < LEAST_ROWS or not _holds_values(branch)):
        return None

    def is_run(item: Any) -> bool:
        levels = container_levels(item)
        return levels > 0 and (cuts is None or cuts.may_be_value(branch.path, levels))

    return is_run


def _holds_values(node: Node) -> bool:
    """True if a tree has only values, in containers that may be in a value container."""
    if isinstance(node, Branch):
        return node.kind in CONTAINER_KINDS and all(map(_holds_values, node.children))
    return isinstance(node, ValueLeaf)
