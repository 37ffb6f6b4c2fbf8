"""Puts restored leaves into the live state: ties, containers and objects; creates containers that it lacks."""

from __future__ import annotations

import functools
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable, Iterable, Mapping
from functools import partialmethod
from itertools import chain
from typing import Any

import numpy as np
import torch

from deeppart.errors import StateError
from deeppart.state.objects import DATACLASS, is_optimizer, load_state_dict_of, make, remade
from deeppart.state.objects import put as put_data
from deeppart.state.paths import Path, exact, id_keys, readable, some_names
from deeppart.state.restore.composites import composites_of, is_composite, is_dropped, rebuilt, settle
from deeppart.state.restore.filling import fill
from deeppart.state.restore.target import DROPPED, Target, is_lacking, meet
from deeppart.state.tensors import SUBCLASS, Array, LeafType, in_a_row
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
    walk_tree,
)
from deeppart.state.values import TABLE_MAKERS


def tie(target: Target, arrays: dict[int, Array]) -> None:
    """Add the aliases to ``arrays``: created ones as views of their owner, live ones with their owner's bytes."""
    flat: dict[int, Array] = {}  # one flat copy of each owner that is not flat, for all its aliases
    for index, alias in target.structure.aliases.items():
        if index in target.dropped or alias.owner in target.dropped:
            continue
        if alias.owner not in flat:
            flat[alias.owner] = _in_c_order(arrays[alias.owner])
        view = _view(flat[alias.owner], target.types[index], alias.offset, alias.strides)
        live = target.live.get(index)
        arrays[index] = view if live is None else live
        if live is None or index in target.tied:
            continue
        if isinstance(live, torch.Tensor):
            with torch.no_grad():
                live.copy_(view)
        else:
            np.copyto(live, view)


def _in_c_order(owner: Array) -> Array:
    """The array itself if it is flat, else a flat copy."""
    if isinstance(owner, torch.Tensor):
        return owner.detach().resolve_conj().resolve_neg().contiguous()
    return np.ascontiguousarray(owner)


def _view(owner: Array, kind: LeafType, offset: int, strides: tuple[int, ...]) -> Any:
    """An alias of a flat owner, in the owner's memory if possible, else in a copy of it.

    The alias must have been checked to be within the owner (``check_aliases``): numpy would access other memory.
    """
    start = offset // kind.itemsize
    if isinstance(owner, torch.Tensor):
        dtype: torch.dtype = getattr(torch, kind.dtype)
        data = in_a_row(owner).view(torch.uint8)
        if data.storage_offset() % kind.itemsize:
            data = data.clone()  # a live owner may be at an address that torch does not allow for this element size
        flat = data[: data.numel() - data.numel() % kind.itemsize].view(dtype)
        return flat.as_strided(kind.shape, strides, flat.storage_offset() + start)
    octets = owner.reshape(-1).view(np.uint8)
    elements = octets[: octets.size - octets.size % kind.itemsize].view(kind.dtype)[start:]
    return np.lib.stride_tricks.as_strided(elements, kind.shape, tuple(stride * kind.itemsize for stride in strides))


def check_composites(target: Target, arrays: Mapping[int, Array]) -> None:
    """Check that composite tensors can be made, before anything live is changed."""
    known = dict(arrays)
    for node in composites_of(target.structure.tree):
        numbers = [child.index for child in node.children if isinstance(child, ArrayLeaf)]
        for index in numbers:
            alias = target.structure.aliases.get(index)
            if alias is not None and alias.owner in arrays:
                owner = _in_c_order(arrays[alias.owner])
                known[index] = _view(owner, target.types[index], alias.offset, alias.strides)
        if not is_dropped(node, target) and all(index in known for index in numbers):
            rebuilt(target, known, node)


def put(target: Target, arrays: dict[int, Array], flat: FlatState) -> Any:
    """Put everything restored into the live containers and objects; returns the root (new only if it is a tuple)."""
    return _Putting(target, arrays, flat).node(target.structure.tree, flat.root, (), copy=False)


def build(target: Target, arrays: dict[int, Array], node: Node) -> Any:
    """Build a saved state without a live one: an object becomes what its ``state_dict()`` returned.

    Subclasses of tensors become dicts of their components: only their class could make them.
    """
    if isinstance(node, ArrayLeaf):
        return DROPPED if node.index in target.dropped else arrays[node.index]
    if isinstance(node, ValueLeaf):
        return target.values[node.index]
    if not isinstance(node, Branch):
        return DROPPED  # rank-local to another rank
    if is_composite(node) and node.kind != SUBCLASS:
        return DROPPED if is_dropped(node, target) else rebuilt(target, arrays, node)
    children = [build(target, arrays, child) for child in node.children]
    if children and all(child is DROPPED for child in children):
        return DROPPED
    if node.form is not None:
        form = node.form
        kind = target.class_of(*form.about[:2]) if form.kind == DATACLASS else None
        return make(form, children[0], kind, lambda: f"an object saved as a {form}")
    if node.kind == "object":
        return children[0]
    if node.kind == SUBCLASS:
        return DROPPED if is_dropped(node, target) else dict(zip(node.keys, children, strict=True))
    if node.kind in DICTS:
        items = [(key, child) for key, child in zip(node.keys, children, strict=True) if child is not DROPPED]
        return _new_dict(node, items)
    kept = [None if child is DROPPED else child for child in children]  # so that other items keep their index
    if node.kind == "list":
        return kept
    return _namedtuple(node.name, tuple(node.keys))(*kept) if node.kind == "namedtuple" else tuple(kept)


