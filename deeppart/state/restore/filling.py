"""Putting a saved run into the live one: every live list and dict in it stays the object that it is.

What has another kind of container in its place, or none, is replaced. The order of a dict's entries is the saved one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, compress
from typing import Any

import numpy as np
import torch

from deeppart.state.tree.runs import CONTAINERS, SEQUENCES, TABLES, holds_containers, make_run, same_leaf_value
from deeppart.state.tree.values import MUTABLE, fresh, put_in


def fill(live: Any, saved: Any) -> Any:
    """The object to put in the place of ``live`` so that ``saved`` is there: ``live`` itself, if it can change."""
    if type(live) in MUTABLE and type(live) is type(saved):
        return put_in(live, saved)
    if not _takes(live, saved):
        return saved
    if isinstance(live, tuple):
        if not holds_containers(saved):
            return live if same_leaf_value(live, saved) else saved
        items = tuple([_filled_item(old, new) for old, new in zip(live, saved, strict=False)]) + saved[len(live) :]
        same = len(items) == len(live) and all(a is b for a, b in zip(live, items, strict=True))
        return live if same else items
    level = [(live, saved)]
    while level:
        level = _fill_level(level)
    return live


def detached(item: Any) -> Any:
    """A copy of containers and arrays, to put into live ones that may be, or hold, some of these."""
    if isinstance(item, torch.Tensor):
        return item.detach().clone()
    if isinstance(item, np.ndarray):
        return item.copy()
    kind = type(item)
    if kind in SEQUENCES:
        return kind(map(detached, item))
    if kind in TABLES:
        return make_run(TABLES[kind], item, map(detached, item.values()))
    return fresh(item)


def places(live: Any, saved: Any) -> Iterator[tuple[Any, Any]]:
    """Every live list or dict that :func:`fill` fills, and what with."""
    level = [(live, saved)] if _takes(live, saved) else []
    while level:
        yield from (pair for pair in level if type(pair[1]) is not tuple)
        if not _rows(new for _, new in level):
            return
        level = [
            pair
            for old, new in level
            if holds_containers(new)
            for pair in zip(_live_items(old, new), _items(new), strict=False)
            if _takes(*pair)
        ]


def same_where_fixed(live: Any, saved: Any) -> bool:
    """True if nothing would change that is only in tuples."""
    if not isinstance(saved, tuple) or not isinstance(live, tuple) or not holds_containers(saved):
        return _takes(live, saved) if type(saved) in CONTAINERS - {tuple} else same_leaf_value(saved, live)
    return len(live) == len(saved) and all(map(same_where_fixed, live, saved))


def _fill_level(level: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Fill lists and dicts; returns those within them that are still to be filled, and what with.

    Level by level, because of many thousands of rows hardly any has to be looked into: they are all flat.
    """
    rows = _rows(new for _, new in level)
    if not rows:
        for live, saved in level:
            _put(live, saved)
        return []
    are_nested = bool(_rows(rows))
    later: list[tuple[Any, Any]] = []
    for live, saved in level:
        if not holds_containers(saved):
            _put(live, saved)
            continue
        items = []
        for old, new in zip(_live_items(live, saved), _items(saved), strict=False):
            kind = type(new)
            if kind not in CONTAINERS or (kind is tuple and not are_nested):
                items.append(new)
            elif kind is tuple:
                items.append(_filled_item(old, new))
            elif _takes(old, new):
                items.append(old)
                later.append((old, new))
            else:
                items.append(new)
        _put(live, dict(zip(saved, items, strict=True)) if isinstance(saved, dict) else items + saved[len(live) :])
    return later


def _filled_item(live: Any, saved: Any) -> Any:
    """Like :func:`fill`, but a tuple of small values is not compared."""
    return saved if type(saved) is tuple and not holds_containers(saved) else fill(live, saved)


def _put(live: Any, contents: Any) -> None:
    if type(live) is list:
        live[:] = contents
        return
    live.clear()
    if type(live) is OrderedDict:
        live.update(contents)
    else:
        dict.update(live, contents)  # a Counter's own would add


def _takes(live: Any, saved: Any) -> bool:
    """True if a live container can hold what a saved one does."""
    kind = type(saved)
    return kind in CONTAINERS and (type(live) is kind if kind in SEQUENCES else type(live) in TABLES)


def _rows(containers: Iterable[Any]) -> list[Any]:
    """The containers in containers."""
    items = list(chain.from_iterable(map(_items, containers)))
    if CONTAINERS.isdisjoint(map(type, items)):
        return []
    return list(compress(items, map(CONTAINERS.__contains__, map(type, items))))


def _live_items(live: Any, saved: Any) -> Iterable[Any]:
    """The live items in the places of the saved items, None where there is nothing; a sequence as it is."""
    return map(live.get, saved) if isinstance(live, dict) else live


def _items(container: Any) -> Collection[Any]:
    items: Collection[Any] = container.values() if isinstance(container, dict) else container
    return items
