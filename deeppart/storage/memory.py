"""Staging memory that survives its rank: under ``deeppart run``, shares are captured into a file in memory.

The file is a part file of raw chunks whose payload is the staging memory. After the capture, the store thread adds
header, index and footer and gives the file the name of the part: from then on the share survives the death of any
process. The name is removed before the next share is captured. A restore prefers these files to the local level.

Each rank of a node has a slot. During a restore, a rank finds and reads the files in its slot, and in slots of ranks
that the node no longer has; no other rank reads them.
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

    The training thread and the store thread use it in turn, guarded by the lease of the staging memory.

    Args:
        directory: the agent's directory.
        lineage: of the persistent directory.
        slot: number of this rank's slot.
        slots: number of ranks of this node.
        say: prints a line for the user.
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
        """Whether this rank has captured nothing, and there is no part to find."""
        return self._memory is None and all(
            name == _FILE for home in self._slots_here() for name in access.names_in(home)
        )

    def take_stock(self, signing: Signing | None, found: NodeContents) -> None:
        """Add the parts that this rank finds."""
        for home in self._slots_here():
            list_level(home, MEMORY, self._lineage, signing, found)

    def reserve(self, nbytes: int) -> memoryview | None:
        """Return memory for a share, after removing the name of its earlier content; None if there is no memory."""
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
        os.posix_fallocate(self._fd, 0, HEADER_BYTES + nbytes)  # using a page that cannot be allocated is a SIGBUS
        self._memory = mmap.mmap(self._fd, HEADER_BYTES + nbytes)

    def holds(self, share: npt.NDArray[np.uint8]) -> bool:
        """Whether a share was captured into this memory rather than into pinned memory."""
        if self._memory is None or len(share) != self._nbytes:
            return False
        mine = np.frombuffer(self._memory, np.uint8)[HEADER_BYTES:]
        return not len(share) or share.ctypes.data == mine.ctypes.data

    def sink(self) -> PartInMemory:
        """Return a sink for the bytes of the part, which skips the payload."""
        return PartInMemory(self._fd, self._nbytes, self._store.where(_FILE))

    def name(self, attempt: Attempt, rank: int) -> None:
        """Give the complete file the name of the part."""
        key = part_key(attempt, rank)
        path = self._store.path(key)
        try:
            access.make_folder(path.parent)
            access.link(self._store.path(_FILE), path)
        except OSError as error:
            raise storage_error("cannot name a part in memory", error, path) from error
        self._key = key

    def drop(self) -> None:
        """Remove the files in this rank's slots; existing mappings stay valid."""
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
        """Release the memory; its part stays."""
        self._key, self._nbytes, self._memory = "", -1, None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _slots_here(self) -> list[Path]:
        """Directories of this rank's slot, and of slots of former ranks that it takes over."""
        try:
            names = access.names_in(self._home)
        except OSError:
            return []
        return [self._home / name for name in sorted(names) if name.isdigit() and self._is_mine(int(name))]

    def _is_mine(self, slot: int) -> bool:
        return slot == self._slot if slot < self._slots else slot % self._slots == self._slot


class PartInMemory:
    """A sink for a part whose payload is the staging memory: writes only the bytes around the payload."""

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
