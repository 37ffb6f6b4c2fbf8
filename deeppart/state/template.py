"""Take a state apart again when its structure has not changed: the usual case, at a fraction of the cost.

A template keeps the tree of the last state without its leaves. Filling it visits every container and leaf, compares
keys and kinds with the kept ones, and builds nothing. Whatever does not fit ends the attempt, and the state is taken
apart from scratch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from deeppart.state.flatten import (
    DICT_KINDS,
    PLAIN_TENSORS,
    ArrayLeaf,
    Branch,
    FlatState,
    Node,
    ValueLeaf,
    flatten,
    note_array,
    note_tensor,
)
from deeppart.state.values import is_value

#: Puts an item into its place in the tree; False if it does not fit.
_Filler = Callable[[Any], bool]


class Template:
    """Flattens states of one structure after another."""

    def __init__(self) -> None:
        self._flat: FlatState | None = None
        self._fill: _Filler | None = None
        self._state_dicts: dict[int, Any] = {}
        self._branches: list[Branch] = []

    def flatten(self, state: Any) -> FlatState:
        """As :func:`deeppart.state.flatten.flatten`; what it returns holds until the next call or :meth:`clear`.

        Raises:
            UnsupportedLeafError: something in the state cannot be stored; the message names its path and type.
        """
        try:
            if self._fill is not None and self._flat is not None:
                self._flat.types, self._flat.pointers = [], []
                if self._fill(state):
                    return self._flat
            # state_dict() may be a collective call: what was already called is not called again
            flat = flatten(state, state_dicts=self._state_dicts)
        finally:
            self._state_dicts = {}
        self._flat, self._branches = flat, []
        self._fill = self._filler(flat.root)
        return flat

    def clear(self) -> None:
        """Let go of the state's tensors and containers."""
        if self._flat is not None:
            for array in self._flat.arrays:
                array.data = None
            for value in self._flat.values:
                value.value = None
            for branch in self._branches:
                branch.container = None

    def _filler(self, node: Node) -> _Filler:
        if isinstance(node, ArrayLeaf):
            return self._array_filler(node)
        if isinstance(node, ValueLeaf):
            return _value_filler(node)
        self._branches.append(node)
        fillers = [self._filler(child) for child in node.children]
        if node.kind == "object":
            return self._object_filler(node, fillers[0])
        if type(node.container) in DICT_KINDS:
            return _dict_filler(node, fillers)
        return _items_filler(node, fillers)

    def _array_filler(self, leaf: ArrayLeaf) -> _Filler:
        def fill(item: Any) -> bool:
            assert self._flat is not None
            if type(item) in PLAIN_TENSORS:
                leaf.data = note_tensor(self._flat, item, leaf.path, live=False)
                return True
            if type(item) is np.ndarray:
                leaf.data = note_array(self._flat, item, leaf.path)
                return True
            return False

        return fill

    def _object_filler(self, branch: Branch, fill_state_dict: _Filler) -> _Filler:
        kind = type(branch.container)

        def fill(item: Any) -> bool:
            if type(item) is not kind:
                return False
            branch.container = item
            state_dict = item.state_dict()
            self._state_dicts[id(item)] = state_dict
            return fill_state_dict(state_dict)

        return fill


def _value_filler(leaf: ValueLeaf) -> _Filler:
    def fill(item: Any) -> bool:
        leaf.value = item
        return is_value(item)

    return fill


def _dict_filler(branch: Branch, fillers: list[_Filler]) -> _Filler:
    kind, keys, order = type(branch.container), branch.keys, list(branch.container)
    types = None if all(type(key) is str for key in order) else [type(key) for key in order]
    exact = all(type(key) in (str, int, bool, bytes, type(None)) for key in order)

    def fill(item: Any) -> bool:
        if type(item) is not kind or not exact or list(item) != order:
            return False
        if types is not None and [type(key) for key in item] != types:
            return False
        branch.container = item
        for key, fill_child in zip(keys, fillers, strict=True):
            if not fill_child(item[key]):
                return False
        return True

    return fill


def _items_filler(branch: Branch, fillers: list[_Filler]) -> _Filler:
    kind, count = type(branch.container), len(fillers)

    def fill(item: Any) -> bool:
        if type(item) is not kind or len(item) != count:
            return False
        branch.container = item
        for child, fill_child in zip(item, fillers, strict=True):
            if not fill_child(child):
                return False
        return True

    return fill
