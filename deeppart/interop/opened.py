"""An open foreign checkpoint: its state with unread tensors, and the sources of their bytes.

Tensors have dtype, shape and ties, over virtual memory that is not yet backed by pages. :meth:`Opened.load` fills it;
an import (:mod:`deeppart.interop.importing`) streams the bytes instead and never touches the memory.
"""

from __future__ import annotations

import argparse
import copy
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deeppart.errors import CorruptFileError, DeeppartError, short
from deeppart.extension import ForeignFile, Source, choose, leaf_bytes

#: Read size; small enough that page faults of fresh memory and the copied data stay in the CPU cache.
PIECE_BYTES = 16 << 20
Array = torch.Tensor | npt.NDArray[Any]


@contextmanager
def as_corrupt_file(what: str, where: str, todo: str) -> Iterator[None]:
    """Turn any other exception into a CorruptFileError."""
    try:
        yield
    except DeeppartError:
        raise
    except Exception as error:  # a damaged file can make a parser raise anything
        found = f"{type(error).__name__}: {short(str(error))}"
        raise CorruptFileError(what, found=found, where=where, todo=todo) from error


class FileSpan:
    """Contiguous bytes in a file."""

    def __init__(self, file: ForeignFile, offset: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self._file, self._offset = file, offset

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from byte ``start``."""
        self._file.read_into(self._offset + start, buffer)


@dataclass(slots=True)
class Opened:
    """A foreign checkpoint: format, state, sources and number of files."""

    form: str
    state: Any
    #: Storage address of an unread tensor -> source of its bytes.
    sources: Mapping[int, Source]
    files: int
    #: One line for each thing that is not read unchanged, or takes more memory than usual.
    remarks: tuple[str, ...] = ()
    #: Whether tensors are mapped from the file.
    is_mapped: bool = False

    def choose(self, keys: str | Sequence[str] | None, where: str) -> None:
        """Keep only what path globs match; None keeps everything."""
        if keys is None:
            return
        self.state = choose(self.state, keys, where)
        # The memory of dropped tensors may be reused, so their addresses must not identify a source any more.
        kept = set(map(address_of, tensors_in(self.state)))
        self.sources = {address: source for address, source in self.sources.items() if address in kept}

    def source_of(self, array: Array) -> Source | None:
        """The source of an array's storage; None if it is in memory."""
        return self.sources.get(address_of(array))

    def load(self) -> Any:
        """Read every tensor and return the state."""
        if self.is_mapped:  # deepcopy does not copy the components of composite tensors
            composite = [each for each in tensors_in(self.state) if each.layout is not torch.strided]
            return copy.deepcopy(self.state, {id(each): each.clone() for each in composite})
        arrays = arrays_in(self.state)
        wanted = {address: array for array in arrays if (address := address_of(array)) in self.sources}
        for address, array in wanted.items():
            source, memory = self.sources[address], _memory_of(array)
            if len(memory) != source.nbytes:
                raise CorruptFileError("the size of a tensor differs from its size in the file", where=self.form)
            for start in range(0, source.nbytes, PIECE_BYTES):
                source.read_into(start, memory[start : min(start + PIECE_BYTES, source.nbytes)])
        return self.state


def _memory_of(array: Array) -> memoryview:
    """The bytes of an array's whole storage."""
    if not isinstance(array, torch.Tensor):
        return leaf_bytes(array).data
    return leaf_bytes(torch.empty(0, dtype=torch.uint8).set_(array.untyped_storage())).data


def address_of(tensor: Array) -> int:
    """Address of a tensor's storage, or of an array's elements; 0 if it has none, as sparse tensors."""
    if not isinstance(tensor, torch.Tensor):
        return int(tensor.__array_interface__["data"][0]) if tensor.size else 0
    if tensor.layout is not torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return 0
    return tensor.untyped_storage().data_ptr() if tensor.numel() else 0


def tensors_in(state: Any) -> list[torch.Tensor]:
    """The tensors of a nested state, in order."""
    return [item for item in arrays_in(state) if isinstance(item, torch.Tensor)]


def arrays_in(state: Any) -> list[Array]:
    """The tensors and numpy arrays of a nested state, in order. Shared and recursive containers are visited once."""
    found: list[Array] = []
    seen: set[int] = set()
    stack = [state]
    while stack:
        item = stack.pop()
        if isinstance(item, (torch.Tensor, np.ndarray)):
            found.append(item)
        elif id(item) not in seen:
            seen.add(id(item))
            stack += _items(item)[::-1]
    return found


def _items(item: Any) -> list[Any]:
    if isinstance(item, (SimpleNamespace, argparse.Namespace)):
        item = vars(item)
    if isinstance(item, dict):
        return list(item.values())
    return list(item) if isinstance(item, (list, tuple, deque)) else []
