"""The interface of a store: objects under keys, each complete or absent. Levels, manifests and records are in stores.

A key is text such as ``step-.../part-00000-of-00002.dpp``, relative to the store; the part before its slash is its
*place*. An object is created once and never changed, except for small records outside of checkpoints
(:meth:`Store.replace`). :class:`deeppart.storage.PosixStore` is a store in a directory. Any other class with these
methods that passes tests/conformance/stores.py is a store, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from deeppart.part import StoredBytes


@dataclass(frozen=True, slots=True)
class Stat:
    """Attributes of an object.

    Attributes:
        nbytes: length.
        written: time of writing, in seconds since 1970.

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
    """Writes one object.

    Raises:
        StorageError: from every method but :meth:`abort`.
    """

    @property
    def busy_s(self) -> float:
        """Seconds spent on writing, and on making the object durable."""

    def write(self, buffer: memoryview | bytes, /) -> None:
        """Append all of the buffer."""

    def restart(self) -> None:
        """Discard what was written, and start again."""

    def commit(self) -> None:
        """Make the object durable and give it its key; ``EEXIST`` if the key is taken."""

    def abort(self) -> None:
        """Discard the object. Idempotent."""


class Store(Protocol):
    """A store of objects. Thread-safe.

    Raises:
        StorageError: from every method but :meth:`where`, when the store refuses. From :meth:`get`, :meth:`open`,
            :meth:`list` and :meth:`delete` it is a :class:`~deeppart.errors.MissingError` if there is no such object.
    """

    def where(self, key: str = "") -> str:
        """The address of an object or of the store, for messages and other ranks: the store's, a slash, the key."""

    def put_new(self, key: str, data: bytes) -> None:
        """Create an object in an existing place, durably; ``EEXIST`` if the key is taken."""

    def replace(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Create or replace a small record; not ``durable``: without waiting for a disk."""

    def get(self, key: str, limit_bytes: int) -> bytes:
        """Read a small object; CorruptFileError if it is longer than the limit, or not a regular file."""

    def open(self, key: str) -> StoredBytes:
        """Open an object for reading ranges. The caller closes it."""

    def stat(self, key: str) -> Stat | None:
        """The attributes of an object, None if there is none; CorruptFileError if it is not a regular file."""

    def list(self, place: str = "") -> list[str]:
        """The names of objects and places in a place, in no particular order."""

    def delete(self, place: str, names: Sequence[str], *, durable: bool = True) -> None:
        """Remove objects of one place in this order; then the place, if it is empty and not the store itself.

        Not ``durable``: without waiting for a disk, and the place stays.
        """

    def writer(self, key: str) -> Writer:
        """Begin an object; its place is created if necessary."""