@functools.lru_cache(maxsize=256)
def _namedtuple(name: str, fields: tuple[str, ...]) -> Any:
    """One class for all instances, since making one takes 0.1 ms; it can be pickled, for ``torch.save``."""
    plain = namedtuple(name, fields, rename=True)  # type: ignore[misc]  # the saved fields may be renamed ones: a, _1
    return type(name, (plain,), {"__slots__": (), "__reduce__": partialmethod(_reduced, name, fields)})


def _reduced(row: tuple[Any, ...], name: str, fields: tuple[str, ...]) -> tuple[Any, ...]:
    return _row, (name, fields, tuple(row))


def _row(name: str, fields: tuple[str, ...], items: tuple[Any, ...]) -> Any:
    """An instance from its pickled form."""
    return _namedtuple(name, fields)._make(items)


def _new_dict(node: Branch, items: list[tuple[Any, Any]]) -> dict[Any, Any]:
    if node.kind != "odict":
        made: dict[Any, Any] = TABLE_MAKERS[node.kind](items)
        return made
    ordered = OrderedDict(items)
    if isinstance(node.metadata, dict):
        metadata = OrderedDict((name, dict(entry)) for name, entry in node.metadata.items())
        ordered._metadata = metadata  # type: ignore[attr-defined]
    return ordered


class _Putting:
    """One walk over both trees."""

    def __init__(self, target: Target, arrays: dict[int, Array], flat: FlatState) -> None:
        self._target, self._arrays, self._flat = target, arrays, flat
        self._loaded: list[str] = []  # paths of the objects that have loaded their state
        self._offsets: dict[int, torch.Tensor] = {}
        self._casts: set[int] | None = None  # addresses of the live tensors of another dtype, once asked for

    def node(self, saved: Node, live: Node, path: Path, *, copy: bool) -> Any:
        """``copy``: leave live containers unchanged and return new ones: an object may use one at several places."""
        if isinstance(saved, RankLocal):
            return self._live_item(live)
        if self._target.replaced and exact(path) in self._target.replaced:
            return build(self._target, self._arrays, saved)
        if is_lacking(saved, live, self._target.structure.types):
            created = build(self._target, self._arrays, saved)
            return self._live_item(live) if created is DROPPED else created
        saved, live = meet(saved, live, self._target.values)
        if isinstance(saved, ArrayLeaf):
            assert isinstance(live, (ArrayLeaf, ShardedLeaf))
            return self._live_item(live)
        if isinstance(saved, ValueLeaf):
            value = self._target.values[saved.index]
            if value is DROPPED:
                return self._live_item(live)
            assert isinstance(live, ValueLeaf)
            return value if copy else fill(live.value, value)
        assert isinstance(live, Branch) and isinstance(saved, Branch)
        if is_composite(saved):
            return self._composite(saved, live)
        if live.form is not None:
            data = self.node(saved.children[0], live.children[0], path, copy=copy)
            give = remade if copy else put_data
            return give(live.container, live.form, data, lambda: f"path {readable(path)}")
        if saved.kind == "object":
            self._load_object(live.container, self.node(saved.children[0], live.children[0], path, copy=True), path)
            return live.container
        mine = live.by_key()
        merged_items = []
        plain = not self._target.replaced
        for key, name, child in zip(saved.keys, id_keys(saved.keys), saved.children, strict=True):
            inner = mine.get(name)
            if plain and isinstance(child, ArrayLeaf) and isinstance(inner, ArrayLeaf):
                merged_items.append((key, self._flat.data[inner.index]))
            elif inner is not None:
                merged_items.append((key, self.node(child, inner, (*path, key), copy=copy)))
            else:
                created = build(self._target, self._arrays, child)
                if created is not DROPPED or live.kind not in DICTS:
                    merged_items.append((key, None if created is DROPPED else created))
        return _copied(live, merged_items) if copy else _filled(live, merged_items)

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
            _undo_casts(item, state_dict, before, self._is_cast)
        self._loaded.append(readable(path))

    def _changes(self) -> str:
        """What has been changed in the live state so far, for an error."""
        target = self._target
        written = {*target.live, *target.casts, *target.sharded}
        leaves = walk_tree(target.structure.tree, ())
        filled = {readable(path[:1]) for path, leaf in leaves if isinstance(leaf, ArrayLeaf) and leaf.index in written}
        changed = [f"tensors of {some_names(sorted(filled))} may hold the checkpoint's bytes"] if filled else []
        changed += [f"load_state_dict has returned for {some_names(self._loaded)}"] if self._loaded else []
        return "; ".join(changed) or "nothing else has changed"

    def _is_cast(self, parameter: torch.Tensor) -> bool:
        """True if a parameter has another dtype than in the checkpoint, as far as this restore has seen."""
        if self._casts is None:
            arrays = chain.from_iterable(self._target.casts.values())
            self._casts = {data.data_ptr() for data in arrays if isinstance(data, torch.Tensor)}
        return not self._target.casts.keys().isdisjoint(self._target.sharded) or parameter.data_ptr() in self._casts

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

    def _live_item(self, live: Node) -> Any:
        if isinstance(live, ArrayLeaf):
            return self._flat.data[live.index]
        if isinstance(live, ShardedLeaf):
            return live.item
        assert not isinstance(live, (RankLocal, UnmadeLeaf))
        return live.value if isinstance(live, ValueLeaf) else live.container


