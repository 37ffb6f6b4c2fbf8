"""What tells whether two states as scripts have them are the same."""

from __future__ import annotations

import collections
import dataclasses
import io
from typing import Any

import torch

import deeppart


def bits(item: Any) -> Any:
    """Something whose equality is that of types and contents, to any depth."""
    kind = type(item)
    if isinstance(item, torch.Tensor):
        return kind, item.dtype, item.tolist()
    if isinstance(item, dict):
        return kind, [(bits(key), bits(value)) for key, value in item.items()]
    if kind in (set, frozenset):
        return kind, sorted(repr(bits(each)) for each in item)
    if isinstance(item, (list, tuple, collections.deque)):
        made = tuple(map(bits, item))
        return kind, getattr(item, "maxlen", None), made
    if isinstance(item, io.BytesIO):
        return kind, item.getvalue(), item.tell()
    if dataclasses.is_dataclass(item) and not isinstance(item, (type, deeppart.types.SavedMember)):
        slots = {name: getattr(item, name) for name in getattr(kind, "__slots__", ())}
        return kind, bits(dict(sorted({**slots, **getattr(item, "__dict__", {})}.items())))
    if hasattr(item, "__dict__") and kind.__name__ in ("Namespace", "SimpleNamespace"):
        return kind, bits(vars(item))
    return kind, repr(item)
