"""Puts what was restored into the live containers and objects, once their tensors have the restored bytes.

Lists and dicts stay the same objects; so do those in containers of small values, which are filled as a whole. A
container of another kind is replaced. Dict entries get the saved order.
"""

from __future__ import annotations

import functools
import operator
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import copy as shallow_copy
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch

from deeppart.errors import StateError
from deeppart.state.objects import is_optimizer, load_state_dict_of, remade
from deeppart.state.objects import put as put_data
from deeppart.state.paths import Key, Path, id_keys, readable, some_names
from deeppart.state.restore.building import build
from deeppart.state.restore.composites import is_composite, is_dropped, rebuilt, settle
from deeppart.state.restore.optimizers import undo_casts
from deeppart.state.restore.target import DROPPED, Pair, Target
from deeppart.state.tensors import SUBCLASS, Array
from deeppart.state.tree import (
    DICTS,
    ArrayLeaf,
    Branch,
    FlatState,
    Node,
    ShardedLeaf,
    UnmadeLeaf,
    ValueLeaf,
    holds_containers,
    make_container,
    walk_tree,
)
from deeppart.state.values import CONTAINERS, MUTABLE, SEQUENCES, TABLES, fresh, put_in, same_value


def put(target: Target, arrays: Mapping[int, Array], flat: FlatState) -> Any:
    """Put everything restored into the live containers and objects; returns the root (new only if it is a tuple)."""
    assert target.root is not None, "the states were matched"
    return _Filling(target, arrays, flat).item(target.root, copy=False)


class _Filling:
    """One walk over the pairs of saved and live items."""

    def __init__(self, target: Target, arrays: Mapping[int, Array], flat: FlatState) -> None:
        self._target, self._arrays, self._flat = target, arrays, flat
        self._loaded: list[str] = []  # paths of the objects that have loaded their state
        self._offsets: dict[int, torch.Tensor] = {}

    def item(self, pair: Pair, *, copy: bool) -> Any:
        """The item that the live state has from now on; DROPPED for a new one of which nothing is restored.

        Args:
            copy: leave live containers unchanged and return new ones: an object may use one at several places.
        """
        saved, live = pair.saved, pair.live
        if pair.is_new:
            made = build(self._target, self._arrays, saved)
            return self._live_item(live) if made is DROPPED and live is not None else made
        if isinstance(live, ArrayLeaf):  # its bytes are those that were restored
            return self._flat.data[live.index]
        if isinstance(saved, ValueLeaf) and isinstance(live, ValueLeaf):
            value = self._target.values[saved.index]
            if value is DROPPED:
                return live.value
            return value if copy else fill(live.value, value)
        if not isinstance(saved, Branch) or not isinstance(live, Branch):
            return self._live_item(live)
        if is_composite(saved):
            return self._composite(saved, live)
        if live.form is not None:
            data = self.item(pair.items[0][1], copy=copy)
            give = remade if copy else put_data
            return give(live.container, live.form, data, lambda: f"path {readable(pair.path)}")
        if saved.kind == "object":
            self._load_object(live.container, self.item(pair.items[0][1], copy=True), pair.path)
            return live.container
        container = shallow_copy(live.container) if copy else live.container
        found = [(key, self.item(inner, copy=copy)) for key, inner in pair.items]
        if live.kind not in DICTS:
            return _refilled(container, (), [None if item is DROPPED else item for _, item in found])
        items = {key: item for key, item in found if item is not DROPPED}
        if id_keys(list(items)) != id_keys(list(container)):  # in the saved order; what is excluded stays
            for key in live.keys:
                del container[key]
        return _refilled(container, items, items.values())

    def _load_object(self, item: Any, state_dict: Any, path: Path) -> None:
        before = dict(item.state) if is_optimizer(item) else {}
        try:
            load_state_dict_of(item, state_dict)
        except Exception as error:
            raise StateError(
                f"load_state_dict of a {type(item).__name__} failed for the restored state",
                found=f"{type(error).__name__}: {error}",
                where=f"path {readable(path)}",
                todo=f"build the state again before training: {self._changes()}",
            ) from error
        if is_optimizer(item):
            undo_casts(item, state_dict, before, self._is_cast)
        self._loaded.append(readable(path))

    def _changes(self) -> str:
        """What has been changed in the live state so far, for an error."""
        target = self._target
        leaves = walk_tree(target.structure.tree, ())
        filled = {
            readable(path[:1]) for path, leaf in leaves if isinstance(leaf, ArrayLeaf) and leaf.index in target.places
        }
        changed = [f"tensors of {some_names(sorted(filled))} may hold the checkpoint's bytes"] if filled else []
        changed += [f"load_state_dict has returned for {some_names(self._loaded)}"] if self._loaded else []
        return "; ".join(changed) or "nothing else has changed"

    def _is_cast(self, parameter: torch.Tensor) -> bool:
        """True if a parameter has another dtype than in the checkpoint, as far as this restore has seen."""
        any_sharded, addresses = self._casts
        return any_sharded or parameter.data_ptr() in addresses

    @functools.cached_property
    def _casts(self) -> tuple[bool, set[int]]:
        """Whether any sharded live tensor has another dtype than in the checkpoint; the addresses of those that do."""
        places = [place for index, place in self._target.places.items() if self._target.is_cast(index)]
        arrays = [box.array for place in places for box in place.boxes if isinstance(box.array, torch.Tensor)]
        return any(place.is_sharded for place in places), {data.data_ptr() for data in arrays}

    def _composite(self, saved: Branch, live: Branch) -> Any:
        """The live tensor with restored elements, or another one that replaces it."""
        if is_dropped(saved, self._target):
            return live.container
        if saved.kind != SUBCLASS:
            return settle(saved.kind, live.container, rebuilt(self._target, self._arrays, saved), self._offsets)
        for child, inner in zip(saved.children, live.children, strict=True):  # plain tensors were filled in place
            if isinstance(child, Branch) and isinstance(inner, Branch):
                self._composite(child, inner)
        return live.container

    def _live_item(self, live: Node | None) -> Any:
        if isinstance(live, ArrayLeaf):
            return self._flat.data[live.index]
        if isinstance(live, (ShardedLeaf, UnmadeLeaf)):
            return live.item
        assert isinstance(live, (ValueLeaf, Branch))
        return live.value if isinstance(live, ValueLeaf) else live.container


