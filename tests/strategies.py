"""Hypothesis strategies for states: every leaf type and container that deeppart stores, with any bits in them."""

from __future__ import annotations

import copy
import struct
from collections import Counter, OrderedDict, namedtuple
from typing import Any

import hypothesis.strategies as st
import numpy as np
import torch

from deeppart.state.tensors import TORCH_DTYPES
from deeppart.state.tree import LEAST_ENTRIES, LEAST_ITEMS, LEAST_ROWS
from tests.states import Box

_NUMBERS = ("?", "i1", "<i2", ">i4", "<u8", ">u2", "f2", "<f4", ">f8", "g", "<c8", ">c16", "<M8[ns]", ">m8[s]")
_TEXTS = ("S1", "S3", "<U1", "<U2", ">U5")
_FIELD_NAMES = ("alpha", "b", "c_3", "größe")

#: Any text, lone surrogates and NUL included.
texts = st.text(st.characters(exclude_categories=()), max_size=6)
#: Any float by its bits: every NaN payload, both zeros, subnormals.
floats = st.binary(min_size=8, max_size=8).map(lambda data: struct.unpack("<d", data)[0]) | st.floats()
_keys_apart_from_tuples = st.one_of(
    texts,
    st.integers(),
    st.booleans(),
    st.none(),
    st.binary(max_size=4),
    st.floats(allow_nan=False),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
keys = _keys_apart_from_tuples | st.tuples(_keys_apart_from_tuples, _keys_apart_from_tuples)


@st.composite
def _shapes(draw: st.DrawFn) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.integers(0, 4), max_size=3)))


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """A dense tensor of any storable dtype, any shape up to 4x4x4, any bits, contiguous or not."""
    dtype = TORCH_DTYPES[draw(st.sampled_from(sorted(TORCH_DTYPES)))]
    shape = draw(_shapes())
    spread = draw(st.integers(1, 2))  # 2: every other element of a larger tensor
    count = int(np.prod(shape, dtype=np.int64)) * spread
    data = bytearray(draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize)))
    if dtype is torch.bool:
        data = bytearray(byte & 1 for byte in data)
    flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)
    tensor = flat.view(dtype)[::spread].view(shape) if spread == 1 else flat.view(dtype).view(*shape, 2)[..., 1]
    return tensor.permute(tuple(reversed(range(tensor.ndim)))) if draw(st.booleans()) else tensor


@st.composite
def numpy_arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """An array of any storable dtype and byte order, contiguous or not."""
    shape = draw(_shapes())
    name = draw(st.sampled_from(_NUMBERS + _TEXTS))
    dtype = np.dtype(name)
    count = int(np.prod(shape, dtype=np.int64))
    if name in _TEXTS:
        alphabet = st.characters(max_codepoint=0x7F) if dtype.kind == "S" else st.characters()
        items = draw(st.lists(st.text(alphabet, max_size=5), min_size=count, max_size=count))
        array = np.array(items, dtype=dtype).reshape(shape)
    else:
        data = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
        if name == "?":
            data = bytes(byte & 1 for byte in data)
        array = np.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
    return array.T if draw(st.booleans()) else array


@st.composite
def numpy_scalars(draw: st.DrawFn) -> np.generic:
    """A numpy scalar of any storable dtype."""
    dtype = np.dtype(draw(st.sampled_from(_NUMBERS)))
    data = draw(st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize))
    if dtype.kind == "b":
        data = bytes(byte & 1 for byte in data)
    scalar: np.generic = np.frombuffer(data, dtype=dtype)[0]
    return scalar


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 64), 1 << 64).map(lambda number: number << 5000),
    floats,
    st.tuples(floats, floats).map(lambda parts: complex(*parts)),
    texts,
    st.binary(max_size=20),
    st.sampled_from([torch.float32, torch.float8_e5m2, torch.qint8, torch.uint16]),
    st.sampled_from([torch.device("cpu"), torch.device("cuda:1"), torch.device("meta")]),
    st.lists(st.integers(0, 1 << 62), max_size=3).map(torch.Size),
    numpy_scalars(),
)

leaves = st.one_of(tensors(), numpy_arrays(), values)


@st.composite
def runs(draw: st.DrawFn) -> Any:
    """A container of small values that is saved as one value, or one that is a little too short for that."""
    kinds = [st.integers(), st.integers(-200, 200), floats, texts, st.booleans(), st.binary(max_size=5), values]
    kinds.append(st.binary(min_size=2, max_size=2).map(lambda data: np.frombuffer(data, dtype=np.float16)[0]))
    items = draw(st.lists(draw(st.sampled_from(kinds)), min_size=LEAST_ITEMS - 2, max_size=3 * LEAST_ITEMS))
    if draw(st.booleans()):
        return _nested(items, draw(st.lists(st.integers(0, 5), min_size=1, max_size=4)))
    if draw(st.booleans()):
        return items if draw(st.booleans()) else tuple(items)
    count = draw(st.integers(LEAST_ENTRIES - 1, LEAST_ENTRIES + 3))
    names: list[list[Any]] = [list(range(count)), [str(place) for place in range(count)]]
    names += [[(place, "x") for place in range(count)], [place / 7 for place in range(count)]]
    chosen = draw(st.sampled_from(names))
    table = {name: items[place % len(items)] for place, name in enumerate(chosen)}
    table |= draw(st.dictionaries(keys, values, max_size=3))
    kinds_of_dict: list[Any] = [dict, OrderedDict, Counter]
    return draw(st.sampled_from(kinds_of_dict))(table)


def _nested(items: list[Any], forms: list[int]) -> list[Any]:
    """Rows of several forms, just enough for one value or one too few."""
    rows: list[Any] = [
        items[:3],
        tuple(items[:2]),
        {"a": items[0], "b": [items[1]]},
        {tuple(map(str, items[2:4])): 1},
        items[0],
        [{}],
    ]
    count = LEAST_ROWS - forms[0] % 2
    return [copy.deepcopy(rows[forms[place % len(forms)]]) for place in range(count)]


def _namedtuple_of(items: list[Any]) -> Any:
    return namedtuple("Drawn", _FIELD_NAMES[: len(items)])(*items)


def states(max_leaves: int = 12) -> st.SearchStrategy[dict[str, Any]]:
    """A dict holding any nesting of every container kind over every leaf type; nothing is tied on purpose."""

    def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        dicts = st.dictionaries(keys, children, max_size=4)
        lists = st.lists(children, max_size=4)
        return st.one_of(
            dicts,
            dicts.map(OrderedDict),
            st.dictionaries(keys, st.integers(-5, 5), max_size=3).map(Counter),
            lists,
            lists.map(tuple),
            lists.map(_namedtuple_of),
            children.map(Box),
            runs(),
        )

    return st.fixed_dictionaries({"state": st.recursive(leaves, containers, max_leaves=max_leaves)})
