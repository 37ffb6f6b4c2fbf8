"""Putting a saved value container into the live one: every live list and dict in it stays the object that it is.

What has another kind of container in its place, or none, is replaced. The order of a dict's entries is the saved one.
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
    """The object to put in the place of ``live`` so that ``saved`` is there: ``live`` itself, if it can change."""
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
        dict.update(live, saved)  # a Counter's own would add
    return live


def _filled(live: Any, saved: Any) -> list[Any]:
    """The items of a container in place of those of a live one, of which lists and dicts are filled."""
    return [
        fill(old, new) if type(new) in CONTAINERS and (type(new) is not tuple or holds_containers(new)) else new
        for old, new in _pairs(live, saved)
    ]


def _pairs(live: Any, saved: Any) -> Iterator[tuple[Any, Any]]:
    """The live item, None where there is nothing, and the saved one for each place of a saved container."""
    if isinstance(saved, dict):
        return zip(map(live.get, saved), saved.values(), strict=True)
    return zip(chain(live, repeat(None)), saved, strict=False)


def places(live: Any, saved: Any) -> Iterator[tuple[Any, Any]]:
    """Every live list or dict that :func:`fill` fills, and what with."""
    if not _takes(live, saved):
        return
    if type(saved) is not tuple:
        yield live, saved
    if holds_containers(saved):
        for old, new in _pairs(live, saved):
            yield from places(old, new)


def same_where_fixed(live: Any, saved: Any) -> bool:
    """True if nothing would change that is only in tuples."""
    if not isinstance(saved, tuple) or not isinstance(live, tuple) or not holds_containers(saved):
        return _takes(live, saved) if type(saved) in CONTAINERS - {tuple} else same_value(saved, live)
    return len(live) == len(saved) and all(map(same_where_fixed, live, saved))


def _takes(live: Any, saved: Any) -> bool:
    """True if a live container can hold what a saved one does."""
    kind = type(saved)
    return kind in CONTAINERS and (type(live) is kind if kind in SEQUENCES else type(live) in TABLES)


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
        return make_container(TABLES[kind], item, map(detached, item.values()))
    return fresh(item)
