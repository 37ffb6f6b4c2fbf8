"""Restoring into a live state: where every saved leaf goes, checked before anything is touched.

Live tensors and arrays are written in place. What the live state lacks is created: keys of dicts, items of lists,
state of an optimizer that has not stepped. What the checkpoint lacks, or what has another kind, shape or dtype, is an
error that names the path.
"""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from deeppart.errors import LeafMismatchError, StateError, StructureMismatchError
from deeppart.state.flatten import ArrayLeaf, Branch, FlatState, Node, Path, ValueLeaf, readable
from deeppart.state.leaves import Array, LeafType, leaf_type, new_array
from deeppart.state.structure import SavedArray, SavedBranch, SavedNode, SavedValue, Structure, id_key
from deeppart.state.values import decode_value

_DICTS = ("dict", "odict")


class _Dropped:
    """Marks a saved leaf that is not restored (``per_rank="drop"``)."""


DROPPED = _Dropped()


@dataclass(slots=True)
class Target:
    """Where saved leaves go.

    Attributes:
        structure: what was saved.
        types: type of each leaf as this rank is to receive it.
        values: decoded value per value number, or DROPPED.
        live: leaf number -> the live tensor or array it is written into; the others are created.
        dropped: leaf numbers that are not restored.
    """

    structure: Structure
    types: list[LeafType]
    values: list[Any]
    live: dict[int, Array] = field(default_factory=dict)
    dropped: frozenset[int] = frozenset()

    def arrays(self) -> dict[int, Array]:
        """The array of every leaf to restore: the live one, or a new one of the right type. Aliases are not listed."""
        arrays: dict[int, Array] = {}
        for index, kind in enumerate(self.types):
            if index not in self.structure.aliases and index not in self.dropped:
                arrays[index] = self.live[index] if index in self.live else new_array(kind)
        return arrays


def find_targets(target: Target, flat: FlatState) -> None:
    """Match the saved structure with the live state and fill in ``target.live``. Changes nothing live.

    Raises:
        StructureMismatchError: the live state has other containers, or keys and leaves the checkpoint lacks.
        LeafMismatchError: a leaf's kind, shape or dtype differs.
    """
    _Matching(target).node(target.structure.tree, flat.root, (), fixed=True)
    _check_ties(target, flat)


class _Matching:
    def __init__(self, target: Target) -> None:
        self._target = target

    def node(self, saved: SavedNode, live: Node, path: Path, *, fixed: bool) -> None:
        """``fixed``: a changed value cannot be put here, because everything above is a tuple."""
        saved, live = _inside_object(saved, live)
        if isinstance(saved, SavedBranch):
            if not isinstance(live, Branch) or not _same_kind(saved, live):
                raise _kind_error(saved, live, path)
            self._branch(saved, live, path, fixed)
        elif isinstance(saved, SavedArray):
            if not isinstance(live, ArrayLeaf):
                raise _kind_error(saved, live, path)
            self._array(saved.index, live, path)
        else:
            if not isinstance(live, ValueLeaf):
                raise _kind_error(saved, live, path)
            if fixed and not _equal(self._target.values[saved.index], live.value):
                raise StructureMismatchError(
                    "restore cannot replace a value whose containers are all tuples",
                    found=f"{live.value!r:.80} here, {self._target.values[saved.index]!r:.80} in the checkpoint",
                    where=f"path {readable(path)}",
                    todo="put the state into a dict or list",
                )

    def _array(self, index: int, live: ArrayLeaf, path: Path) -> None:
        if index in self._target.dropped:
            return
        expected, found = self._target.types[index], leaf_type(live.data)
        if expected != found:
            raise LeafMismatchError(
                f"a leaf differs between the checkpoint and the live state: {readable(path)}",
                expected=f"{expected} (checkpoint)",
                found=f"{found} (live)",
                where=f"path {readable(path)}",
                todo="build the state as it was when it was saved, or convert what deeppart.load gives",
            )
        self._target.live[index] = live.data

    def _branch(self, saved: SavedBranch, live: Branch, path: Path, fixed: bool) -> None:
        fixed = fixed and saved.kind in ("tuple", "namedtuple")
        if saved.kind == "object":
            _check_module_keys(saved, live, path)
            self.node(saved.children[0], live.children[0], path, fixed=False)
            return
        mine = {id_key(key): child for key, child in zip(live.keys, live.children, strict=True)}
        theirs = {id_key(key): child for key, child in zip(saved.keys, saved.children, strict=True)}
        lacking = [key for key in live.keys if id_key(key) not in theirs]
        if lacking and not (saved.kind == "list" and _only_values(live, len(theirs))):
            raise StructureMismatchError(
                f"the live state has leaves that the checkpoint lacks: {readable((*path, lacking[0]))}",
                expected=f"keys {_some(saved.keys)} (checkpoint)",
                found=f"also {_some(lacking)} (live)",
                where=f"path {readable(path)}",
                todo="remove them from the state given to restore, or restore a checkpoint that has them",
            )
        if saved.kind in ("tuple", "namedtuple") and len(mine) != len(theirs):
            raise _kind_error(saved, live, path)
        for key, child in zip(saved.keys, saved.children, strict=True):
            if id_key(key) in mine:
                self.node(child, mine[id_key(key)], (*path, key), fixed=fixed)


