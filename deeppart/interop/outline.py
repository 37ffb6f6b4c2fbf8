"""A checkpoint's state for the export writers, with meta tensors as placeholders for its leaves.

Meta tensors have no elements, so a state of any size fits. Composite tensors need their components, which are read and
held in memory.
"""

from __future__ import annotations

import enum
import io
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from deeppart.errors import StateError, UnsupportedLeafError
from deeppart.extension import Content, readable
from deeppart.types import SavedMember

Path = tuple[Any, ...]
#: The largest int that torch unpickles: 255 bytes with its sign.
_MAX_INT_BITS = 255 * 8 - 1
#: Types that torch.load(weights_only=True) accepts as they are.
_PLAIN = (*(int, float, bool, complex, str, bytes, bytearray, type(None)), torch.dtype, torch.device, torch.Size)
_NAMES = "float64 float32 float16 complex128 complex64 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool".split()
#: numpy dtype -> name of the equivalent torch dtype.
_DTYPES = {np.dtype(name).newbyteorder("<").str: name for name in _NAMES}

# Remarks about replaced items.
_NAMEDTUPLES = "namedtuples are written as tuples"
_SCALARS = "numpy scalars are written as Python numbers"
_OBJECTS = "objects are written as the dicts, lists or bytes of their data"
_MEMBERS = "enum members are written as their values"
_STRINGS = "paths, times and similar values are written as strings"


@dataclass(slots=True)
class Outline:
    """The state as :func:`deeppart.load` would return it, with plain containers and values, and placeholders."""

    state: Any = None
    #: id() of a placeholder -> its leaf number.
    leaves: dict[int, int] = field(default_factory=dict)
    #: One line for each kind of difference from the checkpoint.
    remarks: list[str] = field(default_factory=list)


def outline(content: Content) -> Outline:
    """Build the outline; only components of composite tensors are read."""
    made = Outline()
    components = sorted({row.leaf for row in content.rows() if row.leaf is not None and row.composite})
    arrays: dict[int, Any] = {}
    for leaf in content.leaves.difference(components):
        dtype = getattr(torch, torch_dtype_name(content, leaf))
        arrays[leaf] = torch.empty(content.types[leaf].shape, dtype=dtype, device="meta")
        made.leaves[id(arrays[leaf])] = leaf
    arrays |= dict(content.read(components))
    state, objects = content.state(arrays)
    simplifier = _Simplifier(objects)
    made.state = simplifier.simplify(state, ())
    made.remarks += simplifier.remarks()
    if components:
        made.remarks.append("composite tensors were held in memory")
    return made


def torch_dtype_name(content: Content, leaf: int) -> str:
    """The name of the torch dtype for a leaf's elements."""
    kind = content.types[leaf]
    if kind.kind == "torch":
        return kind.dtype
    name = _DTYPES.get(np.dtype(kind.dtype).newbyteorder("<").str)
    if name is None:
        raise StateError(
            "torch has no dtype for a numpy array",
            expected="numbers of at most 16 bytes",
            found=str(kind),
            where=f"path {content.path_of(leaf)}",
            todo="leave it out (--keys), or export to HDF5, which supports all numpy dtypes",
        )
    return name


def arrays_remark(content: Content) -> tuple[str, ...]:
    """A remark that names the numpy arrays, if there are any."""
    found = [content.path_of(leaf) for leaf in sorted(content.leaves) if content.types[leaf].kind == "numpy"]
    return (f"numpy arrays are written as tensors: {first_names(found)}",) if found else ()


def first_names(names: Sequence[str], limit: int = 4) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


class _Simplifier:
    """Replaces containers and values that ``torch.load(weights_only=True)`` rejects."""

    def __init__(self, objects: list[str]) -> None:
        self._replaced = {_NAMEDTUPLES: list[str](), _SCALARS: [], _OBJECTS: objects, _MEMBERS: [], _STRINGS: []}

    def remarks(self) -> list[str]:
        """One line for each kind of replacement."""
        return [f"{what}: {first_names(names)}" for what, names in self._replaced.items() if names]

    def simplify(self, item: Any, path: Path) -> Any:
        """The item to write."""
        kind = type(item)
        if kind in (dict, OrderedDict, Counter):
            made: Any = kind({self._key(key, path): self.simplify(each, (*path, key)) for key, each in item.items()})
            if isinstance(made, OrderedDict) and hasattr(item, "_metadata"):
                made._metadata = item._metadata  # type: ignore[attr-defined]
            return made
        if kind is defaultdict:  # its factory cannot be written
            return self._replace(_OBJECTS, dict(item), path)
        if kind is not torch.Size and isinstance(item, (list, tuple)):
            if kind not in (list, tuple):
                self._replaced[_NAMEDTUPLES].append(readable(path))
            items = [self.simplify(each, (*path, index)) for index, each in enumerate(item)]
            return items if kind is list else tuple(items)
        if isinstance(item, np.generic):
            return self._scalar(item, path)
        if kind not in _PLAIN and not isinstance(item, torch.Tensor):
            return self._library_value(item, path)
        if (fault := _fault(item)) is not None:
            raise _unsupported(fault, path)
        return item

    def _replace(self, what: str, data: Any, path: Path) -> Any:
        self._replaced[what].append(readable(path))
        return self.simplify(data, path)

    def _library_value(self, item: Any, path: Path) -> Any:
        if isinstance(item, SavedMember):
            return self._replace(_MEMBERS, item.value if item.has_value else item.name, path)
        if isinstance(item, enum.Enum):
            return self._replace(_MEMBERS, item.value, path)
        if isinstance(item, io.BytesIO):
            return self._replace(_OBJECTS, item.getvalue(), path)
        if isinstance(item, (set, frozenset)):
            if any(type(each) in (set, frozenset) for each in item):
                raise _unsupported("a set of sets", path)
            return {self._key(self.simplify(each, path), path) for each in item}
        return self._replace(_STRINGS, str(item), path)

    def _scalar(self, item: np.generic, path: Path) -> Any:
        if item.dtype.kind not in "biufcSU" or item.dtype.char in "gG":
            raise _unsupported(f"a {type(item).__module__}.{type(item).__name__}", path)
        self._replaced[_SCALARS].append(readable(path))
        return item.item()

    def _key(self, key: Any, path: Path) -> Any:
        for each in key if type(key) is tuple else (key,):
            fault = "a numpy scalar" if isinstance(each, np.generic) else _fault(each)
            if fault is None and type(each) not in _PLAIN:
                fault = f"an object such as {each}"
            if fault is not None:
                raise _unsupported(f"a dict with {fault} as a key", path)
        return key


def _fault(item: Any) -> str | None:
    """Why torch could not read a value back, or None."""
    if type(item) is str and any("\ud800" <= character <= "\udfff" for character in item):
        return "a string with lone surrogates"
    if type(item) is int and item.bit_length() > _MAX_INT_BITS:
        return f"an int of {item.bit_length()} bits"
    if type(item) is bytes and not item:  # pickle emits a call for them
        return "empty bytes"
    return None


def _unsupported(what: str, path: Path) -> UnsupportedLeafError:
    return UnsupportedLeafError(
        f"the state contains {what}, which torch does not load with weights_only=True",
        where=f"path {readable(path)}",
        todo="leave it out (--keys), or export to HDF5",
    )
