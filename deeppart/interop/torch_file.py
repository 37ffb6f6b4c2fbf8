"""Files of ``torch.save``: read by torch with ``weights_only``, and written piece by piece.

    archive/data.pkl | archive/byteorder | archive/data/0 | archive/data/1 | ... | archive/version

A file is a zip archive of stored records, one of which is a pickle that names the others (``torch/serialization.py``,
``caffe2/serialize/inline_container.h``). It is mapped into memory: do not write over it while it is read. A file of an
older format is read as a whole.
"""

from __future__ import annotations

import copy
import io
import os
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
from typing import IO, Any, cast

import torch

from deeppart.errors import CorruptFileError, UnsupportedLeafError, short
from deeppart.extension import Content, ForeignFile, leaf_bytes
from deeppart.interop.opened import Opened, damage_named, tensors_in
from deeppart.interop.outline import Outline, arrays_remark, outline

_ZIP_MAGIC = b"PK\x03\x04"
_TODO = "it was not copied or downloaded completely, or something has written over it: fetch it again"
_NAMED = re.compile(r"GLOBAL ([\w.]+)")
#: What turns bold type on and off in a terminal, and the like.
_TERMINAL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
#: Before it, ``weights_only`` could be talked into running code by files of the older formats (CVE-2025-32434).
_SAFE_FOR_OLD_FILES = (2, 6)
#: Where records begin, as torch has them: a reader can map them.
_ALIGNMENT = 64
_FOLDER = "archive"
_PROTOCOL = 2  # torch's
_LOCAL_HEADER_BYTES, _ZIP64_BYTES, _EXTRA_HEAD_BYTES = 30, 20, 4
_TIME = (1980, 1, 1, 0, 0, 0)

#: Bytes of a storage that is written: a number of a leaf, or memory.
_Stored = int | torch.UntypedStorage


def load(path: str | os.PathLike[str], keys: str | Sequence[str] | None = None) -> Any:
    """Read a file of ``torch.save`` onto the CPU, as ``torch.load(weights_only=True)`` does, and check its CRC-32s.

    Args:
        path: the file.
        keys: globs over paths as of :func:`deeppart.load`; only the tensors that they cover take memory. None for
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
        state = open_torch_file(Path(path), closing, keys).state
        made_of_others = [each for each in tensors_in(state) if each.layout is not torch.strided]
        # Copied from the mapped file. torch copies composite tensors only if asked to, one by one.
        return copy.deepcopy(state, {id(each): each.clone() for each in made_of_others})


def open_torch_file(path: Path, closing: ExitStack, keys: str | Sequence[str] | None = None) -> Opened:
    """Open one; its tensors are mapped, and read where they are used."""
    file = closing.enter_context(ForeignFile(path))
    remarks: tuple[str, ...] = ()
    if is_archive := bytes(file.read_at(0, min(len(_ZIP_MAGIC), file.size))) == _ZIP_MAGIC:
        check_archive(path, str(path))
    else:
        _check_release(file)
        remarks = ("a file of an older format is held in memory as a whole",)
    opened = Opened("torch", read_by_torch(path, str(path), mmap=is_archive), {}, 1, remarks)
    opened.choose(keys, str(path))
    return opened


def _check_release(file: ForeignFile) -> None:
    release = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if release < _SAFE_FOR_OLD_FILES:
        raise UnsupportedLeafError(
            "a file that torch wrote before its release 1.6 is read safely from torch 2.6 on",
            found=f"torch {torch.__version__}",
            where=file.path,
            todo="take a newer torch; or load it by torch if you trust the file, and save it again",
        )


def read_by_torch(file: Path | io.BytesIO, where: str, *, mmap: bool = False) -> Any:
    """What ``torch.save`` has written; nothing that it names is called but what ``weights_only`` allows."""
    # A sparse tensor whose indices lead nowhere would make torch's kernels read other memory.
    with _typed(where), torch.sparse.check_sparse_tensor_invariants(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)


def check_archive(file: Path | io.BytesIO, where: str) -> None:
    """Compare the CRC-32 of every record, at which torch does not look; none may be compressed: torch writes none, and
    a few bytes would become many.
    """
    damaged = None
    with (
        damage_named("this is no archive of torch.save, or a damaged one", where, _TODO),
        zipfile.ZipFile(file) as found,
    ):
        names = {info.filename.partition("/")[2] for info in found.infolist()}
        if any(info.compress_type != zipfile.ZIP_STORED for info in found.infolist()):
            raise ValueError("records that are compressed")
        damaged = found.testzip()
    if "constants.pkl" in names:
        raise UnsupportedLeafError(
            "this is a TorchScript archive, which is a program",
            where=where,
            todo="load it by torch.jit.load if you trust the file, and save the state_dict()",
        )
    if damaged is not None:
        raise CorruptFileError(
            "a record of an archive of torch.save is damaged",
            expected="the CRC-32 that the archive has of it",
            found=short(damaged),
            where=where,
            todo="fetch the file again, or take another checkpoint; torch would load this one without a word",
        )


@contextmanager
def _typed(where: str) -> Iterator[None]:
    """What a file makes torch raise, as one of the library's errors."""
    with damage_named("a file of torch.save cannot be read", where, _TODO):
        try:
            yield
        except pickle.UnpicklingError as error:
            if "operand" in str(error):
                raise CorruptFileError("this is no file of torch.save, or a damaged one", where=where) from error
            named = _NAMED.search(str(error))
            message = _TERMINAL.sub("", str(error)).partition("\n")[0]
            raise UnsupportedLeafError(
                "a file holds something that only unpickling could make, which might execute anything",
                expected="tensors, numbers, texts and containers of them",
                found=named[1] if named else short(message),
                where=where,
                todo="load it by torch if you trust the file, and save what is wanted as plain values: a model's "
                "state_dict(); of a DCP checkpoint, it can be left out (keys=)",
            ) from error


