"""Files of ``torch.save``: opened by torch's own reader for ``weights_only``, and written piece by piece.

    archive/data.pkl | archive/byteorder | archive/data/0 | archive/data/1 | ... | archive/version

A file is a zip archive of stored records, one of which is a pickle that names the others (``torch/serialization.py``,
``caffe2/serialize/inline_container.h``). The bytes of plain tensors are not read to open it. Where a file also has
tensors that are made of others (sparse, quantized, jagged), or is of an older format, torch reads all of it.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import struct
import sys
import uuid
import warnings
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import _weights_only_unpickler as weights_only

from deeppart.errors import CorruptFileError, UnsupportedLeafError, short
from deeppart.extension import Content, ForeignFile, LeafType, leaf_bytes
from deeppart.interop.opened import FileSpan, Opened, Source, address_of, damage_named, tensors_in
from deeppart.interop.outline import Outline, arrays_remark, outline

PICKLE = "data.pkl"
ZIP_MAGIC = b"PK\x03\x04"
#: Of the pickle: names, shapes and small values.
MOST_PICKLE_BYTES = 1 << 30
_LOCAL_HEADER = struct.Struct("<4s22sHH")
_ENCRYPTED = 1
#: What ``zipfile`` raises of damaged files.
_NO_ARCHIVE = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile),
    *(OSError, ValueError, struct.error, NotImplementedError),
)
#: What makes a plain tensor of a storage; any other function may look at its elements.
_PLAIN = frozenset({b"_rebuild_tensor", b"_rebuild_tensor_v2", b"_rebuild_tensor_v3", b"_rebuild_parameter"})
_REBUILDS = re.compile(rb"_rebuild_\w+")
_OTHERS = "with tensors that are made of others, or stand in sets, keys or attributes"
_NAMED = re.compile(r"GLOBAL ([\w.]+)")
#: What turns bold type on and off in a terminal, and the like.
_TERMINAL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
#: Before it, ``weights_only`` could be talked into running code by files of the older formats (CVE-2025-32434).
_SAFE_FOR_OLD_FILES = (2, 6)
#: Where records begin, as torch has them: a reader can map them.
_ALIGNMENT = 64
_FOLDER = "archive"
_PROTOCOL = 2  # torch's
_ZIP64_BYTES, _EXTRA_HEAD_BYTES = 20, 4
_TIME = (1980, 1, 1, 0, 0, 0)

#: Bytes of a storage that is written: a number of a leaf, or memory.
_Stored = int | torch.UntypedStorage


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
        _check_release(file)
        state, remarks = _read_whole(file), (_in_memory("of an older format"),)
    else:
        archive = Archive(file)
        found = open_archive(archive)
        if found is not None:
            state, sources = found
        else:
            archive.check()
            state, remarks = _read_whole(file), (_in_memory(_OTHERS),)
    opened = Opened("torch", state, sources, 1, remarks)
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
        memory = LeafType("torch", "uint8", (record.nbytes,)).new()
        assert isinstance(memory, torch.Tensor)
        storage = memory.untyped_storage()
        self._made[key] = torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
        if record.nbytes:
            self.sources[address_of(memory)] = self._archive.span(record, f"storage {key}")
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


def _check_release(file: ForeignFile) -> None:
    release = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if release < _SAFE_FOR_OLD_FILES:
        raise UnsupportedLeafError(
            "a file that torch wrote before its release 1.6 is read safely from torch 2.6 on",
            found=f"torch {torch.__version__}",
            where=file.path,
            todo="take a newer torch; or load it by torch if you trust the file, and save it again",
        )


def _read_whole(file: ForeignFile) -> Any:
    return read_by_torch(file.read_at(0, file.size), file.path)


def read_by_torch(data: bytes | memoryview, where: str) -> Any:
    """What ``torch.save`` has written, all of it in memory; checksums are not compared."""
    # A sparse tensor whose indices lead nowhere would make torch's kernels read other memory.
    with _typed(where), torch.sparse.check_sparse_tensor_invariants(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


@contextmanager
def _typed(where: str) -> Iterator[None]:
    """What a file makes torch raise, as one of the library's errors."""
    todo = "it is damaged, or no file of torch.save"
    with damage_named("a file of torch.save cannot be read", where, todo):
        try:
            yield
        except pickle.UnpicklingError as error:
            if "operand" in str(error):
                raise CorruptFileError("this is no file of torch.save, or a damaged one", where=where) from error
            named = _NAMED.search(str(error))
            raise UnsupportedLeafError(
                "a file holds something that only unpickling could make, which might execute anything",
                expected="tensors, numbers, texts and containers of them",
                found=named[1] if named else _message_of(error, lines=1),
                where=where,
                todo="load it by torch if you trust the file, and save what is wanted as plain values: a model's "
                "state_dict(); of a DCP checkpoint, it can be left out (keys=)",
            ) from error