def _check_module_keys(saved: SavedBranch, live: Branch, path: Path) -> None:
    """A module cannot take keys it lacks, nor an optimizer other groups; find out before anything is touched."""
    inner_saved, inner_live = saved.children[0], live.children[0]
    if not isinstance(inner_saved, SavedBranch) or not isinstance(inner_live, Branch):
        return
    if isinstance(live.container, torch.nn.Module):
        extra = [key for key in inner_saved.keys if key not in set(inner_live.keys)]
        if extra:
            raise StructureMismatchError(
                f"the checkpoint has leaves that the live module lacks: {readable((*path, extra[0]))}",
                expected=f"keys {_some(inner_live.keys)} (live {type(live.container).__name__})",
                found=f"also {_some(extra)} (checkpoint)",
                where=f"path {readable(path)}",
                todo="build the module as it was when it was saved",
            )
    if isinstance(live.container, torch.optim.Optimizer):
        shapes = [_group_sizes(inner_saved), _group_sizes(inner_live)]
        if shapes[0] != shapes[1]:
            raise StructureMismatchError(
                f"an optimizer has other parameter groups than in the checkpoint: {readable(path)}",
                expected=f"parameters per group {shapes[0]} (checkpoint)",
                found=f"{shapes[1]} (live)",
                where=f"path {readable(path)}",
                todo="build the optimizer over the same parameters, in the same groups",
            )


def _group_sizes(state_dict: SavedBranch | Branch) -> list[int]:
    """Number of parameters in each group of an optimizer's state_dict."""
    groups = dict(zip(state_dict.keys, state_dict.children, strict=True)).get("param_groups")
    sizes = []
    for group in groups.children if isinstance(groups, (SavedBranch, Branch)) else []:
        if isinstance(group, (SavedBranch, Branch)):
            params = dict(zip(group.keys, group.children, strict=True)).get("params")
            sizes.append(len(params.children) if isinstance(params, (SavedBranch, Branch)) else 0)
    return sizes


def _inside_object(saved: SavedNode, live: Node) -> tuple[SavedNode, Node]:
    """``{"m": model}`` and ``{"m": model.state_dict()}`` hold the same: look through the object on one side."""
    saved_object = isinstance(saved, SavedBranch) and saved.kind == "object"
    live_object = isinstance(live, Branch) and live.kind == "object"
    if saved_object and not live_object:
        assert isinstance(saved, SavedBranch)
        return saved.children[0], live
    if live_object and not saved_object:
        return SavedBranch("object", (None,), (saved,)), live
    return saved, live


def _same_kind(saved: SavedBranch, live: Branch) -> bool:
    return saved.kind == live.kind or (saved.kind in _DICTS and live.kind in _DICTS)


def _only_values(live: Branch, start: int) -> bool:
    """Whether what a live list has beyond ``start`` are small values: the list is then cut to its saved length."""
    return all(isinstance(child, ValueLeaf) for child in live.children[start:])


