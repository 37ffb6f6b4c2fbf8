"""How DCP names what is in a state: the keys of a path, joined by dots; and which containers it takes apart.

DCP takes apart dicts, whose keys become texts, and lists in which there is a tensor or a dict at any depth. Everything
else is one item: a tensor, or what it would pickle (torch/distributed/checkpoint/_traverse.py). A state that is saved
through :class:`deeppart.interop.dcp.StorageWriter` is nested as DCP sees it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

import torch

from deeppart.config.arguments import LAST_STEP
from deeppart.errors import ConfigError, StructureMismatchError, UnsupportedLeafError
from deeppart.interop.dcp.loading import numbered
from deeppart.state.tree.leaves import is_plain
from deeppart.state.tree.objects import has_state
from deeppart.state.tree.paths import readable
from deeppart.state.tree.sharded import is_sharded

#: Keys of dicts as texts, and places in lists.
Keys = tuple[str | int, ...]
_SMALL = frozenset({int, float, bool, str, bytes, type(None), complex})


class Item(NamedTuple):
    """Something that DCP has a name for.

    Attributes:
        path: where it stands.
        dtype, shape: of a tensor, of all of it; None of anything else.
    """

    path: Keys
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
    """A state as DCP sees it.

    Attributes:
        tree: dicts with texts for keys, but for numbers of an optimizer's parameters; and lists.
        items: what it names in it.
    """

    tree: dict[str | int, Any]
    items: tuple[Item, ...]


def named(state: Mapping[Any, Any]) -> Named:
    """A state that is given to ``dcp.async_save``."""
    items: list[Item] = []
    tree = _dict(state, (), items)
    _check_names(items)
    return Named(tree, tuple(items))


def nested(flat: Mapping[str, Any], paths: Mapping[str, Keys]) -> Named:
    """A state that a planner of DCP has taken apart."""
    items: list[Item] = []
    root = _Inner()
    for name, value in flat.items():
        path = tuple(paths.get(name, (name,)))
        node: Any = root
        for key in path[:-1]:
            node = node.setdefault(key, _Inner())
            if not isinstance(node, _Inner):
                break
        if not isinstance(node, _Inner) or path[-1] in node:
            raise StructureMismatchError(
                "the plan of a DCP planner contradicts itself",
                found=f"{name}, in what is a value",
                where=f"path {readable(path)}",
            )
        _note(value, path, items)
        node[path[-1]] = value
    return Named(_plain(root), tuple(items))


class _Inner(dict[str | int, Any]):
    """A container that is being filled."""


def _plain(node: _Inner) -> Any:
    """With lists in place of those that have numbers for keys.

    DCP has no name for an empty dict: one was in each place of a list that is missing, and perhaps behind its end. Only
    with it does DCP take a list of small values apart.
    """
    found = {key: _plain(child) if isinstance(child, _Inner) else child for key, child in node.items()}
    if found and all(type(key) is int for key in found):
        items = [found.get(number, {}) for number in range(max(map(int, found)) + 1)]
        return [*items, {}] if is_one(items) else items
    return numbered({str(key): child for key, child in found.items()})


def _dict(state: Mapping[Any, Any], path: Keys, items: list[Item]) -> dict[str | int, Any]:
    found: dict[str | int, Any] = {}
    for key, value in state.items():
        text = key if type(key) is str else str(key)
        if text in found:
            raise _same_name((*path, text))
        found[text] = _item(value, (*path, text), items)
    return found if not ("param_groups" in found and len(found) == 2) else numbered(found)


def _item(value: Any, path: Keys, items: list[Item]) -> Any:
    if isinstance(value, Mapping):
        return _dict(value, path, items)
    if isinstance(value, list) and not is_one(value):
        return [_item(each, (*path, place), items) for place, each in enumerate(value)]
    _note(value, path, items)
    return value


def is_one(value: Any) -> bool:
    """True if DCP does not take a container apart, of those that are no dicts."""
    return not isinstance(value, list) or not any(
        isinstance(each, (torch.Tensor, Mapping)) or (isinstance(each, list) and not is_one(each)) for each in value
    )


def _note(value: Any, path: Keys, items: list[Item]) -> None:
    if isinstance(value, torch.Tensor):
        if is_plain(value) or is_sharded(value):
            items.append(Item(path, value.dtype, tuple(value.shape)))
        else:
            items.append(Item(path))
        return
    if type(value) not in _SMALL and has_state(value):
        raise UnsupportedLeafError(
            f"DCP would pickle a {type(value).__name__}, and load it as that",
            expected="objects with a state_dict() at the outermost level, or what their state_dict() returns",
            where=f"path {readable(path)}",
            todo="put its state_dict() in its place, or the object into the outermost dict",
        )
    items.append(Item(path))


def _check_names(items: Collection[Item]) -> None:
    names = {name_of(item[0]) for item in items}
    if len(names) == len(items):
        return
    seen: set[str] = set()
    for item in items:
        if item.name in seen:
            raise _same_name(item.path)
        seen.add(item.name)


def by_name(items: Iterable[Item], where: str) -> dict[str, Item]:
    """Items by DCP's names."""
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


def walk_values(value: Any, path: Keys) -> Iterator[tuple[Keys, Any]]:
    """What DCP names within small values, which may be containers of such."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from walk_values(each, (*path, str(key)))
    elif isinstance(value, list) and not is_one(value):
        for place, each in enumerate(value):
            yield from walk_values(each, (*path, place))
    else:
        yield path, value
