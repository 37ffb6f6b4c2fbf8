"""Open files of ``torch.save``: by torch's own reader for ``weights_only``, which calls nothing but what makes tensors.

The bytes of plain tensors are not read for that. Where a file also has tensors that are made of others (sparse,
quantized, jagged), or is of an older format, torch reads all of it.
"""

from __future__ import annotations

import io
import os
import pickle  # for its errors alone
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import _weights_only_unpickler as weights_only

from deeppart.errors import CorruptFileError, DeeppartError, UnsupportedLeafError
from deeppart.interop.files import ForeignFile
from deeppart.interop.opened import FileSpan, Opened, Source, address_of, tensors_in
from deeppart.interop.torch_file.archive import MOST_PICKLE_BYTES, PICKLE, ZIP_MAGIC, Archive
from deeppart.part.format import short
from deeppart.state.tree.leaves import LeafType, new_array

#: What makes a plain tensor of a storage; any other function may look at its elements.
_PLAIN = frozenset({b"_rebuild_tensor", b"_rebuild_tensor_v2", b"_rebuild_tensor_v3", b"_rebuild_parameter"})
_REBUILDS = re.compile(rb"_rebuild_\w+")
_OTHERS = "with tensors that are made of others, or stand in sets, keys or attributes"
_NAMED = re.compile(r"GLOBAL ([\w.]+)")
#: What turns bold type on and off in a terminal, and the like.
_TERMINAL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
#: Before it, ``weights_only`` could be talked into running code by files of the older formats (CVE-2025-32434).
_SAFE_FOR_OLD_FILES = (2, 6)


def load(path: str | os.PathLike[str], keys: str | Sequence[str] | None = None) -> Any:
    """Read a file of ``torch.save`` onto the CPU, as ``torch.load(weights_only=True)`` does, and check its CRC-32s.

    Args:
        path: the file.
        keys: globs over paths as of :func:`deeppart.load`; only the tensors that they cover are read. None for
            everything.

    Returns:
        What was saved; tensors are tied where they shared a storage.

    Raises:
        RestoreError, StorageError: there is no such file, or it cannot be read.
        CorruptFileError: it is damaged, or none of torch.
        UnsupportedLeafError: it holds something that only unpickling could make, which might execute anything.
        StructureMismatchError: ``keys`` match nothing.
    """
    with ExitStack() as closing:
        opened = open_torch_file(Path(path), closing, keys)
        return opened.load()


def open_torch_file(path: Path, closing: ExitStack, keys: str | Sequence[str] | None = None) -> Opened:
    """Open one; tensors are not read yet."""
    file = closing.enter_context(ForeignFile(path))
    state, sources, remarks = None, dict[int, Source](), tuple[str, ...]()
    if bytes(file.read_at(0, min(len(ZIP_MAGIC), file.size))) != ZIP_MAGIC:
        state, remarks = _read_by_torch(file, is_old=True), (_in_memory("of an older format"),)
    else:
        archive = Archive(file)
        found = open_archive(archive)
        if found is not None:
            state, sources = found
        else:
            archive.check()
            state, remarks = _read_by_torch(file), (_in_memory(_OTHERS),)
    opened = Opened("torch", state, sources, 1, closing, remarks)
    opened.choose(keys, str(path))
    return opened


def _in_memory(why: str) -> str:
    return f"a file {why} is held in memory as a whole"


def open_archive(archive: Archive) -> tuple[Any, dict[int, Source]] | None:
    """What an archive holds, with tensors of which nothing is read; and the sources of their storages."""
    data = archive.read(PICKLE, MOST_PICKLE_BYTES)
    order = archive.read("byteorder", 8).decode("ascii", "replace") if "byteorder" in archive.records else "little"
    if not set(_REBUILDS.findall(data)) <= _PLAIN or order != sys.byteorder:
        return None
    storages = _Storages(archive)
    with _typed(archive.where):
        unpickler = weights_only.Unpickler(io.BytesIO(data), encoding="utf-8")
        unpickler.persistent_load = storages.take  # type: ignore[method-assign]
        state = unpickler.load()
        storages.check()
        tensors = tensors_in(state)
        if not all(map(_is_plain, tensors)) or not storages.are_all_in(tensors):
            return None
    return state, storages.sources


