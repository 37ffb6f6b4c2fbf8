"""HDF5 files: archives of ``deeppart export``, exactly, and nested groups of data sets that others have written.

Nothing that HDF5 could be made to read from elsewhere, or to run, is read: soft and external links, elements in other
files (external storage, virtual data sets), filters that are not part of HDF5 and h5py, and types whose elements are
references or have a length of their own are refused. What a data set says of its length is compared with the bytes that
the file has for it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from deeppart.errors import CorruptFileError, DeeppartError, UnsupportedLeafError, short
from deeppart.extension import ForeignFile, LeafType, leaf_bytes, readable
from deeppart.extension.export.hdf5 import ARCHIVE, ARCHIVE_VERSION, STRUCTURE, Archived, stored_type
from deeppart.interop.opened import Array, FileSpan, Opened, Source, address_of, damage_named

KeyPath = tuple[Any, ...]
#: Links of a file, one object may be under many names: what is nested in many ways would have no end.
_MOST_LINKS = 1_000_000
_MOST_DEPTH = 200
#: Of deflate, and what else is part of HDF5 and h5py. Others are libraries that HDF5 would look for and load.
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 5: "nbit", 6: "scaleoffset", 32000: "lzf"}
#: Those that make data shorter.
_COMPRESSING = (1, 32000)
#: deflate makes at most 1,032 bytes of one.
_MOST_EXPANDED = 1100
#: What was never written has no bytes in the file; so much of it is believed.
_MOST_UNWRITTEN_BYTES = 1 << 20
#: Types that others use, by name of torch's; tried in this order.
_TORCH = (
    "float64 float32 float16 bfloat16 complex128 complex64 complex32 int64 int32 int16 int8 "
    "uint64 uint32 uint16 uint8 bool"
).split()
_OPAQUE_TAG = "NUMPY:"
#: Names of numpy for what torch has in the order of bytes of this machine alone.
_NUMPY = [f"{order}{code}" for order in "><" for code in ("f2", "f4", "f8", "i2", "i4", "i8", "u2", "u4", "u8", "c8")]
_NUMPY += [f"{order}c16" for order in "><"]


def load(path: str | os.PathLike[str], keys: str | Sequence[str] | None = None) -> Any:
    """Read an HDF5 file onto the CPU: what ``deeppart export`` has written, or nested groups of data sets.

    Nothing outside of the file is opened, whatever links are in it, and no filters are loaded.

    Args:
        path: the file.
        keys: globs over paths as of :func:`deeppart.load`; only the data sets that they cover are read. None for
            everything.

    Returns:
        Of an archive of ``deeppart export`` the state that was exported, as :func:`deeppart.load` gives it; data sets
        under several names are one tensor. Of others dicts, of tensors where torch has such elements, of numpy arrays
        where only numpy has, and of texts; attributes are left out.

    Raises:
        RestoreError, StorageError: there is no such file, or it cannot be read.
        CorruptFileError: it is damaged, or says that it holds more than it can.
        UnsupportedLeafError: something in it is in another file, or of a kind that is not stored here.
        StructureMismatchError: ``keys`` match nothing.
    """
    with ExitStack() as closing:
        return open_hdf5(Path(path), closing, keys).load()


def open_hdf5(path: Path, closing: ExitStack, keys: str | Sequence[str] | None = None) -> Opened:
    """Open one; no elements are read but those of small values, and of tensors that are made of others."""
    where = str(path)
    foreign = closing.enter_context(ForeignFile(path))
    descriptor = closing.enter_context(foreign.descriptor())
    with _typed(where):
        # Without HDF5's cache of chunks, of which each data set would keep its own.
        file = h5py.File(f"/proc/self/fd/{descriptor}", "r", locking=False, rdcc_nbytes=0).id
        closing.callback(file.close)
        walk = _Walk(foreign, file, where)
        patterns = [keys] if isinstance(keys, str) else keys
        state = walk.archived(patterns) if walk.is_archive else walk.group(walk.root, ())
    opened = Opened("hdf5", state, walk.sources, 1, walk.remarks())
    if not walk.is_archive:
        opened.choose(keys, where)
    if (refused := _first_refused(opened.state)) is not None:
        raise refused.error
    return opened


class _Walk:
    """One walk over a file; :attr:`sources`: address of a leaf -> where its bytes are."""

    def __init__(self, foreign: ForeignFile, file: h5py.h5f.FileID, where: str) -> None:
        self._links, self._where = _Links(file, where), where
        self._elements = _Elements(foreign, where)
        #: Number of an object of the file -> what was made of it; of groups only while they are open.
        self._leaves: dict[int, Any] = {}
        self._open: set[int] = set()
        self._left, self._attributes, self._components = _MOST_LINKS, 0, 0
        self.root = self._links.root
        self.is_archive = _is_archive(self.root, where)
        self.sources: dict[int, Source] = {}

    def archived(self, keys: Sequence[str] | None) -> Any:
        """The state that `deeppart export` has written."""
        document = self._links.dataset(self.root, STRUCTURE)
        self._elements.check(document, STRUCTURE)
        if not document.get_type().equal(h5py.h5t.STD_U8LE) or len(document.shape) != 1:
            raise ValueError("the structure of an archive is not a row of bytes")
        text = np.empty(_nbytes(document), dtype=np.uint8)
        document.read(h5py.h5s.ALL, h5py.h5s.ALL, text, mtype=document.get_type())
        archived, arrays = Archived(text.tobytes(), keys, self._where), dict[int, Array]()
        for leaf, kind, name in archived.stored:
            dataset = self._links.dataset(self.root, name)
            self._elements.check(dataset, name)
            if not stored_type(kind).equal(dataset.get_type()) or tuple(dataset.shape or ()) != kind.shape:
                raise CorruptFileError(
                    "a data set of an archive is not what its structure says",
                    expected=str(kind),
                    found=f"{_describe(dataset.get_type())}, shape {dataset.shape}",
                    where=f"{self._where}, {name}",
                )
            arrays[leaf] = array = kind.new()
            if kind.nbytes:
                source = self._elements.source(dataset, kind, name)
                if leaf in archived.components:
                    source.read_into(0, leaf_bytes(array).data)
                else:
                    self.sources[address_of(array)] = source
        self._components = len(archived.components)
        return archived.state(arrays)

    def remarks(self) -> tuple[str, ...]:
        """Lines about what is not there, or is in memory."""
        found = []
        if self._attributes:
            found.append(f"attributes of groups and data sets were left out: {self._attributes}")
        if self._components:
            found.append(f"components of tensors that are made of others are held in memory: {self._components}")
        return tuple(found)

    def _item(self, item: Any, path: KeyPath) -> Any:
        if isinstance(item, h5py.h5g.GroupID):
            return self.group(item, path)
        number = _identity(item)
        if number not in self._leaves:
            self._leaves[number] = self._dataset(item, readable(path))
        return self._leaves[number]

    def group(self, group: h5py.h5g.GroupID, path: KeyPath) -> Any:
        number = _identity(group)
        if number in self._open or len(path) > _MOST_DEPTH:
            raise CorruptFileError(
                "a group of an HDF5 file contains itself, or groups are nested too deeply",
                expected=f"at most {_MOST_DEPTH} groups inside each other",
                where=f"{self._where}, {readable(path)[:200]}",
                todo="leave out the link that leads back (h5repack does not copy it)",
            )
        self._open.add(number)
        self._attributes += h5py.h5a.get_num_attrs(group)
        found: dict[str, Any] = {}
        for encoded in self._links.names(group):
            self._left -= 1
            if self._left < 0:
                raise CorruptFileError(
                    "an HDF5 file has too many links", expected=f"at most {_MOST_LINKS}", where=self._where
                )
            name = encoded.decode("utf-8")
            try:
                found[name] = self._item(self._links.target(group, encoded), (*path, name))
            except DeeppartError as error:
                found[name] = _Refused(error)  # takes part in the choice of keys first
        self._open.discard(number)
        return found

    def _dataset(self, dataset: h5py.h5d.DatasetID, name: str) -> Any:
        self._elements.check(dataset, name)
        self._attributes += h5py.h5a.get_num_attrs(dataset)
        if dataset.get_space().get_simple_extent_type() == h5py.h5s.NULL:
            return None
        if _is_text(dataset) and dataset.shape == ():
            text = _text_of(dataset)
            self._elements.take(len(text), name)
            return text
        kind = _type_of(dataset, f"{self._where}, {name}")
        array = kind.new()
        if kind.nbytes:
            self.sources[address_of(array)] = self._elements.source(dataset, kind, name)
        return array


# --- links ---


def _typed(where: str) -> AbstractContextManager[None]:
    """What a file makes h5py raise, as one of the library's errors."""
    return damage_named("an HDF5 file cannot be read", where, "it is damaged, or not complete: fetch it again")


