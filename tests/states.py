"""Nested states compared to the last bit, and cloned into targets for a restore."""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from deeppart.state.paths import readable
from deeppart.state.tensors import SUBCLASS, Parts, assemble, decompose, is_sharded

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
_DICTS = (dict, OrderedDict, Counter, defaultdict)


class Box:
    """The smallest object with ``state_dict()`` and ``load_state_dict()``: it holds one state, as it is.

    Attributes:
        content: the state.
        loads: how often it was loaded into.
    """

    def __init__(self, content: Any = None) -> None:
        self.content = content
        self.loads = 0

    def state_dict(self) -> Any:
        """The content itself, not a copy."""
        return self.content

    def load_state_dict(self, state: Any) -> None:
        """Take a new content."""
        self.content = state
        self.loads += 1


def array_bytes(data: Any) -> bytes:
    """The elements of a tensor or array in C order."""
    if isinstance(data, torch.Tensor):
        plain = data.detach().resolve_conj().resolve_neg().cpu()
        dense = plain.view(_BITS[plain.element_size()]).contiguous()  # torch cannot rearrange every dtype quietly
        return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy().tobytes()
    return np.asarray(data).tobytes()


def difference(expected: Any, found: Any, *, path: str = "", ordered: bool = True) -> str | None:
    """The first difference of two states in structure, types or bits; None if there is none.

    A tensor equals a Parameter with the same dtype, shape and bytes, an object what its ``state_dict()`` gives, a
    namedtuple one of another class with the same name and fields, and a subclass with ``__tensor_flatten__`` a dict of
    what it is made of: these are the liberties that ``load`` takes.

    Args:
        ordered: true if the insertion order of dicts matters.
    """
    here = path or "(root)"
    expected, found = _open(expected), _open(found)
    if isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor):
        mine, theirs = (expected.dtype, expected.shape), (found.dtype, found.shape)
        return _array_difference(expected, found, mine, theirs, here)
    if isinstance(expected, np.ndarray) and isinstance(found, np.ndarray):
        return _array_difference(
            expected, found, (expected.dtype.str, expected.shape), (found.dtype.str, found.shape), here
        )
    if _shape(expected) != _shape(found):
        return f"{here}: expected {_shape(expected)}, found {_shape(found)}"
    if type(expected) in _DICTS:
        return _dict_difference(expected, found, here, ordered)
    if isinstance(expected, (list, tuple)) and not isinstance(expected, torch.Size):
        if len(expected) != len(found):
            return f"{here}: expected {len(expected)} items, found {len(found)}"
        texts = (
            difference(a, b, path=f"{path}/{i}", ordered=ordered)
            for i, (a, b) in enumerate(zip(expected, found, strict=True))
        )
        return next((text for text in texts if text), None)
    mine, theirs = value_bits(expected), value_bits(found)
    return None if mine == theirs else f"{here}: expected {mine!r:.200}, found {theirs!r:.200}"


def _open(item: Any) -> Any:
    while not isinstance(item, type) and callable(getattr(item, "state_dict", None)):
        item = item.state_dict()
    parts = _parts(item)
    if parts is None:
        return item
    return parts.items if parts.kind == SUBCLASS else {parts.kind: parts.items}


def _parts(item: Any) -> Parts | None:
    """The components of a tensor that is made of others."""
    return decompose(item, "") if isinstance(item, torch.Tensor) and not is_sharded(item) else None


def _shape(item: Any) -> Any:
    """The shape of a container or value, without its content."""
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item).__name__, item._fields
    return type(item)


def _array_difference(expected: Any, found: Any, mine: Any, theirs: Any, here: str) -> str | None:
    if mine != theirs:
        return f"{here}: expected {mine}, found {theirs}"
    one, other = array_bytes(expected), array_bytes(found)
    if one == other:
        return None
    first = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    pair = f"{one[first : first + 8]!r}, {other[first : first + 8]!r}"
    return f"{here}: bytes differ from byte {first} of {len(one)}: {pair}"


def _dict_difference(expected: Any, found: Any, here: str, ordered: bool) -> str | None:
    mine, theirs = [value_bits(key) for key in expected], [value_bits(key) for key in found]
    if (mine != theirs) if ordered else (sorted(map(repr, mine)) != sorted(map(repr, theirs))):
        return f"{here}: expected keys {mine!r:.300}, found {theirs!r:.300}"
    texts = (
        difference(expected[key], found[key], path=f"{here}/{readable((key,))}", ordered=ordered) for key in expected
    )
    return next((text for text in texts if text), None)


def value_bits(value: Any) -> Any:
    """A small value, or a dict key, as something whose equality is exact: -0.0 is not 0.0, True is not 1."""
    if type(value) is tuple:
        return (tuple, *(value_bits(item) for item in value))
    if isinstance(value, np.generic):
        return type(value), value.dtype.str, value.tobytes()
    if type(value) is float:
        return float, struct.pack("<d", value)
    if type(value) is complex:
        return complex, struct.pack("<dd", value.real, value.imag)
    if type(value) is int:
        return int, hex(value)
    return type(value), value


def blank(state: Any) -> Any:
    """A live state of the same structure with other contents: zeroed arrays, the value 0, nothing tied.

    What a restore into it must bring back is all of ``state``.
    """
    if _parts(state) is not None:
        return _zeroed(state)
    if isinstance(state, torch.Tensor):
        return torch.zeros(state.numel() * state.element_size(), dtype=torch.uint8).view(state.dtype).view(state.shape)
    if isinstance(state, np.ndarray):
        return np.zeros(state.shape, dtype=state.dtype)
    if type(state) in _DICTS:
        return type(state)({key: blank(item) for key, item in state.items()})
    if isinstance(state, tuple) and hasattr(state, "_make"):
        return type(state)._make(blank(item) for item in state)
    if type(state) in (list, tuple):
        return type(state)(blank(item) for item in state)
    if isinstance(state, Box):
        return Box(blank(state.content))
    return 0


def _zeroed(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that is made of others, with zeros for elements."""
    parts = _parts(tensor)
    if parts is not None and parts.kind != SUBCLASS:
        items = {key: item.clone() if isinstance(item, torch.Tensor) else item for key, item in parts.items.items()}
        items["ints" if "ints" in items else "values"].zero_()
        made: torch.Tensor = assemble(parts.kind, items)
        return made
    copied = tensor.detach().clone()
    _zero(copied)
    return copied


def _zero(tensor: torch.Tensor) -> None:
    parts = _parts(tensor)
    for item in [tensor] if parts is None else parts.items.values():
        if isinstance(item, torch.Tensor):
            item.zero_() if parts is None else _zero(item)


def arrays(state: Any) -> Iterator[Any]:
    """Every tensor and array of a state, in insertion order; shared ones as often as they occur."""
    state = _open(state)
    if isinstance(state, (torch.Tensor, np.ndarray)):
        yield state
    elif isinstance(state, dict):
        for item in state.values():
            yield from arrays(item)
    elif isinstance(state, Sequence) and not isinstance(state, (str, bytes)):
        for item in state:
            yield from arrays(item)
