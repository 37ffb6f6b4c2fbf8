"""DCP's names for the items of a state: the keys of a path, joined by dots; and which containers it flattens.

DCP flattens dicts, whose keys become texts, and lists with a tensor or a dict at any depth. Everything
else is one item: a tensor, or what it would pickle (torch/distributed/checkpoint/_traverse.py). A state that is saved
through :class:`deeppart.interop.dcp.StorageWriter` is nested as DCP sees it.
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

#: Of an optimizer's ``state_dict()``.
GROUPS = "param_groups"
#: Of the numbers of parameters. Python does not write out those of thousands of digits.
_MOST_BITS = 64
_SMALL = frozenset({int, float, bool, str, bytes, type(None), complex})


class Item(NamedTuple):
    """An item with a DCP name, and its path."""

    path: Keys
    #: Of all of a tensor; None of anything else.
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """What DCP calls it."""
        return name_of(self.path)


def name_of(path: Iterable[str | int]) -> str:
    """What DCP calls the item at a path."""
    return ".".join(map(str, path))


class Named(NamedTuple):
    """A state as DCP sees it, and what it names in it."""

    #: Dicts with texts for keys, but for numbers of an optimizer's parameters; and lists.
    tree: dict[str | int, Any]
    items: tuple[Item, ...]


def named(state: Mapping[Any, Any]) -> Named:
    """A state that is given to ``dcp.async_save``."""
    items: list[Item] = []
    tree = _dict(state, (), items)
    by_name(items)
    return Named(tree, tuple(items))


def of_plan(flat: Mapping[str, Any], paths: Mapping[str, Keys]) -> Named:
    """A state as flattened by a planner of DCP."""
    items: list[Item] = []
    pairs = [(tuple(paths.get(name, (name,))), value) for name, value in flat.items()]
    for path, value in pairs:
        _note(value, path, items)
    return Named(nested(pairs, _contradiction_in_plan, fill=True), tuple(items))


def _contradiction_in_plan(path: Keys) -> StructureMismatchError:
    return StructureMismatchError("the plan of a DCP planner contradicts itself", where=f"path {readable(path)}")


class _Inner(dict[str | int, Any]):
    """A container that is being filled; not a value."""


def nested(items: Iterable[tuple[Keys, Any]], refusal: Callable[[Keys], DeeppartError], *, fill: bool = False) -> Any:
    """Dicts and lists of items and their paths; ``refusal``: of paths that contradict each other.

    DCP has no name for an empty dict. With ``fill``, one is put into each place of a list that is missing, and, as DCP
    takes a list of small values apart only with it, behind the end. Otherwise lists have what is there.
    """
    root = _Inner()
    for path, item in items:
        node: Any = root
        for key in path[:-1]:
            node = node.setdefault(key, _Inner())
            if not isinstance(node, _Inner):
                raise refusal(path)
        if path[-1] in node:
            raise refusal(path)
        node[path[-1]] = item
    return _closed(root, (), refusal, fill)


def _closed(node: _Inner, path: Keys, refusal: Callable[[Keys], DeeppartError], fill: bool) -> Any:
    found = {
        key: _closed(child, (*path, key), refusal, fill) if isinstance(child, _Inner) else child
        for key, child in node.items()
    }
    places = [key for key in found if isinstance(key, int)]
    if not places:
        return numbered(found)
    if len(places) < len(found) or not path:
        raise refusal(path)
    if not fill:
        return [found[place] for place in sorted(places)]
    listed = [found.get(place, {}) for place in range(max(places) + 1)]
    return [*listed, {}] if is_one(listed) else listed


def numbered(found: dict[str | int, Any]) -> dict[str | int, Any]:
    """With numbers again for the keys of an optimizer's state, of which DCP makes texts.

    ``load_state_dict`` of an optimizer takes a state whose keys are texts, and uses none of it.
    """
    groups, state = found.get(GROUPS), found.get("state")
    if found.keys() == {"state", GROUPS} and isinstance(groups, list) and isinstance(state, dict):
        listed = [group.get("params") for group in groups if isinstance(group, dict)]
        numbers = {str(each): each for of in listed if isinstance(of, list) for each in of if _is_number(each)}
        found["state"] = {numbers.get(key, key): item for key, item in state.items()}
    return found


def _is_number(each: Any) -> bool:
    return type(each) is int and each.bit_length() < _MOST_BITS


def _dict(state: Mapping[Any, Any], path: Keys, items: list[Item]) -> dict[str | int, Any]:
    found: dict[str | int, Any] = {}
    for key, value in state.items():
        text = key if type(key) is str else str(key)
        if text in found:
            raise _same_name((*path, text))
        found[text] = _item(value, (*path, text), items)
    return numbered(found)


def _item(value: Any, path: Keys, items: list[Item]) -> Any:
    if isinstance(value, Mapping):
        return _dict(value, path, items)
    if isinstance(value, list) and not is_one(value):
        return [_item(each, (*path, place), items) for place, each in enumerate(value)]
    _note(value, path, items)
    return value


def is_one(value: Any) -> bool:
    """True for a container other than a dict that DCP does not flatten."""
    return not isinstance(value, list) or not any(
        isinstance(each, Mapping) or _is_tensor(each) or (isinstance(each, list) and not is_one(each)) for each in value
    )


def _is_tensor(item: Any) -> bool:
    """True for a tensor, and for its stand-in in a step (:class:`deeppart.extension.Step`)."""
    return isinstance(item, torch.Tensor) or getattr(item, "is_tensor", False) is True


def _note(value: Any, path: Keys, items: list[Item]) -> None:
    if isinstance(value, torch.Tensor):
        if is_dense(value) or hasattr(value, "__create_chunk_list__") or hasattr(value, "local_shards"):
            items.append(Item(path, value.dtype, tuple(value.shape)))
        else:
            items.append(Item(path))
        return
    if type(value) not in _SMALL and callable(getattr(value, "load_state_dict", None)):
        raise UnsupportedLeafError(
            f"DCP would pickle a {type(value).__name__}, and load it as that",
            expected="objects with a state_dict() at the outermost level, or what their state_dict() returns",
            where=f"path {readable(path)}",
            todo="put its state_dict() in its place, or the object into the outermost dict",
        )
    items.append(Item(path))


def is_dense(tensor: torch.Tensor) -> bool:
    """True if the elements of a tensor are simply its memory."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return plain and not (tensor.is_quantized or tensor.is_meta or tensor.is_nested)


