"""Write a checkpoint as ``torch.save`` does, without having all of it in memory.

The pickle comes first in the archive, and needs no element of any tensor; each storage follows as its bytes are read.
The archive is what ``torch.save`` of :func:`deeppart.load` is, without the records that torch reads only if asked to
(``.format_version``: it promises where torch's own writer would have put each record).
"""

from __future__ import annotations

import io
import pickle
import sys
import uuid
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, cast

import torch

from deeppart.interop.outline import Outline, outline
from deeppart.interop.tensors import arrays_remark
from deeppart.offline.export.beside import BesideFile, Stream
from deeppart.offline.export.reading import Content, Progress, Totals
from deeppart.state.document.ties import contiguous_strides
from deeppart.state.tree.leaves import flat_bytes

#: Where records begin, as torch has them: a reader can map them.
_ALIGNMENT = 64
_FOLDER = "archive"
_PROTOCOL = 2  # torch's
_LOCAL_HEADER_BYTES, _ZIP64_BYTES, _EXTRA_HEAD_BYTES = 30, 20, 4
_TIME = (1980, 1, 1, 0, 0, 0)

#: Bytes of a storage: a number of a leaf, or memory.
Bytes = int | torch.UntypedStorage


class TorchWriter:
    """Writes files of ``torch.save``."""

    form = "torch"
    is_directory = False

    def write(self, content: Content, beside: BesideFile, told: Progress) -> Totals:
        """Write all of it."""
        made = outline(content)
        with beside.stream() as stream:
            write_archive(stream, made.state, Leaves(content, made), told)
        return content.totals(made.values, made.own_values, [*arrays_remark(content), *made.remarks])


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
        alias, types = self.content.checkpoint.structure.aliases.get(leaf), self.content.types
        if (
            alias is not None
            and alias.owner in self._stand_ins
            and types[leaf].kind == "torch"
            and types[alias.owner].dtype == types[leaf].dtype
        ):
            return alias.owner, alias.offset // types[leaf].itemsize, alias.strides
        return leaf, 0, contiguous_strides(types[leaf].shape)

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
    """torch's own way, for tensors that are not there: what it writes names storages by number.

    Attributes:
        storages: what they are, in the order of their numbers.
    """

    def __init__(self, file: io.BytesIO, leaves: Leaves) -> None:
        super().__init__(file, protocol=_PROTOCOL)
        self._leaves = leaves
        self._keys: dict[Any, str] = {}
        self.storages: list[Bytes] = []

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

    def _key(self, what: Any, stored: Bytes) -> str:
        if what not in self._keys:
            self._keys[what] = str(len(self._keys))
            self.storages.append(stored)
        return self._keys[what]


def write_archive(
    stream: Stream, state: Any, leaves: Leaves, told: Callable[[int, int], None] = lambda done, total: None
) -> None:
    """Write an archive with a state in it."""
    data = io.BytesIO()
    pickler = _Pickler(data, leaves)
    pickler.dump(state)
    order = [each for each in pickler.storages if isinstance(each, int)]
    total, done = sum(leaves.content.types[leaf].nbytes for leaf in order), 0
    of_leaves = leaves.stream(order)
    records = _Records(stream)
    try:
        records.write("data.pkl", [data.getvalue()])
        records.write("byteorder", [sys.byteorder.encode()])
        for number, stored in enumerate(pickler.storages):
            if isinstance(stored, int):
                leaf, pieces = next(of_leaves)
                assert leaf == stored
                done = records.write(f"data/{number}", pieces, _Progress(told, done, total))
            else:
                records.write(f"data/{number}", [flat_bytes(torch.empty(0, dtype=torch.uint8).set_(stored)).data])
        records.write("version", [b"3\n"])
        records.write(".data/serialization_id", [str(uuid.uuid4().int).rjust(40, "0").encode()])
        records.close()
    except BaseException:
        records.abandon()
        raise


class _Progress:
    """How far an archive has come.

    Attributes:
        done: bytes of leaves that are written.
    """

    def __init__(self, told: Callable[[int, int], None], done: int, total: int) -> None:
        self._told, self.done, self._total = told, done, total

    def add(self, nbytes: int) -> None:
        """So many more are written."""
        self.done += nbytes
        self._told(self.done, self._total)


class _Records:
    """The records of a zip archive, one after the other, none of them compressed."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._began = stream, stream.nbytes
        self._zip = zipfile.ZipFile(cast(IO[bytes], _Unseekable(stream)), "w", zipfile.ZIP_STORED)

    def write(
        self,
        name: str,
        pieces: Iterable[bytes | memoryview],
        progress: _Progress | None = None,
    ) -> int:
        """Append one, which begins at a multiple of 64 bytes; returns the bytes that are done then."""
        info = zipfile.ZipInfo(f"{_FOLDER}/{name}", _TIME)
        before = self._stream.nbytes - self._began + _LOCAL_HEADER_BYTES + len(info.filename) + _ZIP64_BYTES
        padding = -(before + _EXTRA_HEAD_BYTES) % _ALIGNMENT
        info.extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding  # as torch's own writer pads
        with self._zip.open(info, "w", force_zip64=True) as record:
            for piece in pieces:
                nbytes = record.write(piece)
                if progress is not None:
                    progress.add(nbytes)
        return 0 if progress is None else progress.done

    def abandon(self) -> None:
        """Write nothing more: ``zipfile`` would, when it is thrown away, and print on the terminal that it cannot."""
        setattr(self._zip, "fp", None)  # noqa: B010 - which is how `close` knows that it has been closed

    def close(self) -> None:
        """Write the table of contents."""
        self._zip.close()


class _Unseekable:
    """A stream, for ``zipfile``, which then writes what it knows only afterwards behind each record."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def write(self, data: bytes | memoryview) -> int:
        """Append."""
        return self._stream.write(data)

    def flush(self) -> None:
        """Nothing."""
