"""HDF5 files: archives of ``deeppart export``, exactly, and nested groups of data sets that others have written.

Nothing that HDF5 could be made to read from elsewhere, or to run, is read: soft and external links, elements in other
files (external storage, virtual data sets), filters that are not part of HDF5 and h5py, and types whose elements are
references or have a length of their own are refused. What a data set says of its length is compared with the bytes that
the file has for it.
"""

from __future__ import annotations

import json
import keyword
import math
import os
import re
from collections import namedtuple
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from deeppart.errors import CorruptFileError, DeeppartError, UnsupportedLeafError, short
from deeppart.extension import ForeignFile, LeafType, decode, leaf_bytes, readable
from deeppart.extension.export.hdf5 import stored_type
from deeppart.interop.opened import FileSpan, Opened, Source, address_of, damage_named
from deeppart.state.objects import ABOUT, DEQUE, ObjectForm, make
from deeppart.state.tensors import COMPOSITES, assemble
from deeppart.state.values import TABLE_MAKERS

KeyPath = tuple[Any, ...]
#: Links of a file, one object may be under many names: what is nested in many ways would have no end.
_MOST_LINKS = 1_000_000
_MOST_DEPTH = 200
_ARCHIVE = "deeppart_archive"
_OF_VALUES = ("type", "items", "encoding", "form")
#: Of an attribute; longer ones are stored elsewhere in the file, and none that is read here is.
_MOST_ATTRIBUTE_BYTES = 1 << 20
_READABLE = (
    h5py.h5t.TypeStringID,
    h5py.h5t.TypeIntegerID,
    h5py.h5t.TypeFloatID,
    h5py.h5t.TypeEnumID,
    h5py.h5t.TypeCompoundID,
)
#: Of deflate, and what else is part of HDF5 and h5py. Others are libraries that HDF5 would look for and load.
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 5: "nbit", 6: "scaleoffset", 32000: "lzf"}
#: deflate makes at most 1,032 bytes of one.
_MOST_EXPANDED = 1100
#: What was never written has no bytes in the file; so much of it is believed.
_MOST_UNWRITTEN_BYTES = 1 << 20
#: Types that others use, by name of torch's; tried in this order.
_TORCH = (
    "float64 float32 float16 bfloat16 complex128 complex64 complex32 int64 int32 int16 int8 "
    "uint64 uint32 uint16 uint8 bool"
).split()
#: NUL, and halves of surrogate pairs.
_NOT_IN_NAMES = re.compile("[\0\ud800-\udfff]")
_OPAQUE_TAG = "NUMPY:"
#: Names of numpy for what torch has in the order of bytes of this machine alone.
_NUMPY = [f"{order}{code}" for order in "><" for code in ("f2", "f4", "f8", "i2", "i4", "i8", "u2", "u4", "u8", "c8")]
_NUMPY += [f"{order}c16" for order in "><"]

Attribute = str | int | None
_NUMBERS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "bool": bool, "complex": complex}


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
        state = walk.state()
    opened = Opened("hdf5", state, walk.sources, 1, walk.remarks())
    opened.choose(keys, where)
    if (refused := _first_refused(opened.state)) is not None:
        raise refused.error
    return opened