def _refilled(container: Any, keys: Iterable[Key], items: Collection[Any]) -> Any:
    """A container with these items: itself, unless it is a tuple with others. A dict keeps what is under other keys."""
    if isinstance(container, dict):
        update = OrderedDict.update if type(container) is OrderedDict else dict.update  # Counter.update would add
        update(container, zip(keys, items, strict=True))
        return container
    if len(items) == len(container) and all(map(operator.is_, container, items)):
        return container
    if type(container) is list:
        container[:] = items
        return container
    return type(container)._make(items) if hasattr(container, "_make") else tuple(items)


# --- containers of small values ---------------------------------------------------------------------------------------


def fill(live: Any, saved: Any) -> Any:
    """The object that replaces ``live`` and has the content of ``saved``: ``live`` itself, if it is mutable."""
    if type(live) in MUTABLE and type(live) is type(saved):
        return put_in(live, saved)
    if not _takes(live, saved):
        return saved
    items = saved.values() if isinstance(saved, dict) else saved
    if holds_containers(saved):
        items = [
            fill(old, new) if type(new) in CONTAINERS and (type(new) is not tuple or holds_containers(new)) else new
            for old, new in _pairs(live, saved)
        ]
    elif type(saved) is tuple:
        return live if same_value(live, saved) else saved
    if isinstance(saved, dict):
        live.clear()
    return _refilled(live, saved, items)


def _pairs(live: Any, saved: Any) -> Iterator[tuple[Any, Any]]:
    """Pairs of the live item, or None, and the saved item for each key of a saved container."""
    if isinstance(saved, dict):
        return zip(map(live.get, saved), saved.values(), strict=True)
    return zip(chain(live, repeat(None)), saved, strict=False)


def filled_containers(live: Any, saved: Any) -> Iterator[tuple[Any, Any]]:
    """Every live list or dict that :func:`fill` fills, with its saved container."""
    if not _takes(live, saved):
        return
    if type(saved) is not tuple:
        yield live, saved
    if holds_containers(saved):
        for old, new in _pairs(live, saved):
            yield from filled_containers(old, new)


def same_where_fixed(live: Any, saved: Any) -> bool:
    """True if no item that is only in tuples would change."""
    if not isinstance(saved, tuple) or not isinstance(live, tuple) or not holds_containers(saved):
        return _takes(live, saved) if type(saved) in CONTAINERS - {tuple} else same_value(saved, live)
    return len(live) == len(saved) and all(map(same_where_fixed, live, saved))


def _takes(live: Any, saved: Any) -> bool:
    """True if a live container can be filled with a saved one."""
    kind = type(saved)
    return kind in CONTAINERS and (type(live) is kind if kind in SEQUENCES else type(live) in TABLES)


def detached(item: Any) -> Any:
    """A copy of containers and arrays, for filling live ones that may be, or contain, some of these."""
    if isinstance(item, torch.Tensor):
        return item.detach().clone()
    if isinstance(item, np.ndarray):
        return item.copy()
    kind = type(item)
    if kind in SEQUENCES:
        return kind(map(detached, item))
    if kind in TABLES:
        return make_container(TABLES[kind], item, map(detached, item.values()))
    return fresh(item)
