"""The elements of data sets: their types as those of leaves, and their bytes, some MiB at a time.

Nothing that HDF5 could be made to read from elsewhere, or to run, is read: elements in other files (external storage,
virtual data sets), filters that are not part of HDF5 and h5py, types whose elements are references or have a length of
their own. What a data set says of its length is compared with the bytes that the file has for it.
"""

from __future__ import annotations

import math
from typing import Any

import h5py
import numpy as np

from deeppart.errors import CorruptFileError, UnsupportedLeafError
from deeppart.interop.files import ForeignFile
from deeppart.interop.hdf5.links import typed
from deeppart.interop.opened import FileSpan, Source
from deeppart.offline.export.hdf5 import stored_type
from deeppart.part.format import short
from deeppart.state.tree.leaves import TORCH_DTYPES, LeafType
from deeppart.state.tree.values import plain_dtype

#: Of deflate, and what else is part of HDF5 and h5py. Others are libraries that HDF5 would look for and load.
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 5: "nbit", 6: "scaleoffset", 32000: "lzf"}
#: deflate makes at most 1,032 bytes of one.
_MOST_EXPANDED = 1100
#: What was never written has no bytes in the file; so much of it is believed.
_MOST_UNWRITTEN_BYTES = 1 << 20
#: HDF5 holds a chunk in memory as a whole.
_MOST_CHUNK_BYTES = 256 << 20
#: What is read at a time, if chunks are small.
_SLAB_BYTES = 4 << 20
#: Types that others use, by name of torch's; tried in this order.
_TORCH = [name for name in TORCH_DTYPES if not name.startswith(("float8", "float4"))]
_OPAQUE_TAG = "NUMPY:"
#: Names of numpy for what torch has in the order of bytes of this machine alone.
_NUMPY = [f"{order}{code}" for order in "><" for code in ("f2", "f4", "f8", "i2", "i4", "i8", "u2", "u4", "u8", "c8")]
_NUMPY += [f"{order}c16" for order in "><"]


class Elements:
    """What may be read of a file's data sets."""

    def __init__(self, file: ForeignFile, where: str) -> None:
        self._file, self._where = file, where
        self._left = file.size
        #: Number of a data set, first byte and bytes of what was read last: of one data set of the file.
        self._slab: tuple[int, int, memoryview] | None = None

    def check(self, dataset: h5py.h5d.DatasetID, name: str) -> None:
        """Check that all elements are in the file, and no more of them than its length allows."""
        plist = dataset.get_create_plist()
        if plist.get_layout() == h5py.h5d.VIRTUAL or plist.get_external_count():
            raise UnsupportedLeafError(
                "the elements of a data set are in another file, which is not opened",
                expected="elements in the HDF5 file itself",
                found="a virtual data set" if plist.get_layout() == h5py.h5d.VIRTUAL else "external storage",
                where=self._at(name),
                todo="make a file that has them in it (h5repack), or leave it out (keys=)",
            )
        for number in range(plist.get_nfilters()):
            code = plist.get_filter(number)[0]
            if code not in _FILTERS or not h5py.h5z.filter_avail(code):
                raise UnsupportedLeafError(
                    "a data set was written with a filter that is not part of HDF5 and h5py",
                    expected=", ".join(_FILTERS.values()),
                    found=f"filter {code} ({short(plist.get_filter(number)[3])})",
                    where=self._at(name),
                    todo="write it with one of these (h5repack -f GZIP=1), or leave it out (keys=)",
                )
        self._check_length(dataset, name)

    def _check_length(self, dataset: h5py.h5d.DatasetID, name: str) -> None:
        plist = dataset.get_create_plist()
        nbytes, stored = _nbytes(dataset), int(dataset.get_storage_size())
        allowed = max(_MOST_UNWRITTEN_BYTES, stored * (_MOST_EXPANDED if plist.get_nfilters() else 1))
        chunk = 0
        if plist.get_layout() == h5py.h5d.CHUNKED:
            chunk = math.prod(plist.get_chunk()) * dataset.get_type().get_size()
        self._left -= stored
        if nbytes > allowed or self._left < 0 or chunk > _MOST_CHUNK_BYTES:
            found = f"{nbytes} bytes, of which {stored} are stored"
            raise CorruptFileError(
                "a data set says that it has more elements than the file can hold"
                if chunk <= _MOST_CHUNK_BYTES
                else "the chunks of a data set are too long",
                expected=f"at most {allowed} bytes, chunks of {_MOST_CHUNK_BYTES}, and {self._file.size} in all",
                found=f"{found}, in chunks of {chunk}" if chunk else found,
                where=self._at(name),
                todo="the file is damaged; or write it in smaller chunks, or leave out what was never written (keys=)",
            )

    def source(self, dataset: h5py.h5d.DatasetID, kind: LeafType, number: int, name: str) -> Source:
        """Where the bytes of a leaf are."""
        at = dataset.get_offset()  # None unless they lie in a row
        if at is not None:
            return FileSpan(self._file, int(at), kind.nbytes, name=name)
        return _Slabs(self, dataset, kind, number, self._at(name))

    def _at(self, name: str) -> str:
        return f"{self._where}, {name}"


def _nbytes(dataset: h5py.h5d.DatasetID) -> int:
    return math.prod(dataset.shape or ()) * int(dataset.get_type().get_size())