def _kind_error(saved: SavedNode, live: Node, path: Path) -> StateError:
    leaves = (SavedArray, SavedValue, ArrayLeaf, ValueLeaf)
    kind = LeafMismatchError if isinstance(saved, leaves) and isinstance(live, leaves) else StructureMismatchError
    return kind(
        f"the live state differs from the checkpoint at {readable(path)}",
        expected=f"{_describe(saved)} (checkpoint)",
        found=f"{_describe(live)} (live)",
        where=f"path {readable(path)}",
        todo="build the state as it was when it was saved",
    )


def _describe(node: SavedNode | Node) -> str:
    if isinstance(node, (SavedBranch, Branch)):
        return f"a {node.kind} of {len(node.children)}"
    return "an array" if isinstance(node, (SavedArray, ArrayLeaf)) else "a small value"


def _some(keys: Any) -> str:
    names = [repr(key) for key in keys]
    return ", ".join(names[:6]) + (f" ... ({len(names)} in all)" if len(names) > 6 else "")


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other or (one != one and other != other))


def _check_ties(target: Target, flat: FlatState) -> None:
    """Two saved leaves must not be written into the same live memory: the second would overwrite the first."""
    from deeppart.state.ties import find_aliases

    types = [leaf_type(leaf.data) for leaf in flat.arrays]
    place = {id(data): index for index, data in target.live.items()}
    for index, alias in find_aliases(flat, types).items():
        saved, owner = place.get(id(flat.arrays[index].data)), place.get(id(flat.arrays[alias.owner].data))
        if saved is None or owner is None or _root(target, saved) == _root(target, owner):
            continue
        raise StructureMismatchError(
            "leaves that share memory in the live state were saved as separate leaves",
            found=f"{readable(flat.arrays[index].path)} lies inside {readable(flat.arrays[alias.owner].path)}",
            where=f"path {readable(flat.arrays[index].path)}",
            todo="untie them in the live state, or remove one of them from the state given to restore",
        )


def _root(target: Target, index: int) -> int:
    alias = target.structure.aliases.get(index)
    return index if alias is None else alias.owner


# --- putting it together ----------------------------------------------------------------------------------------------


def tie(target: Target, arrays: dict[int, Array]) -> None:
    """Add the aliases to ``arrays``: created ones as views of their owner, live ones with their owner's bytes."""
    for index, alias in target.structure.aliases.items():
        if index in target.dropped or alias.owner in target.dropped:
            continue
        view = _view(arrays[alias.owner], target.types[index], alias.offset, alias.strides)
        live = target.live.get(index)
        arrays[index] = view if live is None else live
        if isinstance(live, torch.Tensor):
            if live.data_ptr() != view.data_ptr():
                with torch.no_grad():
                    live.copy_(view)
        elif live is not None and live.ctypes.data != view.ctypes.data:
            np.copyto(live, view)


def _view(owner: Array, kind: LeafType, offset: int, strides: tuple[int, ...]) -> Any:
    start = offset // kind.itemsize
    if isinstance(owner, torch.Tensor):
        dtype: torch.dtype = getattr(torch, kind.dtype)
        flat = owner.detach().contiguous().reshape(-1).view(torch.uint8).view(dtype)
        return flat.as_strided(kind.shape, strides, flat.storage_offset() + start)
    elements = np.ascontiguousarray(owner).reshape(-1).view(np.uint8).view(kind.dtype)[start:]
    return np.lib.stride_tricks.as_strided(elements, kind.shape, tuple(stride * kind.itemsize for stride in strides))


def put(target: Target, arrays: dict[int, Array], flat: FlatState) -> Any:
    """Put everything restored into the live containers and objects; returns the root (new only if it is a tuple).

    Raises:
        StateError: an object's ``load_state_dict`` refused.
    """
    return _put(target, arrays, target.structure.tree, flat.root, ())


def build(target: Target, arrays: dict[int, Array], node: SavedNode) -> Any:
    """Build what was saved, without a live counterpart: objects become what their ``state_dict()`` returned."""
    if isinstance(node, SavedArray):
        return DROPPED if node.index in target.dropped else arrays[node.index]
    if isinstance(node, SavedValue):
        return target.values[node.index]
    children = [build(target, arrays, child) for child in node.children]
    if node.kind == "object":
        return children[0]
    if node.kind in _DICTS:
        items = [(key, child) for key, child in zip(node.keys, children, strict=True) if child is not DROPPED]
        return _new_dict(node, items)
    kept = [child for child in children if child is not DROPPED]
    if node.kind == "list":
        return kept
    if node.kind == "namedtuple" and len(kept) == len(children):
        return namedtuple(node.name, node.keys)(*children)
    return tuple(kept)