class _Links:
    """The links of one file."""

    def __init__(self, file: h5py.h5f.FileID, where: str) -> None:
        self.root, self._where = h5py.h5g.open(file, b"/"), where

    def names(self, group: h5py.h5g.GroupID) -> list[bytes]:
        """The names in a group: as they were made where it knows that, otherwise sorted."""
        by_making = bool(group.get_create_plist().get_link_creation_order() & h5py.h5p.CRT_ORDER_TRACKED)
        names: list[bytes] = []
        index = h5py.h5.INDEX_CRT_ORDER if by_making else h5py.h5.INDEX_NAME
        group.links.iterate(names.append, idx_type=index, order=h5py.h5.ITER_INC)
        return names

    def dataset(self, root: h5py.h5g.GroupID, path: str) -> h5py.h5d.DatasetID:
        """The data set at a path, over hard links alone."""
        item: Any = root
        for name in path.strip("/").split("/"):
            if not isinstance(item, h5py.h5g.GroupID) or not item.links.exists(name.encode()):
                raise ValueError(f"an archive has no data set {short(path)}")
            item = self.target(item, name.encode())
        if not isinstance(item, h5py.h5d.DatasetID):
            raise TypeError(f"{short(path)} of an archive is no data set")
        return item

    def target(self, group: h5py.h5g.GroupID, name: bytes) -> h5py.h5d.DatasetID | h5py.h5g.GroupID:
        """What a hard link leads to: the others may lead out of the file, and the library would follow them."""
        kind = group.links.get_info(name).type
        if kind != h5py.h5l.TYPE_HARD:
            found = {h5py.h5l.TYPE_SOFT: "a soft link", h5py.h5l.TYPE_EXTERNAL: "an external link"}.get(kind, "a link")
        else:
            item = h5py.h5o.open(group, name)
            if isinstance(item, (h5py.h5d.DatasetID, h5py.h5g.GroupID)):
                return item
            found = f"a {type(item).__name__}"
        raise UnsupportedLeafError(
            "an HDF5 file has something that is no group or data set, or a link that may lead out of the file",
            expected="groups and data sets under hard links",
            found=f"{found}, {short(name)}",
            where=self._where,
            todo="copy what it leads to in its place, or leave it out (keys=)",
        )