class _Slabs:
    """The bytes of a data set in chunks: so many rows are read at a time that each chunk is decoded once.

    Where the chunks of some rows are more than 256 MiB, they are read row by row.
    """

    def __init__(self, owner: Elements, dataset: h5py.h5d.DatasetID, kind: LeafType, number: int, where: str) -> None:
        self.nbytes = kind.nbytes
        self._owner, self._dataset, self._number, self._where = owner, dataset, number, where
        plist = dataset.get_create_plist()
        chunk = plist.get_chunk() if plist.get_layout() == h5py.h5d.CHUNKED else (1,) * len(kind.shape)
        self._kind, self._shape = kind, kind.shape
        self._axis, self._rows = 0, 1
        for axis, (length, step) in enumerate(zip(kind.shape, chunk, strict=True)):
            row = math.prod(kind.shape[axis + 1 :]) * kind.itemsize
            self._axis, self._rows = axis, min(length, max(step, _SLAB_BYTES // row // step * step))
            if step * row <= _MOST_CHUNK_BYTES:
                break

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``start``."""
        room = buffer.cast("B")
        while room:
            first, slab = self._slab_at(start)
            piece = slab[start - first : start - first + room.nbytes]
            room[: piece.nbytes] = piece
            room, start = room[piece.nbytes :], start + piece.nbytes
            del piece, slab  # before the next one is there

    def check(self) -> None:
        """Nothing: HDF5 compares the checksums of chunks when it decodes them."""

    def _slab_at(self, start: int) -> tuple[int, memoryview]:
        """The slab that has a byte, and its first one."""
        held = self._owner._slab
        if held is not None and held[0] == self._number and held[1] <= start < held[1] + held[2].nbytes:
            return held[1], held[2]
        self._owner._slab = held = None  # never hold two
        first, begin, count = 0, tuple[int, ...](), tuple[int, ...]()
        if self._shape:
            row = math.prod(self._shape[self._axis + 1 :]) * self._kind.itemsize
            outer, rest = divmod(start, row * self._shape[self._axis])
            at = rest // row // self._rows * self._rows
            rows = min(self._rows, self._shape[self._axis] - at)
            first = outer * row * self._shape[self._axis] + at * row
            places = np.unravel_index(outer, self._shape[: self._axis]) if self._axis else ()
            begin = (*map(int, places), at, *(0,) * (len(self._shape) - self._axis - 1))
            count = (*(1,) * self._axis, rows, *self._shape[self._axis + 1 :])
        slab = np.empty(math.prod(count) * self._kind.itemsize, dtype=np.uint8)
        with typed(self._where):
            space = self._dataset.get_space()
            if self._shape:
                space.select_hyperslab(begin, count)
            memory = h5py.h5s.create_simple(count) if self._shape else h5py.h5s.create(h5py.h5s.SCALAR)
            self._dataset.read(memory, space, slab, mtype=self._dataset.get_type())  # as stored: nothing is converted
        self._owner._slab = self._number, first, slab.data
        return first, slab.data


def type_of(dataset: h5py.h5d.DatasetID, said: str | None, where: str) -> LeafType:
    """The type of the leaf that a data set is."""
    stored, shape = dataset.get_type(), tuple(map(int, dataset.shape or ()))
    if said is not None:
        library, _, dtype = said.partition(".")
        kind = LeafType(library, dtype, shape)
        kind.check(where)
        if not stored_type(kind).equal(stored):
            raise CorruptFileError(
                "a data set of an archive is not what its attribute says",
                expected=f"elements of {said}",
                found=_describe(stored),
                where=where,
            )
        return kind
    for library, name in (*(("torch", each) for each in _TORCH), *(("numpy", each) for each in _NUMPY)):
        if stored_type(LeafType(library, name, ())).equal(stored):
            return _checked(LeafType(library, name, shape), where)
    if isinstance(stored, h5py.h5t.TypeOpaqueID) and (dtype := _opaque(stored)):
        return _checked(LeafType("numpy", dtype, shape), where)
    if isinstance(stored, h5py.h5t.TypeStringID) and not stored.is_variable_str():
        return _checked(LeafType("numpy", f"|S{stored.get_size()}", shape), where)
    raise UnsupportedLeafError(
        "the elements of a data set are of a kind that no tensor or array has here",
        expected="numbers, booleans, complex numbers as h5py has them, or texts of one length",
        found=_describe(stored),
        where=where,
        todo="leave it out (keys=), or store it as numbers",
    )


def _checked(kind: LeafType, where: str) -> LeafType:
    kind.check(where)
    return kind


def _opaque(stored: Any) -> str:
    """The numpy type that h5py has named in the tag of an opaque one; "" for any other: numpy is not asked."""
    tag = bytes(stored.get_tag()).decode("ascii", "replace")
    try:
        dtype = plain_dtype(tag.removeprefix(_OPAQUE_TAG)) if tag.startswith(_OPAQUE_TAG) else None
    except (ValueError, TypeError):
        return ""
    return dtype.str if dtype is not None and dtype.itemsize == stored.get_size() else ""


def is_text(dataset: h5py.h5d.DatasetID) -> bool:
    """True if the elements are texts of any length, or of one."""
    return isinstance(dataset.get_type(), h5py.h5t.TypeStringID)


def _describe(stored: Any) -> str:
    kind = type(stored).__name__.removeprefix("Type").removesuffix("ID").lower()
    return f"{kind} of {stored.get_size()} bytes"