def _filled(live: Branch, items: list[tuple[Any, Any]]) -> Any:
    """A live container with merged items: itself if it is mutable."""
    container = live.container
    if live.kind in DICTS:
        if id_keys([key for key, _ in items]) != id_keys(list(container)):
            for key in live.keys:
                del container[key]
        for key, item in items:
            if key not in container or container[key] is not item:
                container[key] = item
        return container
    merged = [item for _, item in items]
    if live.kind == "list":
        if len(container) != len(merged) or any(a is not b for a, b in zip(container, merged, strict=True)):
            container[:] = merged
        return container
    if all(a is b for a, b in zip(container, merged, strict=True)):
        return container
    return type(container)._make(merged) if live.kind == "namedtuple" else tuple(merged)


def _copied(live: Branch, items: list[tuple[Any, Any]]) -> Any:
    """A new container like a live one, with merged items."""
    if live.kind == "odict":
        ordered = OrderedDict(items)
        if hasattr(live.container, "_metadata"):  # of a module's state_dict
            ordered._metadata = live.container._metadata  # type: ignore[attr-defined]
        return ordered
    if isinstance(live.container, defaultdict):
        return defaultdict(live.container.default_factory, items)
    if live.kind in DICTS:
        return dict(items) if live.kind == "dict" else Counter(dict(items))
    merged = [item for _, item in items]
    if live.kind == "list":
        return merged
    return type(live.container)._make(merged) if live.kind == "namedtuple" else tuple(merged)


def _undo_casts(
    optimizer: torch.optim.Optimizer,
    state_dict: Any,
    before: Mapping[Any, Any],
    is_cast: Callable[[torch.Tensor], bool],
) -> None:
    """Give optimizer state its saved dtype again: torch casts it to its parameter's dtype on loading.

    torch also makes new containers, and copies of texts. A state_dict() of another form is left alone.
    """
    if not isinstance(state_dict, dict) or not state_dict.keys() >= {"state", "param_groups"}:
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    if len(numbers) != len(parameters):
        return
    by_torch = type(optimizer).load_state_dict is torch.optim.Optimizer.load_state_dict

    def as_saved(restored: Any, loaded: Any, parameter: torch.Tensor, had: bool) -> Any:
        if not isinstance(restored, torch.Tensor):
            return _on_device(restored, parameter.device) if by_torch else loaded
        if not isinstance(loaded, torch.Tensor) or loaded.dtype == restored.dtype:
            return loaded
        return restored.to(loaded.device) if had or not is_cast(parameter) else loaded

    for number, parameter in zip(numbers, parameters, strict=True):
        if number not in state_dict["state"] or parameter not in optimizer.state:
            continue
        restored, loaded, had = state_dict["state"][number], optimizer.state[parameter], before.get(parameter, ())
        if isinstance(restored, dict) and isinstance(loaded, dict):
            for name in restored.keys() & loaded.keys():
                loaded[name] = as_saved(restored[name], loaded[name], parameter, name in had)
        else:  # a tensor, or a list of them
            optimizer.state[parameter] = as_saved(restored, loaded, parameter, parameter in before)


def _on_device(item: Any, device: torch.device) -> Any:
    """The item with its tensors on a device."""
    if isinstance(item, torch.Tensor):
        return item.to(device)
    if type(item) in (list, tuple):
        return type(item)(_on_device(each, device) for each in item)
    if type(item) in (dict, OrderedDict):
        return type(item)((key, _on_device(each, device)) for key, each in item.items())
    if isinstance(item, tuple) and hasattr(item, "_make"):
        return item._make(_on_device(each, device) for each in item)
    return item


def cast_into(pairs: Iterable[tuple[Any, Array]]) -> None:
    """Write restored arrays into live ones of another dtype."""
    for live, restored in pairs:
        if isinstance(live, torch.Tensor):
            with torch.no_grad():
                live.copy_(torch.as_tensor(restored))
        else:
            np.copyto(live, restored, casting="same_kind")
