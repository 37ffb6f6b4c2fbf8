"""A foreign checkpoint that is open: its state, of which no tensor has been read yet, and where the bytes of each are.

The tensors of the state are there with dtype, shape and ties, over untouched memory: the system gives it when it
is written to. :meth:`Opened.load` fills all of it; an import (:mod:`deeppart.interop.importing`) passes the bytes on,
piece by piece, and never uses the memory.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from deeppart.errors import CorruptFileError, DeeppartError, short
from deeppart.extension import ForeignFile, choose, leaf_bytes

#: What is read at a time into memory that is new: the memory of the next piece is found while this one is in the cache.
PIECE_BYTES = 16 << 20
Array = torch.Tensor | npt.NDArray[Any]


class Source(Protocol):
    """Where the bytes of a storage are: elements of one tensor in C order, or what several tensors are views of."""

    @property
    def nbytes(self) -> int:
        """Of all of them."""
        ...

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``start``; fastest from the first to the last, each once."""
        ...


@contextmanager
def damage_named(what: str, where: str, todo: str) -> Iterator[None]:
    """What a file makes a library raise, as one of ours."""
    try:
        yield
    except DeeppartError:
        raise
    except Exception as error:  # of whatever kind: a damaged file raises anything
        found = f"{type(error).__name__}: {short(str(error))}"
        raise CorruptFileError(what, found=found, where=where, todo=todo) from error


class FileSpan:
    """Contiguous bytes in a file."""

    def __init__(self, file: ForeignFile, offset: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self._file, self._offset = file, offset

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``start``."""
        self._file.read_into(self._offset + start, buffer)


@dataclass(slots=True)
class Opened:
    """A foreign checkpoint: its format, nested dicts, lists and whatever else is in it, and of how many files it is."""

    form: str
    state: Any
    #: Address of a storage of a tensor in the state -> where its bytes are. Those of other tensors are there.
    sources: Mapping[int, Source]
    files: int
    #: Lines about items that were not read unchanged, or take more memory than usual.
    remarks: tuple[str, ...] = ()

    def choose(self, keys: str | Sequence[str] | None, where: str) -> None:
        """Keep what globs over paths cover, as :func:`deeppart.load` takes them; None for everything."""
        if keys is None:
            return
        self.state = choose(self.state, keys, where)
        # The memory of the others may be given to something else, which would be taken for them.
        left = set(map(address_of, tensors_in(self.state)))
        self.sources = {address: source for address, source in self.sources.items() if address in left}

    def source_of(self, array: Array) -> Source | None:
        """Where the bytes of the storage of an array in the state are; None if they are in memory."""
        return self.sources.get(address_of(array))

    def load(self) -> Any:
        """The state, with every tensor in memory."""
        arrays = arrays_in(self.state)
        wanted = {address: array for array in arrays if (address := address_of(array)) in self.sources}
        for address, array in wanted.items():
            source, memory = self.sources[address], _memory_of(array)
            if len(memory) != source.nbytes:
                raise CorruptFileError("a tensor has not as many bytes as the file has for it", where=self.form)
            for start in range(0, source.nbytes, PIECE_BYTES):
                source.read_into(start, memory[start : min(start + PIECE_BYTES, source.nbytes)])
        return self.state


def _memory_of(array: Array) -> memoryview:
    """All bytes of an array's storage."""
    if not isinstance(array, torch.Tensor):
        return leaf_bytes(array).data
    return leaf_bytes(torch.empty(0, dtype=torch.uint8).set_(array.untyped_storage())).data


def address_of(tensor: Array) -> int:
    """Bytes of a tensor's storage; 0 if it has none, like sparse ones. For a numpy array, bytes of its elements."""
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
        elif id(item) not in seen:
            seen.add(id(item))
            left += _items(item)[::-1]
    return found


def _items(item: Any) -> list[Any]:
    if isinstance(item, (SimpleNamespace, argparse.Namespace)):
        item = vars(item)
    if isinstance(item, dict):
        return list(item.values())
    return list(item) if isinstance(item, (list, tuple, deque)) else []
