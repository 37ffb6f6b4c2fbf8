"""What is in an HDF5 file, found without ever leaving it.

A link in an HDF5 file may lead to another object of the file (hard), to a path (soft), or into another file (external),
which the library would open. Here links are looked at before anything is opened: only hard ones are followed, paths of
soft ones are walked link by link, and none longer than the file is deep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from deeppart.errors import CorruptFileError, DeeppartError, UnsupportedLeafError
from deeppart.part.format import short

_MOST_SOFT = 32
#: Of an attribute; longer ones are stored elsewhere in the file, and none that is read here is.
_MOST_ATTRIBUTE_BYTES = 1 << 20
_READABLE = (
    h5py.h5t.TypeStringID,
    h5py.h5t.TypeIntegerID,
    h5py.h5t.TypeFloatID,
    h5py.h5t.TypeEnumID,
    h5py.h5t.TypeCompoundID,
)
_OUTSIDE = {h5py.h5l.TYPE_EXTERNAL: "an external link"}


@contextmanager
def typed(where: str) -> Iterator[None]:
    """What a file makes h5py raise, as one of the library's errors."""
    try:
        yield
    except DeeppartError:
        raise
    except Exception as error:  # of whatever kind: h5py raises several for what HDF5 says
        raise CorruptFileError(
            "an HDF5 file cannot be read",
            found=f"{type(error).__name__}: {short(str(error))}",
            where=where,
            todo="it is damaged, or not complete: fetch it again",
        ) from error


class Links:
    """The links of one file."""

    def __init__(self, file: h5py.h5f.FileID, where: str) -> None:
        self._root = h5py.h5g.open(file, b"/")
        self._where = where

    @property
    def root(self) -> h5py.h5g.GroupID:
        """The outermost group."""
        return self._root

    def names(self, group: h5py.h5g.GroupID) -> list[bytes]:
        """The names in a group: as they were made where it knows that, otherwise sorted."""
        by_making = bool(group.get_create_plist().get_link_creation_order() & h5py.h5p.CRT_ORDER_TRACKED)
        names: list[bytes] = []
        index = h5py.h5.INDEX_CRT_ORDER if by_making else h5py.h5.INDEX_NAME
        group.links.iterate(names.append, idx_type=index, order=h5py.h5.ITER_INC)
        return names

    def target(self, group: h5py.h5g.GroupID, name: bytes) -> h5py.h5d.DatasetID | h5py.h5g.GroupID | None:
        """What a link leads to; None where a soft one leads nowhere."""
        found = self._follow(group, name, [_MOST_SOFT])
        if found is None or isinstance(found, (h5py.h5d.DatasetID, h5py.h5g.GroupID)):
            return found
        raise self._refusal(name, f"a {type(found).__name__}", "leave it out (keys=): it has no elements")

    def _follow(self, group: h5py.h5g.GroupID, name: bytes, left: list[int]) -> Any:
        kind = group.links.get_info(name).type
        if kind == h5py.h5l.TYPE_HARD:
            return h5py.h5o.open(group, name)
        if kind != h5py.h5l.TYPE_SOFT:
            todo = "copy what it leads to into the file, or leave it out (keys=)"
            raise self._refusal(name, _OUTSIDE.get(kind, "a link of a kind that a program defines"), todo)
        left[0] -= 1
        if left[0] < 0:
            raise CorruptFileError(
                "soft links of an HDF5 file lead to each other without an end",
                expected=f"at most {_MOST_SOFT} in a row",
                found=short(name),
                where=self._where,
                todo="leave them out (keys=)",
            )
        path: bytes = group.links.get_val(name)
        here = self._root if path.startswith(b"/") else group
        for part in (each for each in path.split(b"/") if each not in (b"", b".")):
            if not isinstance(here, h5py.h5g.GroupID) or not here.links.exists(part):
                return None
            here = self._follow(here, part, left)
        return here

    def _refusal(self, name: bytes, found: str, todo: str) -> UnsupportedLeafError:
        return UnsupportedLeafError(
            "an HDF5 file has something that is not in it, or no group or data set",
            expected="groups and data sets of the file itself",
            found=f"{found}, {short(name)}",
            where=self._where,
            todo=todo,
        )


def identity(item: h5py.h5d.DatasetID | h5py.h5g.GroupID) -> int:
    """A number that two links to one object of a file have in common."""
    return int(h5py.h5o.get_info(item).addr)


def attribute(item: h5py.h5d.DatasetID | h5py.h5g.GroupID, name: str) -> str | int | None:
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


def scalar_of(dataset: h5py.h5d.DatasetID) -> Any:
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


def open_file(path: Path | str, where: str) -> h5py.h5f.FileID:
    """An HDF5 file, to be read; without HDF5's cache of chunks, of which each data set would keep its own."""
    with typed(where):
        return h5py.File(path, "r", locking=False, rdcc_nbytes=0).id
