"""HDF5 files: archives of ``deeppart export``, which are restored exactly, and other files as nested dicts.

Features with which HDF5 would read other files or load code are rejected: soft and external links, external storage,
virtual data sets, third-party filters, and elements that are references or have variable length. The size of a data set
is checked against its stored bytes before memory is allocated.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from deeppart.errors import CorruptFileError, DeeppartError, UnsupportedLeafError, short
from deeppart.extension import ForeignFile, LeafType, leaf_bytes, readable
from deeppart.extension.export.hdf5 import ARCHIVE, ARCHIVE_VERSION, STRUCTURE, Archived, stored_type
from deeppart.interop.opened import Array, FileSpan, Opened, Source, address_of, as_corrupt_file

KeyPath = tuple[Any, ...]
#: Limit of links: hard links to groups can nest a small file exponentially.
_MAX_LINKS = 1_000_000
_MAX_DEPTH = 200
#: Filters that are part of HDF5 or h5py. For others, HDF5 would search and load a library.
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 5: "nbit", 6: "scaleoffset", 32000: "lzf"}
_COMPRESSING = (1, 32000)
#: The largest compression ratio; that of deflate is 1,032.
_MAX_RATIO = 1100
#: Limit of bytes that were never written, and take no space in the file.
_MAX_UNWRITTEN_BYTES = 1 << 20
#: torch dtypes to compare stored types with, in this order.
_TORCH = (
    "float64 float32 float16 bfloat16 complex128 complex64 complex32 int64 int32 int16 int8 "
    "uint64 uint32 uint16 uint8 bool"
).split()
_OPAQUE_TAG = "NUMPY:"
#: numpy dtypes with explicit byte order: torch supports the native one only.
_NUMPY = [f"{order}{code}" for order in "><" for code in ("f2", "f4", "f8", "i2", "i4", "i8", "u2", "u4", "u8", "c8")]
_NUMPY += [f"{order}c16" for order in "><"]


def load(path: str | os.PathLike[str], keys: str | Sequence[str] | None = None) -> Any:
    """Load an HDF5 file to the CPU: an archive of ``deeppart export``, or any nested groups of data sets.

    No other file is opened, and no filter is loaded, whatever the file asks for.

    Args:
        path: the file.
        keys: path globs as for :func:`deeppart.load`; only matching data sets are read. None loads everything.

    Returns:
        For an archive of ``deeppart export`` the exported state, as :func:`deeppart.load` returns it; a data set with
        several names is one tensor. For other files, nested dicts of strings, tensors, and numpy arrays where torch has
        no equivalent dtype; attributes are ignored.

    Raises:
        RestoreError, StorageError: the file does not exist or cannot be read.
        CorruptFileError: the file is damaged, or a size in it is impossible.
        UnsupportedLeafError: data are in another file, or of an unsupported type.
        StructureMismatchError: ``keys`` match nothing.
    """
    with ExitStack() as closing:
        return open_hdf5(Path(path), closing, keys).load()


def open_hdf5(path: Path, closing: ExitStack, keys: str | Sequence[str] | None = None) -> Opened:
    """Open an HDF5 file; reads only small values and components of composite tensors."""
    where = str(path)
    foreign = closing.enter_context(ForeignFile(path))
    descriptor = closing.enter_context(foreign.descriptor())
    with _typed(where):
        # Without a chunk cache, which each data set would have.
        file = h5py.File(f"/proc/self/fd/{descriptor}", "r", locking=False, rdcc_nbytes=0).id
        closing.callback(file.close)
        walk = _Walk(foreign, file, where)
        patterns = [keys] if isinstance(keys, str) else keys
        state = walk.archived(patterns) if walk.is_archive else walk.group(walk.root, ())
    opened = Opened("hdf5", state, walk.sources, 1, walk.remarks())
    if not walk.is_archive:
        opened.choose(keys, where)
    if (error := _first_error(opened.state)) is not None:
        raise error
    return opened


class _Walk:
    """Traverses a file; :attr:`sources`: address of a leaf -> source of its bytes."""

    def __init__(self, foreign: ForeignFile, file: h5py.h5f.FileID, where: str) -> None:
        self._where = where
        self._elements = _Elements(foreign, where)
        #: Address of a data set -> its leaf; addresses of the groups that are being traversed.
        self._leaves: dict[int, Any] = {}
        self._open: set[int] = set()
        self._links_left, self._attributes, self._components = _MAX_LINKS, 0, 0
        self.root = h5py.h5g.open(file, b"/")
        self.is_archive = _is_archive(self.root, where)
        self.sources: dict[int, Source] = {}

    def archived(self, keys: Sequence[str] | None) -> Any:
        """The state of an archive of `deeppart export`."""
        document = _dataset_at(self.root, STRUCTURE, self._where)
        self._elements.check(document, STRUCTURE)
        if not document.get_type().equal(h5py.h5t.STD_U8LE) or len(document.shape) != 1:
            raise ValueError("the structure of an archive is not a vector of bytes")
        text = np.empty(_nbytes(document), dtype=np.uint8)
        document.read(h5py.h5s.ALL, h5py.h5s.ALL, text, mtype=document.get_type())
        archived, arrays = Archived(text.tobytes(), keys, self._where), dict[int, Array]()
        for leaf, kind, name in archived.stored:
            dataset = _dataset_at(self.root, name, self._where)
            self._elements.check(dataset, name)
            if not stored_type(kind).equal(dataset.get_type()) or tuple(dataset.shape or ()) != kind.shape:
                raise CorruptFileError(
                    "a data set of an archive does not match its structure",
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
        """Remarks on ignored attributes, and leaves in memory."""
        found = []
        if self._attributes:
            found.append(f"attributes of groups and data sets were left out: {self._attributes}")
        if self._components:
            found.append(f"components of composite tensors are held in memory: {self._components}")
        return tuple(found)

    def _item(self, item: Any, path: KeyPath) -> Any:
        if isinstance(item, h5py.h5g.GroupID):
            return self.group(item, path)
        address = _address(item)
        if address not in self._leaves:
            self._leaves[address] = self._dataset(item, readable(path))
        return self._leaves[address]

    def group(self, group: h5py.h5g.GroupID, path: KeyPath) -> Any:
        address = _address(group)
        if address in self._open or len(path) > _MAX_DEPTH:
            raise CorruptFileError(
                "a group of an HDF5 file contains itself, or groups are nested too deeply",
                expected=f"at most {_MAX_DEPTH} nested groups",
                where=f"{self._where}, {readable(path)[:200]}",
                todo="remove the recursive link (h5repack does not copy it)",
            )
        self._open.add(address)
        self._attributes += h5py.h5a.get_num_attrs(group)
        found: dict[str, Any] = {}
        for encoded in _names(group):
            self._links_left -= 1
            if self._links_left < 0:
                raise CorruptFileError(
                    "an HDF5 file has too many links", expected=f"at most {_MAX_LINKS}", where=self._where
                )
            name = encoded.decode("utf-8")
            try:
                found[name] = self._item(_target(group, encoded, self._where), (*path, name))
            except DeeppartError as error:
                found[name] = error  # raised unless ``keys`` exclude it
        self._open.discard(address)
        return found

    def _dataset(self, dataset: h5py.h5d.DatasetID, name: str) -> Any:
        self._elements.check(dataset, name)
        self._attributes += h5py.h5a.get_num_attrs(dataset)
        if dataset.get_space().get_simple_extent_type() == h5py.h5s.NULL:
            return None
        if isinstance(dataset.get_type(), h5py.h5t.TypeStringID) and dataset.shape == ():
            data = h5py.Dataset(dataset)[()]
            text = data.decode("utf-8") if isinstance(data, bytes) else str(data)
            self._elements.count(len(text), name)
            return text
        kind = _type_of(dataset, f"{self._where}, {name}")
        array = kind.new()
        if kind.nbytes:
            self.sources[address_of(array)] = self._elements.source(dataset, kind, name)
        return array


# --- links ---


def _typed(where: str) -> AbstractContextManager[None]:
    """Turn the exceptions of h5py into CorruptFileError."""
    return as_corrupt_file("an HDF5 file cannot be read", where, "it is damaged, or not complete: fetch it again")


def _names(group: h5py.h5g.GroupID) -> list[bytes]:
    """The names in a group, in creation order if it is tracked, otherwise sorted."""
    is_tracked = bool(group.get_create_plist().get_link_creation_order() & h5py.h5p.CRT_ORDER_TRACKED)
    names: list[bytes] = []
    index = h5py.h5.INDEX_CRT_ORDER if is_tracked else h5py.h5.INDEX_NAME
    group.links.iterate(names.append, idx_type=index, order=h5py.h5.ITER_INC)
    return names


def _dataset_at(root: h5py.h5g.GroupID, path: str, where: str) -> h5py.h5d.DatasetID:
    """The data set at a path of hard links."""
    item: Any = root
    for name in path.strip("/").split("/"):
        if not isinstance(item, h5py.h5g.GroupID) or not item.links.exists(name.encode()):
            raise ValueError(f"an archive has no data set {short(path)}")
        item = _target(item, name.encode(), where)
    if not isinstance(item, h5py.h5d.DatasetID):
        raise TypeError(f"{short(path)} of an archive is not a data set")
    return item


def _target(group: h5py.h5g.GroupID, name: bytes, where: str) -> h5py.h5d.DatasetID | h5py.h5g.GroupID:
    """The target of a hard link; other links may lead to other files."""
    kind = group.links.get_info(name).type
    if kind != h5py.h5l.TYPE_HARD:
        found = {h5py.h5l.TYPE_SOFT: "a soft link", h5py.h5l.TYPE_EXTERNAL: "an external link"}.get(kind, "a link")
    else:
        item = h5py.h5o.open(group, name)
        if isinstance(item, (h5py.h5d.DatasetID, h5py.h5g.GroupID)):
            return item
        found = f"a {type(item).__name__}"
    raise UnsupportedLeafError(
        "an HDF5 file contains an unsupported object, or a link that may lead out of the file",
        expected="groups and data sets under hard links",
        found=f"{found}, {short(name)}",
        where=where,
        todo="replace the link by a copy of its target, or leave it out (keys=)",
    )


def _address(item: h5py.h5d.DatasetID | h5py.h5g.GroupID) -> int:
    """The address of an object in the file, which is the same for all links to it."""
    return int(h5py.h5o.get_info(item).addr)


def _is_archive(root: h5py.h5g.GroupID, where: str) -> bool:
    """True for an archive of `deeppart export`."""
    if not h5py.h5a.exists(root, ARCHIVE.encode()):
        return False
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
    return True


# --- elements ---


class _Elements:
    """Checks the sizes of a file's data sets, and locates their elements."""

    def __init__(self, file: ForeignFile, where: str) -> None:
        self._file, self._where = file, where
        self._bytes_left, self._unwritten_left = file.size, _MAX_UNWRITTEN_BYTES

    def check(self, dataset: h5py.h5d.DatasetID, name: str) -> None:
        """Check that all elements are in the file, and that their size is possible."""
        plist = dataset.get_create_plist()
        if plist.get_layout() == h5py.h5d.VIRTUAL or plist.get_external_count():
            raise UnsupportedLeafError(
                "the elements of a data set are in another file",
                expected="elements in the HDF5 file itself",
                found="a virtual data set" if plist.get_layout() == h5py.h5d.VIRTUAL else "external storage",
                where=self._at(name),
                todo="copy them into the file (h5repack), or leave it out (keys=)",
            )
        for number in range(plist.get_nfilters()):
            code = plist.get_filter(number)[0]
            is_repeated = code in _COMPRESSING and code in [plist.get_filter(before)[0] for before in range(number)]
            if code not in _FILTERS or not h5py.h5z.filter_avail(code) or is_repeated:
                raise UnsupportedLeafError(
                    "the filter of a data set is not part of HDF5 and h5py, or is applied twice",
                    expected=", ".join(_FILTERS.values()),
                    found=f"filter {code} ({short(plist.get_filter(number)[3])})",
                    where=self._at(name),
                    todo="convert it to one of these (h5repack -f GZIP=1), or leave it out (keys=)",
                )
        nbytes, stored = _nbytes(dataset), int(dataset.get_storage_size())
        allowed = stored * (_MAX_RATIO if plist.get_nfilters() else 1)
        self._unwritten_left -= max(0, nbytes - allowed)
        is_chunked = plist.get_layout() == h5py.h5d.CHUNKED
        chunk = math.prod(plist.get_chunk()) * int(dataset.get_type().get_size()) if is_chunked else 0
        self.count(stored, name)
        if self._unwritten_left < 0 or chunk > max(allowed, _MAX_UNWRITTEN_BYTES):
            raise CorruptFileError(
                "a data set claims more elements than the file can hold",
                expected=f"at most {allowed} bytes, and {_MAX_UNWRITTEN_BYTES} in all that were never written",
                found=f"{nbytes} bytes, of which {stored} are stored, in chunks of {chunk} bytes",
                where=self._at(name),
                todo="the file is damaged; or exclude data sets that were never written (keys=)",
            )

    def count(self, nbytes: int, name: str) -> None:
        """Check that the data sets together are not larger than the file."""
        self._bytes_left -= nbytes
        if self._bytes_left < 0:
            raise CorruptFileError(
                "the data sets of a file have more bytes than the file",
                expected=f"at most {self._file.size} bytes in all",
                where=self._at(name),
                todo="the file is damaged",
            )

    def source(self, dataset: h5py.h5d.DatasetID, kind: LeafType, name: str) -> Source:
        """The source of a leaf's bytes."""
        offset = dataset.get_offset()  # None unless contiguous
        if offset is not None:
            return FileSpan(self._file, int(offset), kind.nbytes)
        return _Compressed(dataset, kind, self._at(name))

    def _at(self, name: str) -> str:
        return f"{self._where}, {name}"