def by_name(items: Iterable[Item], where: str = "") -> dict[str, Item]:
    """Items by DCP's names, of which no two may be the same."""
    found: dict[str, Item] = {}
    for item in items:
        name = item.name
        if name in found:
            raise _same_name(item.path, where)
        found[name] = item
    return found


def _same_name(path: Keys, where: str = "") -> StructureMismatchError:
    return StructureMismatchError(
        f"DCP calls two items of the state by one name, {name_of(path)}",
        expected="keys that still differ when they are texts, and joined by dots",
        where=f"{where}{', ' if where else ''}path {readable(path)}",
        todo="give one of the two keys another name",
    )


def step_of(checkpoint_id: object) -> int:
    """The step that a ``checkpoint_id`` means: a number, or a name that ends in one ("ckpt/step_100")."""
    text: Any = checkpoint_id
    if isinstance(text, (str, os.PathLike)):
        digits = re.search(r"[0-9]+\Z", PurePath(os.fspath(text)).name)
        text = int(digits[0]) if digits else None
    elif isinstance(text, bool) or not hasattr(text, "__index__"):
        text = None
    if text is None or not 0 <= int(text) < LAST_STEP:
        raise ConfigError(
            "impossible checkpoint_id for deeppart's writer and reader of DCP",
            expected='the number of a step, or a name that ends in one: 100, "step_100", "run/checkpoint-100"',
            found=repr(checkpoint_id),
            todo="leave it out: a save takes the next step, and a load the newest",
        )
    return int(text)


def walk(value: Any, path: Keys = (), keys: tuple[Any, ...] = ()) -> Iterator[tuple[Keys, tuple[Any, ...], Any]]:
    """What DCP names in a state: the path that it has there, the keys, and the item."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from walk(each, (*path, str(key)), (*keys, key))
    elif isinstance(value, list) and not is_one(value):
        for place, each in enumerate(value):
            yield from walk(each, (*path, place), (*keys, place))
    else:
        yield path, keys, value
