"""What writers of other formats need of a checkpoint: its state with stand-ins for tensors, and dtypes of torch.

A stand-in is a meta tensor: it has dtype and shape, and no elements, so that a state of any size can be taken apart.
Tensors that are made of others can only be made of their components: those are read, and held in memory.
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
from deeppart.offline.export.reading import Content
from deeppart.state.document.structure import SavedArray, SavedBranch, SavedNode, SavedValue
from deeppart.state.restore.merge import build
from deeppart.state.tree.composites import COMPOSITES, SUBCLASS
from deeppart.state.tree.leaves import TORCH_DTYPES, Array
from deeppart.state.tree.objects import data_of, form_of
from deeppart.state.tree.paths import Path, readable
from deeppart.state.tree.values import SavedMember, is_kind, is_unicode

#: Of an int, with its sign in 255 bytes.
_MOST_INT_BITS = 255 * 8 - 1
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
    values: int = 0
    #: How many of the values are one rank's.
    own_values: int = 0
    #: Lines about what is not as in the checkpoint.
    remarks: list[str] = field(default_factory=list)


def outline(content: Content) -> Outline:
    """Make it; nothing is read but what tensors are made of."""
    made, checkpoint = Outline(), content.checkpoint
    whole: set[int] = set()
    _look(content, content.tree, made, whole, inside=False)
    arrays: dict[int, Array] = {}
    for leaf in content.leaves - whole:
        arrays[leaf] = torch.empty(
            content.types[leaf].shape, dtype=TORCH_DTYPES[torch_dtype_name(content, leaf)], device="meta"
        )
        made.leaves[id(arrays[leaf])] = leaf
    arrays |= {leaf: array for leaf, array in content.read(sorted(whole)) if leaf in whole}
    checkpoint.target.dropped = frozenset(set(range(len(content.types))) - content.leaves)
    plain = _Plain()
    made.state = plain.of(build(checkpoint.target, arrays, content.tree), ())
    made.remarks += plain.remarks()
    if whole:
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
            where=f"path {readable(content.checkpoint.structure.array_paths()[leaf])}",
            todo="leave it out (--keys), or export to HDF5, which has all of numpy's",
        )
    return name


def arrays_remark(content: Content) -> tuple[str, ...]:
    """A line that says which leaves were numpy arrays; none if none was."""
    names = content.checkpoint.structure.array_paths()
    found = [readable(names[leaf]) for leaf in sorted(content.leaves) if content.types[leaf].kind == "numpy"]
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


def _look(content: Content, node: SavedNode, made: Outline, whole: set[int], *, inside: bool) -> None:
    """Count the values, and find the leaves that tensors are made of."""
    if isinstance(node, SavedArray) and inside:
        whole.add(node.index)
    elif isinstance(node, SavedValue) and not inside:
        made.values += 1
        made.own_values += bool(content.checkpoint.structure.per_rank_values[node.index])
    elif isinstance(node, SavedBranch):
        inside = inside or (node.kind in COMPOSITES and node.kind != SUBCLASS)
        for child in node.children:
            _look(content, child, made, whole, inside=inside)


class _Plain:
    """Puts plain containers and values in the place of those that ``torch.load(weights_only=True)`` refuses."""

    def __init__(self) -> None:
        self._replaced: dict[str, list[str]] = {each: [] for each in (_ROWS, _SCALARS, _OBJECTS, _MEMBERS, _TEXTS)}

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
        if kind is torch.Size:
            return item
        if is_kind(kind) and kind is not bytearray:
            return self._of_kind(item, path)
        if kind is defaultdict:  # its factory is a function of the script
            return self._replace(_OBJECTS, dict(item), path)
        if (form := form_of(item)) is not None:
            return self._replace(_OBJECTS, data_of(item, form, lambda: f"path {readable(path)}"), path)
        if isinstance(item, (list, tuple)):
            if kind not in (list, tuple):
                self._replaced[_ROWS].append(readable(path))
            items = [self.of(each, (*path, place)) for place, each in enumerate(item)]
            return items if kind is list else tuple(items)
        if isinstance(item, np.generic):
            return self._scalar(item, path)
        if (fault := _fault(item)) is not None:
            raise _unsupported(fault, path)
        return EMPTY_BYTES if kind is bytes and not item else item

    def _replace(self, what: str, data: Any, path: Path) -> Any:
        self._replaced[what].append(readable(path))
        return self.of(data, path)

    def _of_kind(self, item: Any, path: Path) -> Any:
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
            if is_kind(type(each)):
                fault = f"an object such as {each}"
            if fault is not None or each == b"":
                raise _unsupported(f"a dict with {fault or 'empty bytes'} as a key", path)
        return key


def _fault(item: Any) -> str | None:
    """Why torch would not read a value that it writes, or None."""
    if type(item) is str and not is_unicode(item):
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