class _Walk:
    """One walk over a file; :attr:`sources`: address of a leaf -> where its bytes are."""

    def __init__(self, foreign: ForeignFile, file: h5py.h5f.FileID, where: str) -> None:
        self._links, self._where = _Links(file, where), where
        self._elements = _Elements(foreign, where)
        self._is_archive = _attribute(self._links.root, _ARCHIVE) == 1
        #: Number of an object of the file -> what was made of it; of groups only while they are open.
        self._leaves: dict[int, Any] = {}
        self._open: set[int] = set()
        self._left, self._attributes, self._composites = _MOST_LINKS, 0, 0
        self.sources: dict[int, Source] = {}

    def state(self) -> Any:
        """All of it."""
        root = self._links.root
        if not self._is_archive:
            return self._group(root, ())
        inner = self._links.target(root, b"state") if root.links.exists(b"state") else None
        if inner is None:
            raise CorruptFileError("an archive of deeppart export has no state", where=self._where)
        return self._item(inner, ())

    def remarks(self) -> tuple[str, ...]:
        """Lines about what is not there, or is in memory."""
        found = []
        if self._attributes:
            found.append(f"attributes of groups and data sets were left out: {self._attributes}")
        if self._composites:
            found.append(f"tensors that are made of others are held in memory as a whole: {self._composites}")
        return tuple(found)

    def _item(self, item: Any, path: KeyPath) -> Any:
        if isinstance(item, h5py.h5g.GroupID):
            return self._group(item, path)
        number = _identity(item)
        if number not in self._leaves:
            self._leaves[number] = self._dataset(item, readable(path))
        return self._leaves[number]

    def _group(self, group: h5py.h5g.GroupID, path: KeyPath) -> Any:
        number = _identity(group)
        if number in self._open or len(path) > _MOST_DEPTH:
            raise CorruptFileError(
                "a group of an HDF5 file contains itself, or groups are nested too deeply",
                expected=f"at most {_MOST_DEPTH} groups inside each other",
                where=f"{self._where}, {readable(path)[:200]}",
                todo="leave out the link that leads back (h5repack does not copy it)",
            )
        self._open.add(number)
        kind = _attribute(group, "type") if self._is_archive else None
        order = _attribute(group, "order") if self._is_archive else None
        if kind == "namedtuple" and order is None:
            kind = "dict"  # of a release that has not noted it: fields would be exchanged
        self._count_attributes(group)
        found: list[tuple[Any, Any]] = []
        for encoded in _in_order(self._links.names(group), order):
            self._left -= 1
            if self._left < 0:
                raise CorruptFileError(
                    "an HDF5 file has too many links", expected=f"at most {_MOST_LINKS}", where=self._where
                )
            name = encoded.decode("utf-8")
            self._add(found, group, encoded, name, path, kind)
        self._open.discard(number)
        if not self._is_archive:
            return dict(found)
        items = {key: self._in_memory(item) for key, item in found} if kind in COMPOSITES else dict(found)
        self._composites += kind in COMPOSITES
        return _container_of(
            str(kind), _attribute(group, "name"), _attribute(group, "form"), items, f"{self._where}, {readable(path)}"
        )

    def _add(
        self,
        found: list[tuple[Any, Any]],
        group: h5py.h5g.GroupID,
        encoded: bytes,
        name: str,
        path: KeyPath,
        kind: str | int | None,
    ) -> None:
        """Append what a link leads to; what is refused takes part in the choice of keys first."""
        key: Any = name
        try:
            item = self._links.target(group, encoded)
            key = _key_of(_attribute(item, "key"), name, kind, self._where) if self._is_archive else name
            found.append((key, self._item(item, (*path, key))))
        except DeeppartError as error:
            found.append((key, _Refused(error)))

    def _dataset(self, dataset: h5py.h5d.DatasetID, name: str) -> Any:
        where = f"{self._where}, {name}"
        self._elements.check(dataset, name)
        self._count_attributes(dataset)
        said = _attribute(dataset, "type") if self._is_archive else None
        if self._is_archive and not _is_leaf(said):
            return _value_of(dataset, {each: _attribute(dataset, each) for each in _OF_VALUES}, where)
        if dataset.get_space().get_simple_extent_type() == h5py.h5s.NULL:
            return None
        if said is None and _is_text(dataset) and dataset.shape == ():
            return _scalar_of(dataset)
        kind = _type_of(dataset, None if said is None else str(said), where)
        array = kind.new()
        if kind.nbytes:
            self.sources[address_of(array)] = self._elements.source(dataset, kind, name)
        return array

    def _in_memory(self, item: Any) -> Any:
        """A component of a tensor that is made of others, with its bytes."""
        if isinstance(item, (torch.Tensor, np.ndarray)) and (source := self.sources.get(address_of(item))) is not None:
            source.read_into(0, leaf_bytes(item).data)
        return item

    def _count_attributes(self, item: Any) -> None:
        if not self._is_archive:
            self._attributes += h5py.h5a.get_num_attrs(item)


def _is_leaf(said: str | int | None) -> bool:
    """True if the attribute ``type`` of an archive's data set is that of a leaf: ``torch.float32``, ``numpy.<f4``."""
    library, _, dtype = str(said).partition(".")
    return library == "torch" or (library == "numpy" and not dtype.replace("_", "").isalnum())


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


def _attribute(item: h5py.h5d.DatasetID | h5py.h5g.GroupID, name: str) -> str | int | None:
    """An attribute that is one text or one integer; None if there is none of that kind."""
    encoded = name.encode()
    if not h5py.h5a.exists(item, encoded):
        return None
    found = h5py.h5a.open(item, encoded)
    kind = found.get_type()
    plain = isinstance(kind, (h5py.h5t.TypeStringID, h5py.h5t.TypeIntegerID)) and found.shape == ()
    if not plain or found.get_storage_size() > _MOST_ATTRIBUTE_BYTES:
        return None
    value = _wrapped(item).attrs[name]
    return value if isinstance(value, str) else value.decode() if isinstance(value, bytes) else int(value)


def _wrapped(item: h5py.h5d.DatasetID | h5py.h5g.GroupID) -> Any:
    """With h5py's reader of texts."""
    made: Callable[[Any], Any] = h5py.Dataset if isinstance(item, h5py.h5d.DatasetID) else h5py.Group
    return made(item)


def _scalar_of(dataset: h5py.h5d.DatasetID) -> Any:
    """What a data set holds, by h5py's reader: numbers, or a text; of opaque elements their bytes.

    To be asked once its length is known to be harmless.
    """
    kind = dataset.get_type()
    if isinstance(kind, h5py.h5t.TypeOpaqueID):  # h5py would have numpy interpret what the file calls it
        octets = np.empty(kind.get_size(), dtype=np.uint8)
        dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, octets, mtype=kind)
        return octets.tobytes()
    if not isinstance(kind, _READABLE):
        raise TypeError(f"a {type(kind).__name__} where a value should be")
    found = _wrapped(dataset)[()]
    return found.decode("utf-8") if isinstance(found, bytes) else found


