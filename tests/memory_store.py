"""A store in the memory of this process: what a store has to be, with no file system below it."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from deeppart.errors import CorruptFileError, MissingError, StorageError
from deeppart.storage import Stat


class MemoryStore:
    """Objects in a dict; see :class:`deeppart.storage.Store`."""

    def __init__(self, name: str = "test") -> None:
        self._name = name
        self._lock = threading.Lock()
        #: Key -> bytes and time; guarded by the lock.
        self.objects: dict[str, tuple[bytes, float]] = {}

    def where(self, key: str = "") -> str:
        return f"memory:{self._name}/{key}" if key else f"memory:{self._name}"

    def put_new(self, key: str, data: bytes) -> None:
        with self._lock:
            if key in self.objects:
                raise StorageError("there is such an object", errno=errno.EEXIST, where=self.where(key))
            self.objects[key] = bytes(data), time.time()

    def replace(self, key: str, data: bytes, *, durable: bool = True) -> None:
        with self._lock:
            self.objects[key] = data, time.time()

    def get(self, key: str, limit_bytes: int) -> bytes:
        data, _ = self._found(key)
        if len(data) > limit_bytes:
            raise CorruptFileError("an object is too long", where=self.where(key))
        return data

    def open(self, key: str) -> MemoryObject:
        return MemoryObject(self, key, *self._found(key))

    def stat(self, key: str) -> Stat | None:
        found = self.objects.get(key)
        return None if found is None else Stat(len(found[0]), found[1])

    def list(self, place: str = "") -> list[str]:
        prefix = f"{place}/" if place else ""
        with self._lock:
            found = {key[len(prefix) :].partition("/")[0] for key in self.objects if key.startswith(prefix)}
        if place and not found:
            raise self._missing(place)
        return list(found)

    def delete(self, place: str, names: Sequence[str], *, durable: bool = True) -> None:
        for name in names:
            key = f"{place}/{name}" if place else name
            with self._lock:
                if self.objects.pop(key, None) is None:
                    raise self._missing(key)

    def writer(self, key: str) -> MemoryWriter:
        return MemoryWriter(self, key)

    def _found(self, key: str) -> tuple[bytes, float]:
        with self._lock:
            if key not in self.objects:
                raise self._missing(key)
            return self.objects[key]

    def _missing(self, key: str) -> MissingError:
        return MissingError("there is no such object", errno=errno.ENOENT, where=self.where(key))


class MemoryObject:
    """One that is open."""

    def __init__(self, store: MemoryStore, key: str, data: bytes, written: float) -> None:
        self._store, self._key, self._data = store, key, data
        self.size, self.written = len(data), written

    def read_at(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > self.size:
            raise CorruptFileError("the object ends before that", where=self._store.where(self._key))
        return self._data[offset : offset + length]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer.cast("B")[:] = self.read_at(offset, buffer.nbytes)

    def at_step(self, place: str) -> MemoryObject:
        return self._store.open(f"{place}/{self._key.rpartition('/')[2]}")

    def reopen(self) -> MemoryObject:
        return MemoryObject(self._store, self._key, self._data, self.written)

    def close(self) -> None:
        self._data = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class MemoryWriter:
    """One that is being written."""

    def __init__(self, store: MemoryStore, key: str) -> None:
        self._store, self._key, self._data = store, key, bytearray()
        self.busy_s = 0.0

    def write(self, buffer: memoryview | bytes, /) -> None:
        self._data += memoryview(buffer).cast("B")

    def restart(self) -> None:
        self._data.clear()

    def commit(self) -> None:
        self._store.put_new(self._key, bytes(self._data))

    def abort(self) -> None:
        self._data.clear()
