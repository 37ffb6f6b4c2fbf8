"""Puts a saved value container into the live one, whose lists and dicts stay the same objects.

A container of another kind is replaced. Dict entries get the saved order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch

from deeppart.state.tree import holds_containers, make_container
from deeppart.state.values import CONTAINERS, MUTABLE, SEQUENCES, TABLES, fresh, put_in, same_value


def fill(live: Any, saved: Any) -> Any:
    """The object that replaces ``live`` and has the content of ``saved``: ``live`` itself, if it is mutable."""
    if type(live) in MUTABLE and type(live) is type(saved):
        return put_in(live, saved)
    if not _takes(live, saved):
        return saved
    is_nested = holds_containers(saved)
    if type(saved) is tuple:
        if not is_nested:
            return live if same_value(live, saved) else saved
        made = tuple(_filled(live, saved))
        same = len(made) == len(live) and all(a is b for a, b in zip(live, made, strict=True))
        return live if same else made
    if is_nested:
        items = _filled(live, saved)
        saved = dict(zip(saved, items, strict=True)) if isinstance(saved, dict) else items
    if type(live) is list:
        live[:] = saved
        return live
    live.clear()
    if type(live) is OrderedDict:
        live.update(saved)
    else:
        dict.update(live, saved)  # Counter.update would add
    return live


def _filled(live: Any, saved: Any) -> list[Any]:
    """The saved items, each filled into the live item if that is a list or dict."""
    return [
        fill(old, new) if type(new) in CONTAINERS and (type(new) is not tuple or holds_containers(new)) else new
        for old, new in _pairs(live, saved)
    ]


def _pairs(live: Any, saved: Any) -> Iterator[tuple[Any, Any]]:
    """Pairs of the live item, or None, and the saved item for each key of a saved container."""
    if isinstance(saved, dict):
        return zip(map(live.get, saved), saved.values(), strict=True)
    return zip(chain(live, repeat(None)), saved, strict=False)


def places(live: Any, saved: Any) -> Iterator[tuple[Any, Any]]:
    """Every live list or dict that :func:`fill` fills, with its saved container."""
    if not _takes(live, saved):
        return
    if type(saved) is not tuple:
        yield live, saved
    if holds_containers(saved):
        for old, new in _pairs(live, saved):
            yield from places(old, new)


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