# --- elements ---


class _Elements:
    """What may be read of a file's data sets."""

    def __init__(self, file: ForeignFile, where: str) -> None:
        self._file, self._where = file, where
        self._left = file.size

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
        self._left -= stored
        if nbytes > allowed or self._left < 0:
            raise CorruptFileError(
                "a data set says that it has more elements than the file can hold",
                expected=f"at most {allowed} bytes, and {self._file.size} in all",
                found=f"{nbytes} bytes, of which {stored} are stored",
                where=self._at(name),
                todo="the file is damaged; or leave out what was never written (keys=)",
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


def _type_of(dataset: h5py.h5d.DatasetID, said: str | None, where: str) -> LeafType:
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


# --- keys, containers and small values of an archive: the inverse of extension/export/ ---


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


def _key_of(said: Attribute, name: str, kind: Attribute, where: str) -> Any:
    """The key of what has a name in a group."""
    if said is not None:
        key = decode(json.loads(str(said)), where)
        hash(key)
        return key
    return int(name) if kind in ("list", "tuple") else name


def _in_order(names: list[bytes], said: Attribute) -> list[bytes]:
    """The names in a group, as its attribute ``order`` has them if it has one."""
    if said is None:
        return names
    ordered = [str(name).encode() for name in json.loads(str(said))]
    if sorted(ordered) != sorted(names):
        raise ValueError("the order of a container is one of other names")
    return ordered


def _container_of(kind: str, name: Attribute, form: Attribute, items: dict[Any, Any], where: str) -> Any:
    """A container, a tensor that is made of others, or an object."""
    if (refused := _first_refused(list(items.values()))) is not None and (kind not in TABLE_MAKERS or form):
        return refused
    if kind in ("list", "tuple"):
        if sorted(items) != list(range(len(items))):
            raise ValueError(f"items {short(list(items))} of a {kind}")
        made: Any = [items[place] for place in range(len(items))]
        made = made if kind == "list" else tuple(made)
    elif kind == "namedtuple":
        made = _named_tuple(str(name), items)
    elif kind in COMPOSITES:
        made = assemble(kind, items)
    elif kind in TABLE_MAKERS:
        made = TABLE_MAKERS[kind](items.items())
    else:
        raise ValueError(f"a container of kind {short(kind)}")
    return made if form is None else _object_of(str(form), made, where)


def _named_tuple(name: str, items: dict[Any, Any]) -> Any:
    names = [name, *items]
    if not all(type(each) is str and each.isidentifier() and not keyword.iskeyword(each) for each in names[:1]):
        raise ValueError(f"no class can be called {short(name)}")
    return namedtuple(name, list(items), rename=True)(*items.values())


def _object_of(form: str, data: Any, where: str) -> Any:
    """An object without a ``state_dict()``, as ``deeppart.load`` gives it."""
    kind, *about = [tuple(each) if type(each) is list else each for each in json.loads(form)]
    names = [] if kind == DEQUE else [text for each in about for text in (each if type(each) is tuple else (each,))]
    if kind not in ABOUT or len(about) != ABOUT[kind]:
        raise ValueError(f"no form of an object: {short(form)}")
    if not all(
        type(text) is str and not any(each == "\0" or "\ud800" <= each <= "\udfff" for each in text) for text in names
    ):
        raise ValueError(f"an object without a name: {short(form)}")
    if kind == DEQUE and about[0] is not None and (type(about[0]) is not int or about[0] < 0):
        raise ValueError(f"a deque of {short(about[0])}")
    return make(ObjectForm(kind, tuple(about)), data, None, lambda: where)


def _value_of(dataset: h5py.h5d.DatasetID, said: dict[str, Attribute], where: str) -> Any:
    """A small value."""
    kind = str(said["type"])
    if dataset.get_space().get_simple_extent_type() == h5py.h5s.NULL:
        found: Any = None
        if kind != "NoneType":
            raise CorruptFileError("a value of an archive is missing", expected=kind, where=where)
        return found
    content = _scalar_of(dataset)
    if said["encoding"] == "json":
        found = decode(json.loads(content), where)
    elif said["items"] is not None:
        found = list(map(_NUMBERS[str(said["items"])], content.tolist()))
        found = tuple(found) if kind == "tuple" else found
    elif kind in _NUMBERS:
        found = _NUMBERS[kind](content)
    elif kind == "bytes":
        found = bytes(content)
    elif kind == "str":
        found = str(content)
    elif kind.startswith("numpy.") and isinstance(content, np.generic):
        found = content
    else:
        raise CorruptFileError("a value of an archive is of no kind that is known", found=short(kind), where=where)
    return found if said["form"] is None else _object_of(str(said["form"]), found, where)