def _new_dict(node: SavedBranch, items: list[tuple[Any, Any]]) -> dict[Any, Any]:
    if node.kind == "dict":
        return dict(items)
    ordered = OrderedDict(items)
    if isinstance(node.metadata, dict):
        metadata = OrderedDict((name, dict(entry)) for name, entry in node.metadata.items())
        ordered._metadata = metadata  # type: ignore[attr-defined]
    return ordered


def _put(target: Target, arrays: dict[int, Array], saved: SavedNode, live: Node, path: Path) -> Any:
    saved, live = _inside_object(saved, live)
    if isinstance(saved, SavedArray):
        assert isinstance(live, ArrayLeaf)
        return live.data
    if isinstance(saved, SavedValue):
        assert isinstance(live, ValueLeaf)
        value = target.values[saved.index]
        return live.value if value is DROPPED else value
    assert isinstance(live, Branch)
    if saved.kind == "object":
        merged = _put(target, arrays, saved.children[0], live.children[0], path)
        _load_object(live.container, merged, path)
        return live.container
    mine = {id_key(key): child for key, child in zip(live.keys, live.children, strict=True)}
    merged_items = []
    for key, child in zip(saved.keys, saved.children, strict=True):
        if id_key(key) in mine:
            merged_items.append((key, _put(target, arrays, child, mine[id_key(key)], (*path, key))))
        else:
            created = build(target, arrays, child)
            if created is not DROPPED:
                merged_items.append((key, created))
    return _fill(live, merged_items)


def _fill(live: Branch, items: list[tuple[Any, Any]]) -> Any:
    """Put merged items into a live container, in place where it can change."""
    container = live.container
    if live.kind in _DICTS:
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
    return type(container)(*merged) if live.kind == "namedtuple" else tuple(merged)


def _load_object(item: Any, state_dict: Any, path: Path) -> None:
    if isinstance(item, torch.nn.Module) and _is_in_place(item):
        return  # state_dict() gave the parameters themselves, and their bytes are already restored
    try:
        item.load_state_dict(state_dict)
    except Exception as error:
        raise StateError(
            f"load_state_dict of a {type(item).__name__} refused what was restored for it",
            found=f"{type(error).__name__}: {error}",
            where=f"path {readable(path)}",
            todo="tensors of the live state may already hold the checkpoint's bytes: rebuild the state before training",
        ) from error
    if isinstance(item, torch.optim.Optimizer):
        _undo_casts(item, state_dict)


def _is_in_place(module: torch.nn.Module) -> bool:
    """Whether loading would only copy every parameter and buffer onto itself."""
    for child in module.modules():
        kind = type(child)
        if (
            kind.load_state_dict is not torch.nn.Module.load_state_dict
            or kind._load_from_state_dict is not torch.nn.Module._load_from_state_dict
            or kind.get_extra_state is not torch.nn.Module.get_extra_state
            or kind.state_dict is not torch.nn.Module.state_dict
            or kind._save_to_state_dict is not torch.nn.Module._save_to_state_dict
            or child._load_state_dict_pre_hooks
            or child._load_state_dict_post_hooks
            or child._state_dict_hooks
        ):
            return False
    return True


def _undo_casts(optimizer: torch.optim.Optimizer, state_dict: Any) -> None:
    """torch casts optimizer state to its parameter's dtype on loading; the checkpoint's dtype is the exact one."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        for name, restored in state_dict["state"].get(number, {}).items():
            loaded = optimizer.state[parameter].get(name)
            if (
                isinstance(restored, torch.Tensor)
                and isinstance(loaded, torch.Tensor)
                and loaded.dtype != restored.dtype
            ):
                optimizer.state[parameter][name] = restored.to(loaded.device)


def decode_values(structure: Structure, where: str) -> list[Any]:
    """Decode the shared values; per-rank ones are DROPPED until filled in."""
    own = structure.per_rank_values.tolist()
    return [DROPPED if skip else decode_value(value, where) for value, skip in zip(structure.values, own, strict=True)]
