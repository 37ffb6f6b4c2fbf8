"""A checkpoint's content for writers of other formats: its state with stand-ins for tensors, and torch dtypes.

A stand-in is a meta tensor: it has dtype and shape, and no elements, so that a state of any size can be flattened.
Composite tensors can only be made from their components: those are read, and held in memory.
"""

from __future__ import annotations

import codecs
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
#: Of an int, with its sign in 255 bytes.
_MOST_INT_BITS = 255 * 8 - 1
#: Types that need no stand-in.
_PLAIN = (*(int, float, bool, complex, str, bytes, bytearray, type(None)), torch.dtype, torch.device, torch.Size)
_NAMES = "float64 float32 float16 complex128 complex64 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool".split()
#: numpy's dtypes -> those of torch that have the same elements.
_DTYPES = {np.dtype(name).newbyteorder("<").str: name for name in _NAMES}

# What is written in the place of something else.
_ROWS = "namedtuples are tuples there"
_SCALARS = "numpy scalars are Python's there"
_OBJECTS = "objects are the dicts, lists or bytes of their data there"
_MEMBERS = "members of enums are their values there"
_TEXTS = "paths, times and other such values are texts there"


@dataclass(slots=True)
class Outline:
    """The state of a checkpoint, as :func:`deeppart.load` would give it, with plain containers and values."""

    state: Any = None
    #: Identity of a stand-in -> number of its leaf.
    leaves: dict[int, int] = field(default_factory=dict)
    #: Lines about what is not as in the checkpoint.
    remarks: list[str] = field(default_factory=list)


def outline(content: Content) -> Outline:
    """Make it; nothing is read but what tensors are made of."""
    made = Outline()
    components = sorted({row.leaf for row in content.rows() if row.leaf is not None and row.composite})
    arrays: dict[int, Any] = {}
    for leaf in content.leaves.difference(components):
        dtype = getattr(torch, torch_dtype_name(content, leaf))
        arrays[leaf] = torch.empty(content.types[leaf].shape, dtype=dtype, device="meta")
        made.leaves[id(arrays[leaf])] = leaf
    arrays |= dict(content.read(components))
    state, objects = content.state(arrays)
    plain = _Plain(objects)
    made.state = plain.of(state, ())
    made.remarks += plain.remarks()
    if components:
        made.remarks.append("tensors that are made of others were held in memory")
    return made


def torch_dtype_name(content: Content, leaf: int) -> str:
    """The name of the dtype of torch that has the elements of a leaf."""
    kind = content.types[leaf]
    if kind.kind == "torch":
        return kind.dtype
    name = _DTYPES.get(np.dtype(kind.dtype).newbyteorder("<").str)
    if name is None:
        raise StateError(
            "a numpy array has elements that torch has no dtype for",
            expected="numbers of at most 16 bytes",
            found=str(kind),
            where=f"path {content.path_of(leaf)}",
            todo="leave it out (--keys), or export to HDF5, which has all of numpy's",
        )
    return name


def arrays_remark(content: Content) -> tuple[str, ...]:
    """A line that says which leaves were numpy arrays; none if none was."""
    found = [content.path_of(leaf) for leaf in sorted(content.leaves) if content.types[leaf].kind == "numpy"]
    if not found:
        return ()
    return (f"numpy arrays are tensors there: {some(found)}",)


def some(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


class EmptyBytes:
    """Stands for ``b""``, which pickle makes by a call that torch does not allow; other bytes by one that it does."""

    def __str__(self) -> str:
        return str(b"")

    def __reduce__(self) -> tuple[Any, ...]:
        return codecs.encode, ("", "latin1")


EMPTY_BYTES = EmptyBytes()


class _Plain:
    """Puts plain containers and values in the place of those that ``torch.load(weights_only=True)`` refuses."""

    def __init__(self, objects: list[str]) -> None:
        self._replaced: dict[str, list[str]] = {_ROWS: [], _SCALARS: [], _OBJECTS: objects, _MEMBERS: [], _TEXTS: []}

    def remarks(self) -> list[str]:
        """What was replaced."""
        return [f"{what}: {some(names)}" for what, names in self._replaced.items() if names]

    def of(self, item: Any, path: Path) -> Any:
        """An item as it is written."""
        kind = type(item)
        if kind in (dict, OrderedDict, Counter):
            made: Any = kind({self._key(key, path): self.of(each, (*path, key)) for key, each in item.items()})
            if isinstance(made, OrderedDict) and hasattr(item, "_metadata"):
                made._metadata = item._metadata  # type: ignore[attr-defined]
            return made
        if kind is defaultdict:  # its factory is a function of the script
            return self._replace(_OBJECTS, dict(item), path)
        if kind is not torch.Size and isinstance(item, (list, tuple)):
            if kind not in (list, tuple):
                self._replaced[_ROWS].append(readable(path))
            items = [self.of(each, (*path, place)) for place, each in enumerate(item)]
            return items if kind is list else tuple(items)
        if isinstance(item, np.generic):
            return self._scalar(item, path)
        if kind not in _PLAIN and not isinstance(item, torch.Tensor):
            return self._of_library(item, path)
        if (fault := _fault(item)) is not None:
            raise _unsupported(fault, path)
        return EMPTY_BYTES if kind is bytes and not item else item

    def _replace(self, what: str, data: Any, path: Path) -> Any:
        self._replaced[what].append(readable(path))
        return self.of(data, path)

    def _of_library(self, item: Any, path: Path) -> Any:
        """A value of the standard library, or a member of an enum."""
        if isinstance(item, SavedMember):
            return self._replace(_MEMBERS, item.value if item.has_value else item.name, path)
        if isinstance(item, enum.Enum):
            return self._replace(_MEMBERS, item.value, path)
        if isinstance(item, io.BytesIO):
            return self._replace(_OBJECTS, item.getvalue(), path)
        if isinstance(item, (set, frozenset)):
            if any(type(each) in (set, frozenset) for each in item):
                raise _unsupported("a set of sets", path)
            return {self._key(self.of(each, path), path) for each in item}
        return self._replace(_TEXTS, str(item), path)

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
            if fault is not None or each == b"":
                raise _unsupported(f"a dict with {fault or 'empty bytes'} as a key", path)
        return key


def _fault(item: Any) -> str | None:
    """Why torch would not read a value that it writes, or None."""
    if type(item) is str and any("\ud800" <= character <= "\udfff" for character in item):
        return "a text with lone surrogates"
    if type(item) is int and item.bit_length() > _MOST_INT_BITS:
        return f"an int of {item.bit_length()} bits"
    return None


def _unsupported(what: str, path: Path) -> UnsupportedLeafError:
    return UnsupportedLeafError(
        f"the state holds {what}, which torch does not load with weights_only=True",
        where=f"path {readable(path)}",
        todo="leave it out (--keys), or export to HDF5",
    )
