"""Foreign nested states: checks that they are trees, and selection by path globs."""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from deeppart.errors import StructureMismatchError, UnsupportedLeafError, short
from deeppart.state.paths import covers, nearest_globs, readable
from deeppart.state.tree import DEEPEST_NESTING

#: Limit of paths, beside a multiple of the distinct items.
_MAX_PATHS = 1 << 20
_NOTHING = object()


def check_tree(state: Any, where: str) -> None:
    """Check that a state is a tree of limited size.

    With shared containers, a few hundred bytes of a pickle can have an exponential number of paths.
    """
    path_counts: dict[int, int] = {}
    objects, active = 0, {id(state)}
    stack: list[tuple[Any, Iterator[Any]]] = [(state, iter(_items(state)))]
    counts = [1]
    while stack:
        for item in stack[-1][1]:
            objects += 1
            if id(item) in active:
                raise _no_tree("contains itself", where)
            if not _is_container(item):
                counts[-1] += 1
            elif id(item) in path_counts:
                counts[-1] += path_counts[id(item)]
            elif len(stack) > DEEPEST_NESTING:
                raise _no_tree(f"is nested in {DEEPEST_NESTING} others", where)
            else:
                active.add(id(item))
                stack.append((item, iter(_items(item))))
                counts.append(1)
                break
        else:
            done, count = stack.pop()[0], counts.pop()
            active.remove(id(done))
            path_counts[id(done)] = count
            if count > _MAX_PATHS + 4 * objects:
                raise _no_tree(f"has {count:,} paths, but only {objects:,} items", where)
            if counts:
                counts[-1] += count


def _is_container(item: Any) -> bool:
    return (isinstance(item, (dict, list, tuple, deque)) and not isinstance(item, torch.Size)) or _has_attributes(item)


def _has_attributes(item: Any) -> bool:
    return isinstance(item, SimpleNamespace) or type(item) is argparse.Namespace


def _items(item: Any) -> list[Any]:
    if isinstance(item, dict):
        return list(item.values())
    if _has_attributes(item):
        return list(vars(item).values())
    return list(item) if _is_container(item) else []


def _no_tree(what: str, where: str) -> UnsupportedLeafError:
    return UnsupportedLeafError(
        "the containers of a foreign checkpoint are no tree",
        expected="nested dicts, lists and tuples without cycles and with few shared containers",
        found=f"a container that {what}",
        where=where,
        todo="load it with torch if you trust the file, and save the parts that you need",
    )


def choose(state: Any, keys: str | Sequence[str], where: str) -> Any:
    """The part of a nested state that matches path globs, as for :func:`deeppart.load`.

    Args:
        state: nested dicts, lists and tuples.
        keys: path globs.
        where: origin of the state, for messages.

    Raises:
        StructureMismatchError: nothing matches.
        UnsupportedLeafError: the containers are not a tree.

    Example:
        >>> from deeppart.extension import choose
        >>> choose({"model": {"w": 1, "b": 2}, "epoch": 3}, ["model/w"], "here")
        {'model': {'w': 1}}
    """
    check_tree(state, where)
    patterns = [keys] if isinstance(keys, str) else list(keys)
    chosen = _chosen(state, (), patterns)
    if chosen is _NOTHING:
        known = list(map(readable, _paths(state, ())))
        near = dict.fromkeys(other for glob in patterns for other in nearest_globs(glob, known))
        raise StructureMismatchError(
            "nothing in the checkpoint matches the keys",
            expected=f"globs over paths such as {', '.join(near or known[:4])}",
            found=short(keys),
            where=where,
        )
    return chosen


def _chosen(item: Any, path: tuple[Any, ...], patterns: list[str]) -> Any:
    container = _is_container(item)
    is_sequence = container and isinstance(item, (list, tuple))
    if path and covers(readable(path), patterns, container=container):
        return item
    if isinstance(item, dict):
        inner = {key: _chosen(each, (*path, key), patterns) for key, each in item.items()}
        kept = {key: each for key, each in inner.items() if each is not _NOTHING}
        return kept or _NOTHING
    if is_sequence:
        items = [_chosen(each, (*path, index), patterns) for index, each in enumerate(item)]
        return [each for each in items if each is not _NOTHING] or _NOTHING
    return _NOTHING


def _paths(item: Any, path: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    if isinstance(item, dict):
        return [found for key, each in item.items() for found in _paths(each, (*path, key))]
    return [path]