class TorchWriter:
    """Writes files of ``torch.save``, without having all of a state in memory.

    The pickle comes first in the archive, and needs no element of any tensor; each storage follows as its bytes are
    read. The archive is what ``torch.save`` of :func:`deeppart.load` is, without the records that torch reads only if
    asked to (``.format_version``: it promises where torch's own writer would have put each record).
    """

    form = "torch"
    is_directory = False

    def write(self, content: Content) -> Any:
        """Write all of it."""
        made = outline(content)
        with content.stream_to() as stream:
            write_archive(stream, made.state, Leaves(content, made), content.progress)
        return content.totals([*arrays_remark(content), *made.remarks])


class Leaves:
    """Where the elements of stand-ins are."""

    def __init__(self, content: Content, made: Outline) -> None:
        self.content, self._made = content, made
        self._stand_ins = frozenset(made.leaves.values())

    def view(self, tensor: torch.Tensor) -> tuple[int, int, tuple[int, ...]] | None:
        """For a stand-in: the leaf of whose storage it is a view, its first element there, and strides; else None."""
        leaf = self._made.leaves.get(id(tensor))
        if leaf is None or not tensor.is_meta:
            return None
        return self.content.view_of(leaf, self._stand_ins)

    def elements(self, leaf: int) -> int:
        """Of a storage."""
        kind = self.content.types[leaf]
        return kind.nbytes // kind.itemsize

    def stream(self, order: list[int]) -> Iterator[tuple[int, Iterable[memoryview]]]:
        """The bytes of leaves."""
        return self.content.stream(order)


@dataclass(frozen=True, slots=True)
class _Storage:
    """Stands for a storage in a pickle."""

    kind: Any
    key: str
    elements: int


class _Pickler(pickle.Pickler):
    """torch's own way, for tensors that are not there: what it writes names :attr:`storages` by number."""

    def __init__(self, file: io.BytesIO, leaves: Leaves) -> None:
        super().__init__(file, protocol=_PROTOCOL)
        self._leaves = leaves
        self._keys: dict[Any, str] = {}
        self.storages: list[_Stored] = []

    def reducer_override(self, item: Any) -> Any:
        """How a stand-in is recreated: as a view of a storage."""
        found = self._leaves.view(item) if isinstance(item, torch.Tensor) else None
        if found is None:
            return NotImplemented
        leaf, offset, strides = found
        names, shape = torch.storage._dtype_to_storage_type_map(), tuple(item.shape)
        key, elements = self._key(leaf, leaf), self._leaves.elements(leaf)
        if item.dtype in names:
            storage = _Storage(getattr(torch, names[item.dtype]), key, elements)
            return torch._utils._rebuild_tensor_v2, (storage, offset, shape, strides, False, OrderedDict())
        storage = _Storage(torch.UntypedStorage, key, elements * item.dtype.itemsize)
        arguments: tuple[Any, ...] = (storage, offset, shape, strides, False, OrderedDict(), item.dtype)
        return torch._utils._rebuild_tensor_v3, arguments

    def persistent_id(self, item: Any) -> Any:
        """Storages are not in the pickle."""
        if isinstance(item, _Storage):
            return "storage", item.kind, item.key, "cpu", item.elements
        if isinstance(item, torch.storage.TypedStorage):
            kind, memory = getattr(torch, item._pickle_storage_type()), item._untyped_storage
            return "storage", kind, self._key(("memory", memory._cdata), memory), "cpu", item._size()
        if isinstance(item, torch.UntypedStorage):
            return "storage", torch.UntypedStorage, self._key(("memory", item._cdata), item), "cpu", item.nbytes()
        return None

    def _key(self, what: Any, stored: _Stored) -> str:
        if what not in self._keys:
            self._keys[what] = str(len(self._keys))
            self.storages.append(stored)
        return self._keys[what]


def write_archive(
    stream: Any, state: Any, leaves: Leaves, progress: Callable[[int, int], None] = lambda done, total: None
) -> None:
    """Write an archive with a state in it."""
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
        records.abandon()
        raise


class _Records:
    """The records of a zip archive, one after the other, none of them compressed."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._began = stream, stream.nbytes
        self._zip = zipfile.ZipFile(cast(IO[bytes], _Unseekable(stream)), "w", zipfile.ZIP_STORED)

    def write(
        self, name: str, pieces: Iterable[bytes | memoryview], written: Callable[[int], None] = lambda nbytes: None
    ) -> None:
        """Append one, which begins at a multiple of 64 bytes."""
        info = zipfile.ZipInfo(f"{_FOLDER}/{name}", _TIME)
        before = self._stream.nbytes - self._began + _LOCAL_HEADER_BYTES + len(info.filename) + _ZIP64_BYTES
        padding = -(before + _EXTRA_HEAD_BYTES) % _ALIGNMENT
        info.extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding  # as torch's own writer pads
        with self._zip.open(info, "w", force_zip64=True) as record:
            for piece in pieces:
                written(record.write(piece))

    def abandon(self) -> None:
        """Write nothing more: ``zipfile`` would, when it is thrown away, and print on the terminal that it cannot."""
        setattr(self._zip, "fp", None)  # noqa: B010 - which is how `close` knows that it has been closed

    def close(self) -> None:
        """Write the table of contents."""
        self._zip.close()


class _Unseekable:
    """A stream for ``zipfile``, which therefore writes sizes and checksums after each record."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: bytes | memoryview) -> int:
        """Append."""
        written: int = self._stream.write(data)
        return written

    def flush(self) -> None:
        """Nothing."""
