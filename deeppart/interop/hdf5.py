"""HDF5 archives of ``deeppart export``, which are restored exactly.

Their leaves are contiguous data sets, whose bytes are read from the file itself: HDF5 is only asked for names, types
and places, so it converts nothing, opens no other file and loads no filter. Other HDF5 files are refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py

from deeppart.errors import CorruptFileError, RestoreError, UnsupportedLeafError, short
from deeppart.extension import ForeignFile, LeafType, Source, leaf_bytes
from deeppart.extension.export.hdf5 import ARCHIVE, ARCHIVE_VERSION, STRUCTURE, Archived, stored_type
from deeppart.interop.opened import Array, FileSpan, Opened, address_of, as_corrupt_file


def open_hdf5(path: Path, closing: ExitStack, keys: str | Sequence[str] | None = None) -> Opened:
    """Open an archive; its state is the exported one, as :func:`deeppart.load` returns it.

    Only small values and components of composite tensors are read. A data set with several names is one tensor.
    """
    where = str(path)
    foreign = closing.enter_context(ForeignFile(path))
    descriptor = closing.enter_context(foreign.descriptor())
    todo = "it is damaged, or not complete: fetch it again"
    with as_corrupt_file("an HDF5 file cannot be read", where, todo):
        file = h5py.File(f"/proc/self/fd/{descriptor}", "r", locking=False).id
        closing.callback(file.close)
        root = h5py.h5g.open(file, b"/")
        _check_version(root, where)
        data_sets = _DataSets(root, foreign)
        text = data_sets.structure()
        archived = Archived(text, [keys] if isinstance(keys, str) else keys, where)
        arrays, sources = dict[int, Array](), dict[int, Source]()
        for leaf, kind, name in archived.stored:
            source = data_sets.leaf(name, kind)
            arrays[leaf] = array = kind.new()
            if not kind.nbytes:
                continue
            if leaf in archived.components:
                source.read_into(0, leaf_bytes(array).data)
            else:
                sources[address_of(array)] = source
        remarks = [f"components of composite tensors are held in memory: {len(archived.components)}"]
        return Opened("hdf5", archived.state(arrays), sources, 1, tuple(remarks if archived.components else ()))


def _check_version(root: h5py.h5g.GroupID, where: str) -> None:
    """Refuse files that are no archives, or have another version."""
    if not h5py.h5a.exists(root, ARCHIVE.encode()):
        raise RestoreError(
            "this HDF5 file is no archive of deeppart export",
            expected=f"an attribute {ARCHIVE} of the file",
            where=where,
            todo="read it with h5py, and save its arrays with deeppart.checkpoint, torch.save or safetensors",
        )
    found = h5py.h5a.open(root, ARCHIVE.encode())
    is_number = isinstance(found.get_type(), h5py.h5t.TypeIntegerID) and found.shape == ()
    version = int(h5py.Group(root).attrs[ARCHIVE]) if is_number else None
    if version != ARCHIVE_VERSION:
        raise CorruptFileError(
            "the version of an archive of deeppart export is not supported",
            expected=f"version {ARCHIVE_VERSION}",
            found=f"version {version}",
            where=where,
            todo="export the checkpoint again",
        )


class _DataSets:
    """The data sets of an archive, and the places of their elements in the file."""

    def __init__(self, root: h5py.h5g.GroupID, file: ForeignFile) -> None:
        self._root, self._file = root, file
        self._bytes_left = file.size

    def structure(self) -> bytes:
        """The structure document."""
        data_set = self._find(STRUCTURE)
        if not data_set.get_type().equal(h5py.h5t.STD_U8LE) or len(data_set.shape or ()) != 1:
            raise ValueError("the structure of an archive is not a vector of bytes")
        span = self._span(data_set, int(data_set.shape[0]), STRUCTURE)
        text = bytearray(span.nbytes)
        span.read_into(0, memoryview(text))
        return bytes(text)

    def leaf(self, name: str, kind: LeafType) -> FileSpan:
        """The elements of a leaf."""
        data_set = self._find(name)
        stored = data_set.get_type()
        if not stored_type(kind).equal(stored) or tuple(data_set.shape or ()) != kind.shape:
            raise CorruptFileError(
                "a data set of an archive does not match its structure",
                expected=str(kind),
                found=f"{type(stored).__name__} of {stored.get_size()} bytes, shape {data_set.shape}",
                where=self._at(name),
            )
        return self._span(data_set, math.prod(kind.shape) * int(stored.get_size()), name)

    def _find(self, path: str) -> h5py.h5d.DatasetID:
        """The data set at a path of hard links; other links may lead to other files."""
        item: Any = self._root
        for name in path.strip("/").split("/"):
            if not isinstance(item, h5py.h5g.GroupID) or not item.links.exists(name.encode()):
                raise ValueError(f"an archive has no data set {short(path)}")
            if item.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
                raise UnsupportedLeafError(
                    "an archive has a link that may lead out of the file",
                    expected="hard links",
                    found=f"another link, {short(name)}",
                    where=self._at(path),
                    todo="export the checkpoint again",
                )
            item = h5py.h5o.open(item, name.encode())
        if not isinstance(item, h5py.h5d.DatasetID):
            raise TypeError(f"{short(path)} of an archive is not a data set")
        return item

    def _span(self, data_set: h5py.h5d.DatasetID, nbytes: int, name: str) -> FileSpan:
        """The bytes of a data set, checked before memory is allocated for them."""
        plist, offset = data_set.get_create_plist(), data_set.get_offset()
        if plist.get_layout() != h5py.h5d.CONTIGUOUS or plist.get_external_count():
            raise UnsupportedLeafError(
                "a data set of an archive is compressed, or its elements may be in another file",
                expected="a contiguous data set, as deeppart export writes it",
                where=self._at(name),
                todo="h5repack -l CONTI IN OUT writes such a file",
            )
        self._bytes_left -= nbytes
        if self._bytes_left < 0 or (nbytes and (offset is None or offset + nbytes > self._file.size)):
            raise CorruptFileError(
                "a data set claims more elements than the file can hold",
                expected=f"at most {self._file.size} bytes in all data sets",
                found=f"{nbytes} bytes" + (" that were never written" if offset is None else f" at {offset}"),
                where=self._at(name),
                todo="the file is damaged: export the checkpoint again",
            )
        return FileSpan(self._file, int(offset or 0), nbytes)

    def _at(self, name: str) -> str:
        return f"{self._file.path}, {name}"