def _message_of(error: Exception, lines: int | None = None) -> str:
    """What torch says, on one line and without the bold type that it has for terminals."""
    return short("\n".join(_TERMINAL.sub("", str(error)).split("\n")[:lines]))


@dataclass(frozen=True, slots=True)
class _Record:
    """Where the bytes of a record are in the file, and the CRC-32 of them."""

    offset: int
    nbytes: int
    crc: int


class _Section(io.RawIOBase):
    """A stretch of a file, for ``zipfile``."""

    def __init__(self, file: ForeignFile, offset: int, nbytes: int) -> None:
        self._file, self._offset, self._nbytes, self._at = file, offset, nbytes, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._nbytes}[whence]
        if base + offset < 0:
            raise OSError("a place before the beginning")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._nbytes - self._at))
        self._file.read_into(self._offset + self._at, view[:count])
        self._at += count
        return count


class Archive:
    """The records of a file, or of a stretch of one, by name: without the folder that all are in.

    None may be compressed and none may overlap another, so that a few bytes cannot ask for much memory.
    """

    def __init__(self, file: ForeignFile, offset: int = 0, nbytes: int | None = None, where: str = "") -> None:
        self.file, self.where = file, where or file.path
        self._offset, self._nbytes = offset, file.size if nbytes is None else nbytes
        try:
            with zipfile.ZipFile(_Section(file, offset, self._nbytes)) as archive:
                infos = archive.infolist()
            self.records: Mapping[str, _Record] = self._checked(infos)
        except _NO_ARCHIVE as error:
            raise self._corrupt(f"{type(error).__name__}: {short(str(error))}") from error
        if "constants.pkl" in self.records:
            raise UnsupportedLeafError(
                "this is a TorchScript archive, which is a program",
                where=self.where,
                todo="load it by torch.jit.load if you trust the file, and save the state_dict()",
            )
        if PICKLE not in self.records:
            raise self._corrupt(f"records {short(', '.join(sorted(self.records)))}, and none named {PICKLE}")

    def read(self, name: str, most_bytes: int) -> bytes:
        """A small record."""
        record = self.records.get(name)
        if record is None or record.nbytes > most_bytes:
            raise self._corrupt(f"{name}: {'none' if record is None else f'{record.nbytes} bytes'}")
        data = bytes(self.file.read_at(record.offset, record.nbytes))
        if zlib.crc32(data) != record.crc:
            raise self._corrupt(f"{name}: another CRC-32 than its own")
        return data

    def check(self) -> None:
        """See that every record has the bytes of which its CRC-32 is."""
        for name, record in self.records.items():
            self.span(record, name).check()

    def span(self, record: _Record, name: str) -> FileSpan:
        """Where the bytes of a record are."""
        return FileSpan(self.file, record.offset, record.nbytes, record.crc, short(name))

    def _checked(self, infos: list[zipfile.ZipInfo]) -> dict[str, _Record]:
        records: dict[str, _Record] = {}
        end = 0
        for info in sorted(infos, key=lambda info: info.header_offset):
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _ENCRYPTED:
                raise ValueError(f"{info.filename}: compressed or encrypted, as torch writes none")
            if info.compress_size != info.file_size or info.header_offset < end:
                raise ValueError(f"{info.filename}: overlaps the record before it")
            start = info.header_offset + _LOCAL_HEADER.size
            if start > self._nbytes:
                raise ValueError(f"{info.filename}: at byte {info.header_offset} of {self._nbytes}")
            header = bytes(self.file.read_at(self._offset + info.header_offset, _LOCAL_HEADER.size))
            magic, _, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
            start += name_bytes + extra_bytes
            end = start + info.file_size
            if magic != ZIP_MAGIC or end > self._nbytes:
                raise ValueError(f"{info.filename}: bytes {start} to {end} of {self._nbytes}")
            name = info.filename.partition("/")[2]
            if name in records:
                raise ValueError(f"{info.filename}: stands there twice")
            records[name] = _Record(self._offset + start, info.file_size, info.CRC)
        return records

    def _corrupt(self, found: str) -> CorruptFileError:
        return CorruptFileError(
            "this is no archive of torch.save, or a damaged one",
            expected="a zip archive of stored records",
            found=found,
            where=self.where,
            todo="it was not copied or downloaded completely, or something has written over it: fetch it again",
        )


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
        """Of a stand-in: the leaf whose storage it is a view of, its first element there, and strides; else None."""
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
        """How a stand-in is made again: as a view of a storage."""
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
        before = self._stream.nbytes - self._began + _LOCAL_HEADER.size + len(info.filename) + _ZIP64_BYTES
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
    """A stream, for ``zipfile``, which then writes what it knows only afterwards behind each record."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: bytes | memoryview) -> int:
        """Append."""
        written: int = self._stream.write(data)
        return written

    def flush(self) -> None:
        """Nothing."""