def _nbytes(dataset: h5py.h5d.DatasetID) -> int:
    return math.prod(dataset.shape or ()) * int(dataset.get_type().get_size())


class _Compressed:
    """The bytes of a chunked data set, which is in memory as a whole while it is read."""

    def __init__(self, dataset: h5py.h5d.DatasetID, kind: LeafType, where: str) -> None:
        self.nbytes = kind.nbytes
        self._dataset, self._where = dataset, where
        self._held: memoryview | None = None

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from byte ``start``."""
        if self._held is None:
            data = np.empty(self.nbytes, dtype=np.uint8)
            with _typed(self._where):  # in the stored type: no conversion
                self._dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, data, mtype=self._dataset.get_type())
            self._held = data.data
        stop = start + buffer.nbytes
        buffer.cast("B")[:] = self._held[start:stop]
        if stop == self.nbytes:
            self._held = None


def _type_of(dataset: h5py.h5d.DatasetID, where: str) -> LeafType:
    """The leaf type of a data set."""
    stored, shape = dataset.get_type(), tuple(map(int, dataset.shape or ()))
    candidates = [*(("torch", each) for each in _TORCH), *(("numpy", each) for each in _NUMPY)]
    found = next((each for each in candidates if stored_type(LeafType(*each, ())).equal(stored)), None)
    if found is None and isinstance(stored, h5py.h5t.TypeOpaqueID) and (dtype := _opaque_dtype(stored)):
        found = "numpy", dtype
    if found is None and isinstance(stored, h5py.h5t.TypeStringID) and not stored.is_variable_str():
        found = "numpy", f"|S{stored.get_size()}"
    if found is None:
        raise UnsupportedLeafError(
            "the element type of a data set is not supported",
            expected="numbers, booleans, complex numbers as h5py stores them, or strings of fixed length",
            found=_describe(stored),
            where=where,
            todo="leave it out (keys=), or store it as numbers",
        )
    kind = LeafType(*found, shape)
    kind.check(where)
    return kind


def _opaque_dtype(stored: Any) -> str:
    """The numpy dtype in the tag of an opaque type of h5py, if it is allowed; "" otherwise."""
    tag = bytes(stored.get_tag()).decode("ascii", "replace")
    kind = LeafType("numpy", tag.removeprefix(_OPAQUE_TAG), ())
    try:
        kind.check("an opaque type")
    except CorruptFileError:
        return ""
    return np.dtype(kind.dtype).str if tag.startswith(_OPAQUE_TAG) and kind.itemsize == stored.get_size() else ""


def _describe(stored: Any) -> str:
    kind = type(stored).__name__.removeprefix("Type").removesuffix("ID").lower()
    return f"{kind} of {stored.get_size()} bytes"


def _first_error(state: Any) -> DeeppartError | None:
    """The first error in a state, in place of an item that cannot be read."""
    stack = [state]
    while stack:
        item = stack.pop()
        if isinstance(item, DeeppartError):
            return item
        if isinstance(item, dict):
            stack += list(item.values())[::-1]
        elif isinstance(item, (list, tuple)):
            stack += list(item)[::-1]
    return None
