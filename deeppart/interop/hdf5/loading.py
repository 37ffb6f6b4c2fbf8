"""Open HDF5 files: archives that ``deeppart export`` has written, exactly; those of others as nested dicts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from deeppart.errors import CorruptFileError, DeeppartError
from deeppart.interop.files import ForeignFile
from deeppart.interop.hdf5.containers import Refused, container_of, first_refused, in_order, key_of, value_of
from deeppart.interop.hdf5.elements import Elements, is_text, type_of
from deeppart.interop.hdf5.links import Links, attribute, identity, open_file, scalar_of, typed
from deeppart.interop.opened import Opened, Source, address_of
from deeppart.state.tree.composites import COMPOSITES
from deeppart.state.tree.leaves import flat_bytes, new_array
from deeppart.state.tree.paths import Path as KeyPath
from deeppart.state.tree.paths import readable

#: Links of a file, one object may be under many names: what is nested in many ways would have no end.
_MOST_LINKS = 1_000_000
_MOST_DEPTH = 200
_ARCHIVE = "deeppart_archive"


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
    file = open_file(f"/proc/self/fd/{descriptor}", where)
    closing.callback(file.close)
    with typed(where):
        walk = _Walk(foreign, file, where)
        state = walk.state()
    opened = Opened("hdf5", state, walk.sources, 1, closing, walk.remarks())
    opened.choose(keys, where)
    if (refused := first_refused(opened.state)) is not None:
        raise refused.error
    return opened


class _Walk:
    """One walk over a file.

    Attributes:
        sources: address of a leaf -> where its bytes are.
    """

    def __init__(self, foreign: ForeignFile, file: h5py.h5f.FileID, where: str) -> None:
        self._links, self._where = Links(file, where), where
        self._elements = Elements(foreign, where)
        self._is_archive = attribute(self._links.root, _ARCHIVE) == 1
        #: Number of an object of the file -> what was made of it; of groups only while they are open.
        self._leaves: dict[int, Any] = {}
        self._open: set[int] = set()
        self._left, self._attributes, self._dangling, self._composites = _MOST_LINKS, 0, 0, 0
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
        if self._dangling:
            found.append(f"soft links that lead nowhere were left out: {self._dangling}")
        if self._composites:
            found.append(f"tensors that are made of others are held in memory as a whole: {self._composites}")
        return tuple(found)

    def _item(self, item: Any, path: KeyPath) -> Any:
        if isinstance(item, h5py.h5g.GroupID):
            return self._group(item, path)
        number = identity(item)
        if number not in self._leaves:
            self._leaves[number] = self._dataset(item, number, readable(path))
        return self._leaves[number]

    def _group(self, group: h5py.h5g.GroupID, path: KeyPath) -> Any:
        number = identity(group)
        if number in self._open or len(path) > _MOST_DEPTH:
            raise CorruptFileError(
                "a group of an HDF5 file contains itself, or groups are nested too deeply",
                expected=f"at most {_MOST_DEPTH} groups inside each other",
                where=f"{self._where}, {readable(path)[:200]}",
                todo="leave out the link that leads back (h5repack does not copy it)",
            )
        self._open.add(number)
        kind = attribute(group, "type") if self._is_archive else None
        order = attribute(group, "order") if self._is_archive else None
        if kind == "namedtuple" and order is None:
            kind = "dict"  # of a release that has not noted it: fields would be exchanged
        self._count_attributes(group)
        found: list[tuple[Any, Any]] = []
        for encoded in in_order(self._links.names(group), order):
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
        return container_of(
            str(kind), attribute(group, "name"), attribute(group, "form"), items, f"{self._where}, {readable(path)}"
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
            if item is None:
                self._dangling += 1
                return
            key = key_of(attribute(item, "key"), name, kind, self._where) if self._is_archive else name
            found.append((key, self._item(item, (*path, key))))
        except DeeppartError as error:
            found.append((key, Refused(error)))

    def _dataset(self, dataset: h5py.h5d.DatasetID, number: int, name: str) -> Any:
        where = f"{self._where}, {name}"
        self._elements.check(dataset, name)
        self._count_attributes(dataset)
        said = attribute(dataset, "type") if self._is_archive else None
        if self._is_archive and not _is_leaf(said):
            return value_of(scalar_of, dataset, {each: attribute(dataset, each) for each in _OF_VALUES}, where)
        if dataset.get_space().get_simple_extent_type() == h5py.h5s.NULL:
            return None
        if said is None and is_text(dataset) and dataset.shape == ():
            return scalar_of(dataset)
        kind = type_of(dataset, None if said is None else str(said), where)
        array = new_array(kind)
        if kind.nbytes:
            self.sources[address_of(array)] = self._elements.source(dataset, kind, number, name)
        return array

    def _in_memory(self, item: Any) -> Any:
        """A component of a tensor that is made of others, with its bytes."""
        if isinstance(item, (torch.Tensor, np.ndarray)) and (source := self.sources.get(address_of(item))) is not None:
            source.read_into(0, flat_bytes(item).data)
        return item

    def _count_attributes(self, item: Any) -> None:
        if not self._is_archive:
            self._attributes += h5py.h5a.get_num_attrs(item)


_OF_VALUES = ("type", "items", "encoding", "form")


def _is_leaf(said: str | int | None) -> bool:
    """True if the attribute ``type`` of an archive's data set is that of a leaf: ``torch.float32``, ``numpy.<f4``."""
    library, _, dtype = str(said).partition(".")
    return library == "torch" or (library == "numpy" and not dtype.replace("_", "").isalnum())
