"""A foreign checkpoint that is open: its state, of which no tensor has been read yet, and where the bytes of each are.

The tensors of the state are there with dtype, shape and ties, over untouched memory: the system gives it when it
is written to. :meth:`Opened.load` fills all of it; an import (:mod:`deeppart.interop.importing`) passes the bytes on,
piece by piece, and never uses the memory.
"""

from __future__ import annotations

import argparse
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch

from deeppart.errors import CorruptFileError, StructureMismatchError, UnsupportedLeafError
from deeppart.interop.files import Readable
from deeppart.part import short
from deeppart.state.tree.flatten import DEEPEST_NESTING
from deeppart.state.tree.globs import covers, nearest_globs
from deeppart.state.tree.leaves import Array, flat_bytes
from deeppart.state.tree.paths import readable

#: What is read at a time into memory that is new: the memory of the next piece is found while this one is in the cache.
PIECE_BYTES = 16 << 20
#: Items of all containers, each counted wherever it stands: so many, and some times as many as there are.
_MOST_PLACES = 1 << 20


class Source(Protocol):
    """Where the bytes of a storage are: elements of one tensor in C order, or what several tensors are views of."""

    @property
    def nbytes(self) -> int:
        """Of all of them."""
        ...

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``start``; fastest from the first to the last, each once."""
        ...

    def check(self) -> None:
        """Read the bytes that have a checksum, if it has not been compared: where only some of them were read."""
        ...


class FileSpan:
    """Bytes that lie in a row in a file."""

    def __init__(self, file: Readable, offset: int, nbytes: int, crc: int | None = None, name: str = "") -> None:
        self.nbytes = nbytes
        self._file, self._offset, self._crc, self._name = file, offset, crc, name
        self._at = self._found = 0
        self._is_compared = crc is None

    def check(self) -> None:
        """Compare the checksum, if that has not been done."""
        room = memoryview(bytearray(0 if self._is_compared else min(PIECE_BYTES, self.nbytes)))
        for start in range(0, 0 if self._is_compared else self.nbytes, PIECE_BYTES):
            self.read_into(start, room[: self.nbytes - start])

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``start``."""
        self._file.read_into(self._offset + start, buffer)
        if self._crc is None:
            return
        if start == 0:
            self._at = self._found = 0
        if start == self._at:
            self._found, self._at = zlib.crc32(buffer, self._found), start + buffer.nbytes
        if self._at < self.nbytes:
            return
        self._is_compared = True
        if self._found != self._crc:
            raise CorruptFileError(
                "a tensor of a foreign checkpoint is damaged",
                expected=f"CRC-32 {self._crc:08x}",
                found=f"{self._found:08x}",
                where=f"{self._file.path}, {self._name}",
                todo="fetch the file again, or take another checkpoint; torch would load this one without a word",
            )


@dataclass(slots=True)
class Opened:
    """A foreign checkpoint: its format, nested dicts, lists and whatever else is in it, and of how many files it is."""

    form: str
    state: Any
    #: Address of a storage of a tensor in the state -> where its bytes are. Those of other tensors are there.
    sources: Mapping[int, Source]
    files: int
    #: Lines about what was not read as it stands, or takes more memory than usual.
    remarks: tuple[str, ...] = ()

    def choose(self, keys: str | Sequence[str] | None, where: str) -> None:
        """Keep what globs over paths cover, as :func:`deeppart.load` takes them; None for everything."""
        if keys is None:
            return
        self.state = chosen_part(self.state, keys, where)
        # The memory of the others may be given to something else, which would be taken for them.
        left = set(map(address_of, tensors_in(self.state)))
        self.sources = {address: source for address, source in self.sources.items() if address in left}

    def check(self) -> None:
        """See that every checksum of a storage in the state has been compared."""
        for source in self.sources.values():
            source.check()

    def load(self) -> Any:
        """The state, with every tensor in memory."""
        arrays = arrays_in(self.state)
        wanted = {address: array for array in arrays if (address := address_of(array)) in self.sources}
        for address, array in wanted.items():
            source, memory = self.sources[address], _memory_of(array)
            for start in range(0, source.nbytes, PIECE_BYTES):
                source.read_into(start, memory[start : min(start + PIECE_BYTES, source.nbytes)])
        return self.state


def _memory_of(array: Array) -> memoryview:
    """All of what lies in an array's storage."""
    if not isinstance(array, torch.Tensor):
        return flat_bytes(array).data
    return flat_bytes(torch.empty(0, dtype=torch.uint8).set_(array.untyped_storage())).data


def address_of(tensor: Array) -> int:
    """Of the storage of a tensor; 0 if it has none of its own, as sparse ones. Of a numpy array of its elements."""
    if not isinstance(tensor, torch.Tensor):
        return int(tensor.__array_interface__["data"][0]) if tensor.size else 0
    if tensor.layout is not torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return 0
    return tensor.untyped_storage().data_ptr() if tensor.numel() else 0


def tensors_in(state: Any) -> list[torch.Tensor]:
    """The tensors of a nested state, in its order."""
    return [item for item in arrays_in(state) if isinstance(item, torch.Tensor)]


def arrays_in(state: Any) -> list[Array]:
    """The tensors and numpy arrays of a nested state, in its order; those in objects, too.

    A file may name one container in several places, or in itself: it is looked into once.
    """
    found: list[Array] = []
    seen: set[int] = set()
    left = [state]
    while left:
        item = left.pop()
        if isinstance(item, (torch.Tensor, np.ndarray)):
            found.append(item)
        elif _is_container(item) and id(item) not in seen:
            seen.add(id(item))
            left += _items(item)[::-1]
    return found


def check_tree(state: Any, where: str) -> None:
    """See that a state can be walked as the tree that its paths are.

    Some hundred bytes of a pickle are enough for more paths than can be counted off: a list that stands twice in one
    that stands twice in a third, and so on.
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


_NOTHING = object()


def chosen_part(state: Any, keys: str | Sequence[str], where: str) -> Any:
    """What globs over paths cover of a nested state."""
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
