"""Flattens a state again whose structure has not changed: the usual case, at a fraction of the cost.

A template keeps the tree of the last state without its arrays. It visits every container and array, compares keys,
kinds and types with the kept ones, and builds only the list of arrays. Any difference ends the attempt, and the state
is flattened from scratch.

This runs while training waits, on objects that tensor bytes have evicted from the processor's caches. So it touches
little memory: each tensor once, and otherwise only contiguous lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from deeppart.state.memory import HeldMemory
from deeppart.state.objects import object_form, object_state
from deeppart.state.paths import Key, Path, readable
from deeppart.state.tensors import COMPOSITES, PLAIN_TENSORS, decompose, shards_again
from deeppart.state.tree.flat import NUMPY, FlatState, RankLocalRules
from deeppart.state.tree.flattening import flatten, hold_memory
from deeppart.state.tree.nodes import DICT_KINDS, ArrayLeaf, Branch, Node, RankLocal, ShardedLeaf, UnmadeLeaf, ValueLeaf
from deeppart.state.tree.value_containers import CONTAINER_KINDS, LEAST_ROWS, container_levels
from deeppart.state.values import is_value

#: dtype, shape, device (None for the CPU), whether it is contiguous (or its strides), whether its dtype is complex.
_ArrayKind = tuple[Any, Any, Any, bool | tuple[int, ...], bool]


@dataclass(frozen=True, slots=True)
class _Known:
    """A container of the tree, and what another one must have to be taken for it.

    Attributes:
        branch: its node.
        kind: its type; None if no other one can be taken for it.
        keys: the keys of a dict, in insertion order.
        key_types: the types of the keys; None if all are texts.
        places: the position of each child's key among ``keys``; None if these are the children's, in order.
        arrays: the kinds of the children, if all of them are arrays.
        may_be_value: true if other values at the same keys may make it a value container.
    """

    branch: Branch
    kind: type | None
    keys: list[Key] | None = None
    key_types: list[type] | None = None
    places: list[int] | None = None
    arrays: list[_ArrayKind] | None = None
    may_be_value: bool = False


class Template:
    """Flattens a series of states with the same structure."""

    def __init__(self) -> None:
        self._flat: FlatState | None = None
        #: By identity of the node.
        self._known: dict[int, _Known] = {}
        #: The kind of each array, and the class of each sharded tensor.
        self._kinds: list[_ArrayKind] = []
        self._sharded_types: list[type] = []
        #: Of the last call: the state, and what ``state_dict()`` of its objects has returned, by their identity.
        self._state: Any = None
        self._state_dicts: dict[int, Any] = {}
        self._data: list[Any] = []
        #: The items of rank-local nodes, by identity of the node, and the shards of sharded tensors, by their numbers.
        self._later: dict[int, Any] = {}
        self._shards: dict[int, Sequence[Any]] = {}
        self.cuts: RankLocalRules | None = None

    def flatten(self, state: Any) -> FlatState:
        """Like :func:`.flatten`; its result is valid until the next call or :meth:`clear`.

        If the structure is that of the last call, it is the same object with other contents.
        """
        self._state, self._state_dicts = state, {}
        self._data, self._later, self._shards = [], {}, {}
        flat = self._flat
        if flat is not None and self._fits(flat.root, state) and self._fit_later(flat) and self._hold(flat):
            return flat
        # state_dict() may be a collective call: it is called once per object even if this attempt failed
        return self._flatten_anew()

    def cut(self, cuts: RankLocalRules | None) -> FlatState:
        """Flatten the state of the last call again with other rules; calls no ``state_dict()``."""
        self.cuts = cuts
        return self._flatten_anew()

    def _flatten_anew(self) -> FlatState:
        flat = flatten(self._state, state_dicts=self._state_dicts, cuts=self.cuts)
        self._flat, self._known = flat, {}
        self._sharded_types = [type(leaf.item) for leaf in flat.sharded]
        interned: dict[_ArrayKind, _ArrayKind] = {}  # thousands of leaves share a handful of kinds
        self._kinds = []
        for dtype, shape, device, order in zip(*(flat.types[place::4] for place in range(4)), strict=True):
            on_cpu = device is not NUMPY and device.type == "cpu"
            kind = (dtype, shape, None if on_cpu else device, order, device is not NUMPY and dtype.is_complex)
            self._kinds.append(interned.setdefault(kind, kind))
        self._learn(flat.root)
        for each in flat.rank_local:
            self._learn(each.node)
        return flat

    def clear(self) -> None:
        """Drop all references to the state's tensors and containers."""
        self._state, self._state_dicts = None, {}
        self._data, self._later, self._shards = [], {}, {}
        if self._flat is not None:
            self._flat.data, self._flat.memory = [], HeldMemory([])
            for value in self._flat.values:
                value.value = None
            for known in self._known.values():
                known.branch.container = None
            for leaf in self._flat.sharded:
                leaf.item = None

    def _hold(self, flat: FlatState) -> bool:
        """Set the arrays of the flat state; False if the memory of one of them is missing."""
        flat.data = self._data
        try:
            hold_memory(flat, flat.extents)
        except RuntimeError:
            return False
        return True

    # --- what is known of the tree ------------------------------------------------------------------------------------

    def _learn(self, node: Node | None) -> None:
        if not isinstance(node, Branch):
            return
        for child in node.children:
            self._learn(child)
        kind, children = type(node.container), node.children
        if node.kind == "object" or node.kind in COMPOSITES:
            self._known[id(node)] = _Known(node, kind)
            return
        arrays = [self._kinds[child.index] for child in children if isinstance(child, ArrayLeaf)]
        is_flat = all(isinstance(child, ValueLeaf) for child in children)
        found = _Known(
            node,
            kind,
            arrays=arrays if len(arrays) == len(children) else None,
            may_be_value=is_flat or (len(children) >= LEAST_ROWS and _holds_values(node)),
        )
        if kind in DICT_KINDS:
            found = _with_keys(found, list(node.container))
        self._known[id(node)] = found

    # --- another state ------------------------------------------------------------------------------------------------

    def _fits(self, node: Node, item: Any) -> bool:
        """Take an item for a node; False if it does not fit."""
        if isinstance(node, Branch):
            known = self._known[id(node)]
            if type(item) is not known.kind:
                return False
            if node.kind == "object":
                return self._fits_object(node, item)
            return self._fits_composite(node, item) if node.kind in COMPOSITES else self._fits_container(known, item)
        if isinstance(node, ArrayLeaf):
            return self._take((item,), (self._kinds[node.index],))
        if isinstance(node, ValueLeaf):
            node.value = item
            if node.inside:
                return not isinstance(item, torch.Tensor)
            return is_value(item) or self._is_one_value(item, node.path)
        if isinstance(node, RankLocal):
            self._later[id(node)] = item
            return True
        if isinstance(node, UnmadeLeaf):
            raise TypeError("a tensor without memory is in no state that is saved")
        return self._fits_sharded(node, item)

    def _fits_container(self, known: _Known, item: Any) -> bool:
        branch, items = known.branch, item
        if known.keys is not None:
            if list(item) != known.keys:
                return False
            if known.key_types is not None and [type(key) for key in item] != known.key_types:
                return False
            items = list(item.values())
        elif len(item) != len(branch.children):
            return False
        if known.may_be_value and self._is_one_value(item, branch.path):
            return False
        branch.container = item
        if known.places is not None:
            items = [items[place] for place in known.places]
        if known.arrays is not None:
            return self._take(items, known.arrays)
        return all(map(self._fits, branch.children, items))

    def _fits_object(self, branch: Branch, item: Any) -> bool:
        if branch.form is not None and object_form(item) != branch.form:
            return False
        branch.container = item
        state_dict = self._state_dicts[id(item)] = object_state(item, branch.form, branch.path)
        return self._fits(branch.children[0], state_dict)

    def _fits_composite(self, branch: Branch, item: Any) -> bool:
        """A composite tensor whose components have other shapes now does not fit."""
        parts = decompose(item, readable(branch.path))
        if parts is None or (parts.kind, parts.name) != (branch.kind, branch.name) or [*parts.items] != branch.keys:
            return False
        branch.container = item
        return all(map(self._fits, branch.children, parts.items.values()))

    def _fits_sharded(self, leaf: ShardedLeaf, item: Any) -> bool:
        kind = self._sharded_types[leaf.index]
        if type(item) is not kind:
            return False
        boxes, is_plain = leaf.boxes, kind in PLAIN_TENSORS
        tensors = (item,) * len(boxes) if is_plain else shards_again(item, leaf.kind.shape, boxes, leaf.layout)
        if tensors is None:
            return False
        leaf.item = item
        self._shards[leaf.index] = tensors
        return True

    def _fit_later(self, flat: FlatState) -> bool:
        """Take the rank-local items in the order of their leaves, then the shards of tensors."""
        for each in flat.rank_local:
            if each.node is not None and not self._fits(each.node, self._later[id(each)]):
                return False
        kinds = self._kinds[flat.sharded[0].first if flat.sharded else len(self._kinds) :]
        return self._take([tensor for leaf in flat.sharded for tensor in self._shards[leaf.index]], kinds)

    def _take(self, items: Sequence[Any], kinds: Iterable[_ArrayKind]) -> bool:
        """Add arrays of these kinds; False if one is of another."""
        try:
            for item, (dtype, shape, device, order, is_complex) in zip(items, kinds, strict=True):
                if device is NUMPY:
                    if type(item) is not np.ndarray or item.dtype != dtype or item.shape != shape:
                        return False
                    if (bool(item.flags.c_contiguous) or item.strides) != order:
                        return False
                # Other layouts differ in dtype, or have no shape or memory; no kind has the meta device.
                elif (
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

    def _is_one_value(self, item: Any, path: Path) -> bool:
        """True if a container is a value container."""
        levels = container_levels(item)
        return levels > 0 and (self.cuts is None or self.cuts.may_be_value(path, levels))


def _with_keys(known: _Known, order: list[Key]) -> _Known:
    """The same for a dict with these keys."""
    types = [type(key) for key in order]
    # Equal keys of other types need not be identical: such a dict is flattened from scratch.
    if not set(types) <= {str, int, bool, bytes, type(None)}:
        return replace(known, kind=None)
    positions = {key: position for position, key in enumerate(order)}
    places = [positions[key] for key in known.branch.keys]
    return replace(
        known,
        keys=order,
        key_types=None if set(types) <= {str} else types,
        places=None if places == list(range(len(order))) else places,
    )


def _holds_values(node: Node) -> bool:
    """True if a tree has only values, in containers that may be in a value container."""
    if isinstance(node, Branch):
        return node.kind in CONTAINER_KINDS and all(map(_holds_values, node.children))
    return isinstance(node, ValueLeaf)
