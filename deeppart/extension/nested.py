"""Nested states that others have saved: walked as trees, and cut to what globs cover."""

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

#: Items of all containers, each counted every time it is referenced: a constant, plus a multiple of the distinct items.
_MOST_PLACES = 1 << 20
_NOTHING = object()


def check_tree(state: Any, where: str) -> None:
    """See that a state can be walked as the tree that its paths are.

    A few hundred bytes of a pickle can have more paths than can be counted: a list that is twice in a list that is
    twice in a third, and so on.
    """
    places: dict[int, int] = {}
    objects, under_way = 0, {id(state)}
    stack: list[tuple[Any, Iterator[Any]]] = [(state, iter(_items(state)))]
    counts = [1]
    while stack:
        for item in stack[-1][1]:
            objects += 1
            if id(item) in under_way:
                raise _no_tree("is in itself", where)
            if not _is_container(item):
                counts[-1] += 1
            elif id(item) in places:
                counts[-1] += places[id(item)]
            elif len(stack) > DEEPEST_NESTING:  # the outermost container is one of a file's own
                raise _no_tree(f"is within {DEEPEST_NESTING} others", where)
            else:
                under_way.add(id(item))
                stack.append((item, iter(_items(item))))
                counts.append(1)
                break
        else:
            done, count = stack.pop()[0], counts.pop()
            under_way.remove(id(done))
            places[id(done)] = count
            if count > _MOST_PLACES + 4 * objects:
                raise _no_tree(f"has {count:,} items, of {objects:,} that there are", where)
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
        "the containers of a foreign checkpoint are no tree whose paths could be walked",
        expected="dicts, lists and tuples inside each other, each in few places",
        found=f"one that {what}",
        where=where,
        todo="load it by torch if you trust the file, and save what is wanted of it",
    )


def choose(state: Any, keys: str | Sequence[str], where: str) -> Any:
    """What globs over paths cover of a nested state, as :func:`deeppart.load` takes them.

    Args:
        state: dicts, lists, tuples and what is in them.
        keys: globs.
        where: the state is from, for messages.

    Raises:
        StructureMismatchError: they cover nothing.
        UnsupportedLeafError: the containers are no tree.

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
            "nothing in the checkpoint matches the keys asked for",
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
        items = [_chosen(each, (*path, place), patterns) for place, each in enumerate(item)]
        return [each for each in items if each is not _NOTHING] or _NOTHING
    return _NOTHING


def _paths(item: Any, path: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    if isinstance(item, dict):
        return [found for key, each in item.items() for found in _paths(each, (*path, key))]
    return [path]