def _identity(item: h5py.h5d.DatasetID | h5py.h5g.GroupID) -> int:
    """A number that two links to one object of a file have in common."""
    return int(h5py.h5o.get_info(item).addr)


def _is_archive(root: h5py.h5g.GroupID, where: str) -> bool:
    """True of what `deeppart export` has written."""
    if not h5py.h5a.exists(root, ARCHIVE.encode()):
        return False
    found = h5py.h5a.open(root, ARCHIVE.encode())
    is_number = isinstance(found.get_type(), h5py.h5t.TypeIntegerID) and found.shape == ()
    version = int(h5py.Group(root).attrs[ARCHIVE]) if is_number else None
    if version != ARCHIVE_VERSION:
        raise CorruptFileError(
            "an archive of another version of deeppart export",
            expected=f"version {ARCHIVE_VERSION}",
            found=f"version {version}",
            where=where,
            todo="export the checkpoint again",
        )
    return True


def _is_chunked(plist: h5py.h5p.PropDCID) -> bool:
    return bool(plist.get_layout() == h5py.h5d.CHUNKED)


def _text_of(dataset: h5py.h5d.DatasetID) -> str:
    """The one text of a data set, by h5py's reader; to be asked once its length is known to be harmless."""
    found = h5py.Dataset(dataset)[()]
    return found.decode("utf-8") if isinstance(found, bytes) else str(found)


# --- elements ---


