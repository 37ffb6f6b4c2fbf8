"""A store: objects under keys, each whole or not there. What a level, its manifests and its records lie in.

A key is a text such as ``step-.../part-00000-of-00002.dpp``, relative to the store; what is before its slash is its
*place*. An object is made once and not changed. The exceptions are small records that are no part of a checkpoint
(:meth:`Store.replace`). :class:`deeppart.storage.PosixStore` is a directory. Another store is a class with these
methods that passes tests/conformance/stores.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from deeppart.part import StoredBytes


@dataclass(frozen=True, slots=True)
class Stat:
    """What a store says of an object without reading it.

    Attributes:
        nbytes: its length.
        written: when it was written, in seconds since 1970.

    Example:
        >>> from pathlib import Path
        >>> from deeppart.storage import PosixStore
        >>> store = PosixStore(Path.cwd())
        >>> store.replace("record.json", b"{}")
        >>> store.stat("record.json").nbytes, store.stat("no such object")
        (2, None)
    """

    nbytes: int
    written: float


class Writer(Protocol):
    """An object that is being written.

    Raises:
        StorageError: from every method but :meth:`abort`.
    """

    @property
    def busy_s(self) -> float:
        """Seconds spent on writing it, and on making it durable."""

    def write(self, buffer: memoryview | bytes, /) -> None:
        """Append all of the buffer."""

    def restart(self) -> None:
        """Forget what was written and begin again."""

    def commit(self) -> None:
        """Make the object durable and give it its key; ``EEXIST`` if there is one of that key."""

    def abort(self) -> None:
        """Leave nothing of it; a second call does nothing."""


class Store(Protocol):
    """Where objects lie. Threads may share one.

    Raises:
        StorageError: from every method but :meth:`where`, when the store refuses. From :meth:`get`, :meth:`open`,
            :meth:`list` and :meth:`delete` it is a :class:`~deeppart.errors.MissingError` for what is not there.
    """

    def where(self, key: str = "") -> str:
        """The address of an object, or of the store, for messages and other ranks: the store's, a slash, the key."""

    def put_new(self, key: str, data: bytes) -> None:
        """Make an object, durable when this returns, in a place that is there; ``EEXIST`` if there is one."""

    def replace(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Put a small record under a key, whatever is there; not ``durable``: nothing waits for a disk."""

    def get(self, key: str, limit_bytes: int) -> bytes:
        """All of a small object; CorruptFileError if it is longer than the limit, or none of this library."""

    def open(self, key: str) -> StoredBytes:
        """An object to read ranges from; close it."""

    def stat(self, key: str) -> Stat | None:
        """Of an object, None if there is none; CorruptFileError if what is there is none."""

    def list(self, place: str = "") -> list[str]:
        """The names in a place, of objects and of other places, in no order."""

    def delete(self, place: str, names: Sequence[str], *, durable: bool = True) -> None:
        """Remove objects of one place in this order, and the place, if it is not the store and nothing is left in it.

        Not ``durable``: nothing waits for a disk, and the place stays.
        """

    def writer(self, key: str) -> Writer:
        """Begin an object. Its place is made if it is not there."""
