"""Staging memory that outlives its rank: under ``deeppart run`` a share is captured into a file in the agent's memory.

The file is the part file of raw chunks whose payload is the staging memory. When the share is captured, the store
thread adds header, index and footer, and the file gets the name of the part: from then on no process's death loses the
share. It loses the name before the next share is captured into it. A restore takes such files before those at local.

Each rank of a node has a slot. A rank of a restore finds, and alone reads, the files in its slot, and in those of ranks
that the node no longer has.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deeppart import access
from deeppart.access import storage_error
from deeppart.errors import StorageError
from deeppart.model import MEMORY, Attempt
from deeppart.part import HEADER_BYTES, Signing, part_key
from deeppart.storage.node import NodeContents, list_level
from deeppart.storage.posix import PosixStore, make_directory

_FOLDER, _FILE = "memory", "staging"


class MemoryLevel:
    """The staging memory of one rank in its agent's directory, and the parts that it and earlier ranks have left there.

    The training thread and the store thread use it in turn, as the lease of the staging memory says.

    Args:
        directory: the agent's.
        lineage: of the persistent directory.
        slot: this rank's.
        slots: how many ranks this node has.
        say: called with what the user should know.
    """

    def __init__(self, directory: Path, lineage: str, slot: int, slots: int, say: Callable[[str], object]) -> None:
        self.root = access.Root(directory, access.Rules(node=True))
        self._lineage, self._slot, self._slots, self._say = lineage, slot, slots, say
        self._home = self.root.path / _FOLDER / lineage
        self._store = PosixStore(self._home / str(slot))
        self._fd, self._nbytes = -1, -1
        self._memory: mmap.mmap | None = None
        self._key, self._is_refused = "", False

    @property
    def is_unused(self) -> bool:
        """Whether this rank has captured nothing into it, and would find no part."""
        return self._memory is None and all(
            name == _FILE for home in self._slots_here() for name in access.names_in(home)
        )

    def take_stock(self, signing: Signing | None, found: NodeContents) -> None:
        """Add the parts that this rank finds."""
        for home in self._slots_here():
            list_level(home, MEMORY, self._lineage, signing, found)

    def reserve(self, nbytes: int) -> memoryview | None:
        """Memory for a share, whose earlier contents lose their name; None if there is none."""
        if self._is_refused:
            return None
        try:
            if self._key:
                place, _, name = self._key.rpartition("/")
                self._store.delete(place, [name])
                self._key = ""
            if self._memory is None or nbytes != self._nbytes:
                self.drop()
                self._allocate(nbytes)
            os.ftruncate(self._fd, HEADER_BYTES + nbytes)
        except (OSError, StorageError) as error:
            self.drop()
            self._is_refused = True
            why = error.strerror if isinstance(error, OSError) else error.found
            self._say(
                f"no memory for {nbytes} bytes in {self.root.path} ({why}): a step can be restored after a "
                "rank has died only once it is at the local or persistent level"
            )
        return None if self._memory is None else memoryview(self._memory)[HEADER_BYTES:]

    def _allocate(self, nbytes: int) -> None:
        make_directory(self.root, _FOLDER, self._lineage, str(self._slot))
        self._fd, self._nbytes = access.create(self._store.path(_FILE)), nbytes
        os.posix_fallocate(self._fd, 0, HEADER_BYTES + nbytes)  # a page that is not there when it is used is a SIGBUS
        self._memory = mmap.mmap(self._fd, HEADER_BYTES + nbytes)

    def holds(self, share: npt.NDArray[np.uint8]) -> bool:
        """Whether a share was captured into this memory, not into pinned memory since."""
        if self._memory is None or len(share) != self._nbytes:
            return False
        mine = np.frombuffer(self._memory, np.uint8)[HEADER_BYTES:]
        return not len(share) or share.ctypes.data == mine.ctypes.data

    def sink(self) -> PartInMemory:
        """Takes the bytes of the part: those of the payload are there already."""
        return PartInMemory(self._fd, self._nbytes, self._store.where(_FILE))

    def name(self, attempt: Attempt, rank: int) -> None:
        """Give the file, whose part is whole, the part's name."""
        key = part_key(attempt, rank)
        path = self._store.path(key)
        try:
            access.make_folder(path.parent)
            access.link(self._store.path(_FILE), path)
        except OSError as error:
            raise storage_error("cannot name a part in memory", error, path) from error
        self._key = key

    def drop(self) -> None:
        """Remove the files in the slots of this rank; what has mapped them keeps its bytes."""
        self.close()
        for home in self._slots_here():
            store = PosixStore(home)
            with contextlib.suppress(StorageError):
                for name in store.list():
                    if name == _FILE:
                        store.delete("", [name])
                    else:
                        store.delete(name, store.list(name))

    def close(self) -> None:
        """Let go of the memory; its part stays."""
        self._key, self._nbytes, self._memory = "", -1, None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _slots_here(self) -> list[Path]:
        """Directories of this rank's slot and of those of ranks that are no more."""
        try:
            names = access.names_in(self._home)
        except OSError:
            return []
        return [self._home / name for name in sorted(names) if name.isdigit() and self._is_mine(int(name))]

    def _is_mine(self, slot: int) -> bool:
        return slot == self._slot if slot < self._slots else slot % self._slots == self._slot


class PartInMemory:
    """A sink for the part whose payload lies in staging memory: only what is around it is written."""

    def __init__(self, fd: int, payload_bytes: int, where: str) -> None:
        self._fd, self._end, self._where = fd, HEADER_BYTES + payload_bytes, where
        self._at = 0

    def write(self, buffer: memoryview | bytes, /) -> None:
        """Take the next bytes of the part."""
        data = memoryview(buffer).cast("B")
        if not HEADER_BYTES <= self._at < self._end:
            try:
                if os.pwrite(self._fd, data, self._at) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                raise storage_error("cannot write a part in memory", error, self._where) from error
        self._at += len(data)
