"""DCP's flattening of a state into named items, and the inverse.

DCP flattens dicts, whose keys become strings, and lists that contain a tensor or a dict at any depth. Everything else
is one item, a tensor or a pickled value; its name is its path, joined by dots
(torch/distributed/checkpoint/_traverse.py). :class:`deeppart.interop.dcp.StorageWriter` saves states nested this way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

import torch

from deeppart.config import LAST_STEP
from deeppart.errors import ConfigError, DeeppartError, StructureMismatchError, UnsupportedLeafError
from deeppart.extension import readable
from deeppart.interop.dcp.metadata import Keys

#: Key in an optimizer's ``state_dict()``.
GROUPS = "param_groups"
#: Size limit of parameter ids: Python refuses to format integers with thousands of digits.
_MAX_ID_BITS = 64
_SMALL = frozenset({int, float, bool, str, bytes, type(None), complex})


class Item(NamedTuple):
    """An item of a state as DCP flattens it."""

    path: Keys
    #: Of the global tensor; None for other items.
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """DCP's name of the item."""
        return ".".join(map(str, self.path))


class DcpState(NamedTuple):
    """A state as DCP nests it, and its items."""

    #: Dicts and lists; keys are strings, except parameter ids of optimizers.
    tree: dict[str | int, Any]
    items: tuple[Item, ...]


def dcp_state(state: Mapping[Any, Any]) -> DcpState:
    """Convert a state that was passed to ``dcp.async_save``."""
    return unflatten((path, value) for path, _, value in walk(state))


def unflatten(flat: Iterable[tuple[Keys, Any]]) -> DcpState:
    """Convert the items of a state that DCP has flattened."""
    pairs = list(flat)
    items = [_item(value, path) for path, value in pairs]
    index_by_name(items)
    return DcpState(nest(pairs, lambda path: _name_conflict(Item(path)), fill=True), tuple(items))


class _Node(dict[str | int, Any]):
    """An inner container, as opposed to a value that is a dict."""


def nest(items: Iterable[tuple[Keys, Any]], conflict: Callable[[Keys], DeeppartError], *, fill: bool = False) -> Any:
    """Nest items by their paths; ``conflict`` makes the error for conflicting paths.

    DCP has no names for empty dicts. With ``fill``, missing list elements become empty dicts, and one is appended to a
    list that DCP would not have flattened without it. Otherwise lists hold the existing elements only.
    """
    root = _Node()
    for path, item in items:
        node: Any = root
        for key in path[:-1]:
            node = node.setdefault(key, _Node())
            if not isinstance(node, _Node):
                raise conflict(path)
        if path[-1] in node:
            raise conflict(path)
        node[path[-1]] = item
    return _to_containers(root, (), conflict, fill)


def _to_containers(node: _Node, path: Keys, conflict: Callable[[Keys], DeeppartError], fill: bool) -> Any:
    found = {
        key: _to_containers(child, (*path, key), conflict, fill) if isinstance(child, _Node) else child
        for key, child in node.items()
    }
    indices = [key for key in found if isinstance(key, int)]
    if not indices:
        return _with_int_ids(found)
    if len(indices) < len(found) or not path:
        raise conflict(path)
    if not fill:
        return [found[index] for index in sorted(indices)]
    filled = [found.get(index, {}) for index in range(max(indices) + 1)]
    return [*filled, {}] if is_one_item(filled) else filled


def _with_int_ids(found: dict[str | int, Any]) -> dict[str | int, Any]:
    """Convert an optimizer's parameter ids, which DCP has made strings, back to integers.

    ``Optimizer.load_state_dict`` silently ignores states whose keys are strings.
    """
    groups, state = found.get(GROUPS), found.get("state")
    if found.keys() == {"state", GROUPS} and isinstance(groups, list) and isinstance(state, dict):
        params = [group.get("params") for group in groups if isinstance(group, dict)]
        ints = [each for ids in params if isinstance(ids, list) for each in ids if type(each) is int]
        ids = {str(each): each for each in ints if each.bit_length() < _MAX_ID_BITS}
        found["state"] = {ids.get(key, key): item for key, item in state.items()}
    return found


def is_one_item(value: Any) -> bool:
    """True unless DCP flattens the value; the value is not a dict."""
    return not isinstance(value, list) or not any(
        isinstance(each, Mapping) or _is_tensor(each) or (isinstance(each, list) and not is_one_item(each))
        for each in value
    )


def _is_tensor(item: Any) -> bool:
    """True for a tensor, and for its placeholder in a :class:`deeppart.extension.Step`."""
    return isinstance(item, torch.Tensor) or getattr(item, "is_tensor", False) is True


def _item(value: Any, path: Keys) -> Item:
    if isinstance(value, torch.Tensor):
        if is_dense(value) or hasattr(value, "__create_chunk_list__") or hasattr(value, "local_shards"):
            return Item(path, value.dtype, tuple(value.shape))
    elif type(value) not in _SMALL and callable(getattr(value, "load_state_dict", None)):
        raise UnsupportedLeafError(
            f"DCP would pickle a nested {type(value).__name__} instead of calling its state_dict()",
            expected="objects with a state_dict() at the top level only",
            where=f"path {readable(path)}",
            todo="save its state_dict() instead, or move the object to the top level",
        )
    return Item(path)


def is_dense(tensor: torch.Tensor) -> bool:
    """True for a plain strided tensor."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return plain and not (tensor.is_quantized or tensor.is_meta or tensor.is_nested)


def index_by_name(items: Iterable[Item], where: str = "") -> dict[str, Item]:
    """Items by DCP's names; raises StructureMismatchError if two names are equal."""
    found: dict[str, Item] = {}
    for item in items:
        if item.name in found:
            raise _name_conflict(item, where)
        found[item.name] = item
    return found


def _name_conflict(item: Item, where: str = "") -> StructureMismatchError:
    return StructureMismatchError(
        f"two items of the state have the same DCP name, {item.name}",
        expected="keys that differ when converted to strings and joined by dots",
        where=f"{where}{', ' if where else ''}path {readable(item.path)}",
        todo="rename one of the two keys",
    )


def step_of(checkpoint_id: object) -> int:
    """The step that a ``checkpoint_id`` names: a number, or a name that ends in one ("ckpt/step_100")."""
    text: Any = checkpoint_id
    if isinstance(text, (str, os.PathLike)):
        digits = re.search(r"[0-9]+\Z", PurePath(os.fspath(text)).name)
        text = int(digits[0]) if digits else None
    elif isinstance(text, bool) or not hasattr(text, "__index__"):
        text = None
    if text is None or not 0 <= int(text) < LAST_STEP:
        raise ConfigError(
            "impossible checkpoint_id for deeppart's StorageWriter and StorageReader",
            expected='a step number, or a name that ends in one: 100, "step_100", "run/checkpoint-100"',
            found=repr(checkpoint_id),
            todo="omit it to save the next step, or to load the newest",
        )
    return int(text)


def walk(value: Any, path: Keys = (), keys: tuple[Any, ...] = ()) -> Iterator[tuple[Keys, tuple[Any, ...], Any]]:
    """The items of a state: DCP's path, the original keys, and the value."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from walk(each, (*path, str(key)), (*keys, key))
    elif isinstance(value, list) and not is_one_item(value):
        for index, each in enumerate(value):
            yield from walk(each, (*path, index), (*keys, index))
    else:
        yield path, keys, value
