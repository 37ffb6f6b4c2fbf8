"""``torch.save`` files: read by torch with ``weights_only=True``, and written as a stream.

    archive/data.pkl | archive/byteorder | archive/data/0 | archive/data/1 | ... | archive/version

A file is a zip archive of stored records, one of which is a pickle that refers to the others
(``torch/serialization.py``, ``caffe2/serialize/inline_container.h``). It is memory-mapped: do not overwrite it
meanwhile.
"""

from __future__ import annotations

import io
import pickle
import re
import sys
import uuid
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deeppart.errors import CorruptFileError, UnsupportedLeafError, short
from deeppart.extension import Content, ForeignFile, leaf_bytes
from deeppart.interop.opened import Opened, as_corrupt_file
from deeppart.interop.outline import Outline, arrays_remark, outline

_PICKLE = b"\x80"  # the first byte of a pickle
_TODO = "it was not copied or downloaded completely, or has been overwritten: fetch it again"
_NAMED = re.compile(r"GLOBAL ([\w.]+)")
_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
#: Alignment of records, as in torch, so that they can be mapped.
_ALIGNMENT = 64
_FOLDER = "archive"
_PROTOCOL = 2  # torch's
_LOCAL_HEADER_BYTES, _ZIP64_BYTES, _EXTRA_HEAD_BYTES = 30, 20, 4
_TIME = (1980, 1, 1, 0, 0, 0)

#: The content of a storage to write: the number of a leaf, or memory.
_StorageContent = int | torch.UntypedStorage


def open_torch_file(path: Path, closing: ExitStack, keys: str | Sequence[str] | None = None) -> Opened:
    """Open a ``torch.save`` file: the object that ``torch.load(weights_only=True)`` returns; its tensors are mapped."""
    file = closing.enter_context(ForeignFile(path))
    if bytes(file.read_at(0, min(1, file.size))) == _PICKLE:
        raise UnsupportedLeafError(
            "this is a file of torch before 1.6, or another pickle, which cannot be checked and mapped",
            expected="an archive of torch.save",
            where=file.path,
            todo="load it with torch if you trust it, and save it again",
        )
    check_archive(path, str(path))
    opened = Opened("torch", read_by_torch(path, str(path), mmap=True), {}, 1, is_mapped=True)
    opened.choose(keys, str(path))
    return opened


def read_by_torch(file: Path | io.BytesIO, where: str, *, mmap: bool = False) -> Any:
    """Load an object with ``weights_only=True``."""
    # Sparse tensors with invalid indices would make torch's kernels read out of bounds.
    with _typed(where), torch.sparse.check_sparse_tensor_invariants(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)


def check_archive(file: Path | io.BytesIO, where: str) -> None:
    """Verify the CRC-32 of every record, which torch does not; compressed records are rejected (zip bombs)."""
    damaged = None
    with (
        as_corrupt_file("this is no archive of torch.save, or a damaged one", where, _TODO),
        zipfile.ZipFile(file) as found,
    ):
        names = {info.filename.partition("/")[2] for info in found.infolist()}
        if any(info.compress_type != zipfile.ZIP_STORED for info in found.infolist()):
            raise ValueError("compressed records")
        damaged = found.testzip()
    if "constants.pkl" in names:
        raise UnsupportedLeafError(
            "this is a TorchScript archive, which is a program",
            where=where,
            todo="load it with torch.jit.load if you trust it, and save the state_dict()",
        )
    if damaged is not None:
        raise CorruptFileError(
            "a record of an archive of torch.save is damaged",
            expected="data that match their CRC-32",
            found=short(damaged),
            where=where,
            todo="fetch the file again, or use another checkpoint; torch would load this one without an error",
        )


@contextmanager
def _typed(where: str) -> Iterator[None]:
    """Turn the exceptions of torch into UnsupportedLeafError and CorruptFileError."""
    with as_corrupt_file("a file of torch.save cannot be read", where, _TODO):
        try:
            yield
        except pickle.UnpicklingError as error:
            if "operand" in str(error):
                raise CorruptFileError("this is no file of torch.save, or a damaged one", where=where) from error
            named = _NAMED.search(str(error))
            message = _ESCAPE_SEQUENCE.sub("", str(error)).partition("\n")[0]
            raise UnsupportedLeafError(
                "a file contains an object that only unpickling could create, which might execute code",
                expected="tensors, numbers, strings and containers of them",
                found=named[1] if named else short(message),
                where=where,
                todo="load it with torch if you trust it, and save plain values such as a model's state_dict(); in a "
                "DCP checkpoint, leave it out (keys=)",
            ) from error


class TorchWriter:
    """Writes ``torch.save`` files without holding the whole state in memory.

    The pickle, which needs no tensor elements, comes first; storages follow as their bytes are read. The archive equals
    that of ``torch.save`` except for optional records (``.format_version``, which implies the offsets of records).
    """

    form = "torch"
    is_directory = False

    def write(self, content: Content) -> list[str]:
        """Write the content."""
        made = outline(content)
        with content.stream_to() as stream:
            write_archive(stream, made.state, Leaves(content, made), content.progress)
        return [*arrays_remark(content), *made.remarks]