def _is_plain(tensor: torch.Tensor) -> bool:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    plain = plain and not tensor.is_quantized and not tensor.is_nested and tensor.is_cpu
    return plain and not tensor.is_conj() and not tensor.is_neg()  # which are copied as they read


class _Storages:
    """Makes the storages that a pickle asks for; their memory is not touched."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._made: dict[str, torch.storage.TypedStorage] = {}
        self.sources: dict[int, Source] = {}

    def take(self, saved_id: Any) -> torch.storage.TypedStorage:
        """What ``("storage", type, key, location, elements)`` stands for, in ``data.pkl``."""
        _, kind, key, _, elements = saved_id
        dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
        if type(dtype) is not torch.dtype or type(key) is not str or type(elements) is not int:
            raise ValueError(f"a storage {short(str(saved_id))}")
        if key in self._made:
            return self._made[key]
        record = self._archive.records.get(f"data/{key}")
        if record is None or record.nbytes != elements * dtype.itemsize:
            found = "no record" if record is None else f"{record.nbytes} bytes"
            raise ValueError(f"storage {short(key)} of {elements} elements of {dtype}: {found}")
        memory = new_array(LeafType("torch", "uint8", (record.nbytes,)))
        assert isinstance(memory, torch.Tensor)
        storage = memory.untyped_storage()
        self._made[key] = torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
        if record.nbytes:
            where = f"storage {key}"
            self.sources[address_of(memory)] = FileSpan(
                self._archive.file, record.offset, record.nbytes, record.crc, where
            )
        return self._made[key]

    def check(self) -> None:
        """See that they are as long as they were."""
        for key, storage in self._made.items():
            record = self._archive.records[f"data/{key}"]
            if storage._untyped_storage.nbytes() != record.nbytes:
                raise ValueError(f"a tensor reaches beyond the {record.nbytes} bytes of storage {short(key)}")

    def are_all_in(self, tensors: Sequence[torch.Tensor]) -> bool:
        """True if each storage with bytes is that of one of these tensors, all plain."""
        found = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        if any(tensor.numel() and tensor.untyped_storage().data_ptr() not in self.sources for tensor in tensors):
            raise ValueError("a tensor of which no record has the bytes")
        return self.sources.keys() <= found


def _read_by_torch(file: ForeignFile, *, is_old: bool = False) -> Any:
    """All of a file, in memory."""
    release = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if is_old and release < _SAFE_FOR_OLD_FILES:
        raise UnsupportedLeafError(
            "a file that torch wrote before its release 1.6 is read safely from torch 2.6 on",
            found=f"torch {torch.__version__}",
            where=file.path,
            todo="take a newer torch; or load it by torch if you trust the file, and save it again",
        )
    # A sparse tensor whose indices lead nowhere would make torch's kernels read other memory.
    with _typed(file.path), torch.sparse.check_sparse_tensor_invariants(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(io.BytesIO(file.read_at(0, file.size)), map_location="cpu", weights_only=True)


@contextmanager
def _typed(where: str) -> Iterator[None]:
    """What a file makes torch raise, as one of the library's errors."""
    try:
        yield
    except DeeppartError:
        raise
    except pickle.UnpicklingError as error:
        if "operand" not in str(error):
            raise refusal(error, where) from error
        raise CorruptFileError("this is no file of torch.save, or a damaged one", where=where) from error
    except Exception as error:  # of whatever kind: a damaged file raises anything
        raise CorruptFileError(
            "a file of torch.save cannot be read",
            found=f"{type(error).__name__}: {told_by_torch(error, lines=None)}",
            where=where,
            todo="it is damaged, or no file of torch.save",
        ) from error


def told_by_torch(error: Exception, lines: int | None = 1) -> str:
    """What torch says, on one line and without the bold type that it has for terminals."""
    return short("\n".join(_TERMINAL.sub("", str(error)).split("\n")[:lines]))


def refusal(error: pickle.UnpicklingError, where: str) -> UnsupportedLeafError:
    """The error that says what a pickle would have called."""
    named = _NAMED.search(str(error))
    return UnsupportedLeafError(
        "a file holds something that only unpickling could make, which might execute anything",
        expected="tensors, numbers, texts and containers of them",
        found=named[1] if named else told_by_torch(error),
        where=where,
        todo="load it by torch if you trust the file, and save what is wanted as plain values: a model's state_dict()",
    )