class _Elements:
    """What may be read of a file's data sets."""

    def __init__(self, file: ForeignFile, where: str) -> None:
        self._file, self._where = file, where
        self._left, self._unwritten = file.size, _MOST_UNWRITTEN_BYTES

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
            is_second = code in _COMPRESSING and code in [plist.get_filter(before)[0] for before in range(number)]
            if code not in _FILTERS or not h5py.h5z.filter_avail(code) or is_second:
                raise UnsupportedLeafError(
                    "a data set was written with a filter that is not part of HDF5 and h5py, or twice with one",
                    expected=", ".join(_FILTERS.values()),
                    found=f"filter {code} ({short(plist.get_filter(number)[3])})",
                    where=self._at(name),
                    todo="write it with one of these (h5repack -f GZIP=1), or leave it out (keys=)",
                )
        self._check_length(dataset, name)

    def _check_length(self, dataset: h5py.h5d.DatasetID, name: str) -> None:
        plist = dataset.get_create_plist()
        nbytes, stored = _nbytes(dataset), int(dataset.get_storage_size())
        allowed = stored * (_MOST_EXPANDED if plist.get_nfilters() else 1)
        self._unwritten -= max(0, nbytes - allowed)
        chunk = math.prod(plist.get_chunk()) * int(dataset.get_type().get_size()) if _is_chunked(plist) else 0
        self.take(stored, name)
        if self._unwritten < 0 or chunk > max(allowed, _MOST_UNWRITTEN_BYTES):
            raise CorruptFileError(
                "a data set says that it has more elements than the file can hold",
                expected=f"at most {allowed} bytes, and {_MOST_UNWRITTEN_BYTES} more in all that were never written",
                found=f"{nbytes} bytes, of which {stored} are stored, in chunks of {chunk} bytes",
                where=self._at(name),
                todo="the file is damaged; or leave out what was never written (keys=)",
            )

    def take(self, nbytes: int, name: str) -> None:
        """So many of the file's bytes are those of a data set: together they have no more than the file."""
        self._left -= nbytes
        if self._left < 0:
            raise CorruptFileError(
                "the data sets of a file have more bytes than the file",
                expected=f"at most {self._file.size} bytes in all",
                where=self._at(name),
                todo="the file is damaged",
            )

    def source(self, dataset: h5py.h5d.DatasetID, kind: LeafType, name: str) -> Source:
        """Where the bytes of a leaf are."""
        at = dataset.get_offset()  # None unless they lie in a row
        if at is not None:
            return FileSpan(self._file, int(at), kind.nbytes)
        return _Compressed(dataset, kind, self._at(name))

    def _at(self, name: str) -> str:
        return f"{self._where}, {name}"


def _nbytes(dataset: h5py.h5d.DatasetID) -> int:
    return math.prod(dataset.shape or ()) * int(dataset.get_type().get_size())


class _Compressed:
    """The bytes of a data set that do not lie in a row in the file: all of it is in memory while it is read."""

    def __init__(self, dataset: h5py.h5d.DatasetID, kind: LeafType, where: str) -> None:
        self.nbytes = kind.nbytes
        self._dataset, self._where = dataset, where
        self._held: memoryview | None = None

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``start``."""
        if self._held is None:
            octets = np.empty(self.nbytes, dtype=np.uint8)
            with _typed(self._where):  # as stored: nothing is converted
                self._dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, octets, mtype=self._dataset.get_type())
            self._held = octets.data
        stop = start + buffer.nbytes
        buffer.cast("B")[:] = self._held[start:stop]
        if stop == self.nbytes:
            self._held = None


def _type_of(dataset: h5py.h5d.DatasetID, where: str) -> LeafType:
    """The type of the leaf that a data set of others is."""
    stored, shape = dataset.get_type(), tuple(map(int, dataset.shape or ()))
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
    kind = LeafType("numpy", tag.removeprefix(_OPAQUE_TAG), ())
    try:
        kind.check("an opaque type")
    except CorruptFileError:
        return ""
    return np.dtype(kind.dtype).str if tag.startswith(_OPAQUE_TAG) and kind.itemsize == stored.get_size() else ""


def _is_text(dataset: h5py.h5d.DatasetID) -> bool:
    """True if the elements are texts of any length, or of one."""
    return isinstance(dataset.get_type(), h5py.h5t.TypeStringID)


def _describe(stored: Any) -> str:
    kind = type(stored).__name__.removeprefix("Type").removesuffix("ID").lower()
    return f"{kind} of {stored.get_size()} bytes"


# --- what is refused ---


@dataclass(frozen=True, slots=True)
class _Refused:
    """Stands where something cannot be taken, until it is known whether it is wanted."""

    error: DeeppartError


def _first_refused(state: Any) -> _Refused | None:
    """The first in a state, if any is left."""
    left = [state]
    while left:
        item = left.pop()
        if isinstance(item, _Refused):
            return item
        if isinstance(item, dict):
            left += list(item.values())[::-1]
        elif isinstance(item, (list, tuple)):
            left += list(item)[::-1]
    return None