class Leaves:
    """Storages and bytes of the placeholders in an outline."""

    def __init__(self, content: Content, made: Outline) -> None:
        self.content, self._made = content, made
        self._placeholders = frozenset(made.leaves.values())

    def view(self, tensor: torch.Tensor) -> tuple[int, int, tuple[int, ...]] | None:
        """For a placeholder: leaf of its storage, offset in elements, and strides; otherwise None."""
        leaf = self._made.leaves.get(id(tensor))
        if leaf is None or not tensor.is_meta:
            return None
        return self.content.view_of(leaf, self._placeholders)

    def stream(self, order: list[int]) -> Iterator[tuple[int, Iterable[memoryview]]]:
        """The bytes of leaves."""
        return self.content.stream(order)


@dataclass(frozen=True, slots=True)
class _Storage:
    """A storage while it is pickled."""

    kind: Any
    key: str
    elements: int


class _Pickler(pickle.Pickler):
    """Pickles placeholders as torch pickles tensors; the pickle refers to :attr:`storages` by index."""

    def __init__(self, file: io.BytesIO, leaves: Leaves) -> None:
        super().__init__(file, protocol=_PROTOCOL)
        self._leaves = leaves
        self._keys: dict[Any, str] = {}
        self.storages: list[_StorageContent] = []

    def reducer_override(self, item: Any) -> Any:
        """Pickle a placeholder as a view of a storage."""
        found = self._leaves.view(item) if isinstance(item, torch.Tensor) else None
        if found is None:
            return NotImplemented
        leaf, offset, strides = found
        names, shape = torch.storage._dtype_to_storage_type_map(), tuple(item.shape)
        kind, key = self._leaves.content.types[leaf], self._key(leaf, leaf)
        elements = kind.nbytes // kind.itemsize
        if item.dtype in names:
            storage = _Storage(getattr(torch, names[item.dtype]), key, elements)
            return torch._utils._rebuild_tensor_v2, (storage, offset, shape, strides, False, OrderedDict())
        storage = _Storage(torch.UntypedStorage, key, elements * item.dtype.itemsize)
        arguments: tuple[Any, ...] = (storage, offset, shape, strides, False, OrderedDict(), item.dtype)
        return torch._utils._rebuild_tensor_v3, arguments

    def persistent_id(self, item: Any) -> Any:
        """Pickle storages as references."""
        if isinstance(item, _Storage):
            return "storage", item.kind, item.key, "cpu", item.elements
        if isinstance(item, torch.storage.TypedStorage):
            kind, memory = getattr(torch, item._pickle_storage_type()), item._untyped_storage
            return "storage", kind, self._key(("memory", memory._cdata), memory), "cpu", item._size()
        if isinstance(item, torch.UntypedStorage):
            return "storage", torch.UntypedStorage, self._key(("memory", item._cdata), item), "cpu", item.nbytes()
        return None

    def _key(self, what: Any, stored: _StorageContent) -> str:
        if what not in self._keys:
            self._keys[what] = str(len(self._keys))
            self.storages.append(stored)
        return self._keys[what]


def write_archive(
    stream: Any, state: Any, leaves: Leaves, progress: Callable[[int, int], None] = lambda done, total: None
) -> None:
    """Write an archive of a state."""
    data = io.BytesIO()
    pickler = _Pickler(data, leaves)
    pickler.dump(state)
    order = [each for each in pickler.storages if isinstance(each, int)]
    total, done = sum(leaves.content.types[leaf].nbytes for leaf in order), 0
    of_leaves = leaves.stream(order)
    records = _Records(stream)

    def add(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(done, total)

    try:
        records.write("data.pkl", [data.getvalue()])
        records.write("byteorder", [sys.byteorder.encode()])
        for number, stored in enumerate(pickler.storages):
            if isinstance(stored, int):
                leaf, pieces = next(of_leaves)
                assert leaf == stored
                records.write(f"data/{number}", pieces, add)
            else:
                records.write(f"data/{number}", [leaf_bytes(torch.empty(0, dtype=torch.uint8).set_(stored)).data])
        records.write("version", [b"3\n"])
        records.write(".data/serialization_id", [str(uuid.uuid4().int).rjust(40, "0").encode()])
        records.close()
    except BaseException:
        records.abort()
        raise


class _Records:
    """Writes a zip archive of uncompressed records."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._start = stream, stream.nbytes
        # The stream has no seek(), so that zipfile writes sizes and checksums after each record.
        self._zip = zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED)

    def write(
        self, name: str, pieces: Iterable[bytes | memoryview], written: Callable[[int], None] = lambda nbytes: None
    ) -> None:
        """Append a record, aligned to 64 bytes."""
        info = zipfile.ZipInfo(f"{_FOLDER}/{name}", _TIME)
        before = self._stream.nbytes - self._start + _LOCAL_HEADER_BYTES + len(info.filename) + _ZIP64_BYTES
        padding = -(before + _EXTRA_HEAD_BYTES) % _ALIGNMENT
        info.extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding  # the padding of torch's writer
        with self._zip.open(info, "w", force_zip64=True) as record:
            for piece in pieces:
                written(record.write(piece))

    def abort(self) -> None:
        """Mark the archive as closed, as ``ZipFile.__del__`` would try to finish it, and print the error."""
        setattr(self._zip, "fp", None)  # noqa: B010

    def close(self) -> None:
        """Write the central directory."""
        self._zip.close()
