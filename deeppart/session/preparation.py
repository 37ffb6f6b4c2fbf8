"""Prepares the first checkpoint in the background: pages of staging memory, and local files.

At most one thread of low priority, which stops within a few MiB when asked to.
"""

from __future__ import annotations

import contextlib
import threading

from deeppart._threads import start_thread
from deeppart.errors import BackgroundFailureWarning, warn_now
from deeppart.model import Level
from deeppart.part import part_file_name
from deeppart.save import ShareSize, lower_priority
from deeppart.session.record import Session
from deeppart.state.capture import Staging
from deeppart.storage import spare_name

#: Bytes of a part file besides the share, usually at most: a constant, and for each leaf of the state.
_INDEX_BYTES, _INDEX_BYTES_PER_LEAF = 256 << 10, 200

#: The thread is joined for this long; it may hang in a system call on storage.
_PATIENCE_S = 5.0


class Preparation:
    """Prepares memory and files of one rank. Used by the training thread, until the session ends."""

    def __init__(self, session: Session, staging: Staging) -> None:
        self._session, self._staging = session, staging
        self._level = session.node_levels.get(Level.LOCAL)
        self._thread: threading.Thread | None = None
        #: Checked by the thread before each piece of its work.
        self._wants_memory = self._wants_files = False
        #: Of the files to prepare, and their length.
        self._names: tuple[str, ...] = ()
        self._file_bytes = 0

    def begin(self, share: ShareSize) -> None:
        """Reserve memory for a share, and start the rest; returns at once, unless the memory is pinned or an agent's.

        Does nothing while earlier preparation hangs, or if no thread can be started.
        """
        self._end()
        if self._thread is not None:
            return
        self._drop_files()
        memory = self._session.memory
        self._wants_memory = memory is None or memory.is_unused  # else what it has may be restored yet
        if self._wants_memory:
            self._staging.reserve(share.nbytes, pinned=share.pinned)
        self._wants_files = True
        self._names, self._file_bytes = self._files_for(share)
        with contextlib.suppress(RuntimeError):  # no more threads allowed, or the process ends
            self._thread = start_thread(self._run, "deeppart-prepare", _warn_failure)

    def begin_checkpoint(self, nbytes: int) -> None:
        """A checkpoint begins. Files that are not ready are too late, and too short ones waste space; touching memory
        still helps the copy.
        """
        self._wants_files = False
        if nbytes > self._file_bytes and self._names:
            self._end()
            self._drop_files()

    def wait(self, timeout: float) -> bool:
        """Wait until everything is ready; False if that took longer than ``timeout`` seconds."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    def close(self) -> None:
        """Stop, and free memory and files."""
        self._end()
        self._drop_files()
        self._staging.release()

    def _end(self) -> None:
        self._wants_memory = self._wants_files = False
        if self.wait(_PATIENCE_S):
            self._thread = None

    def _drop_files(self) -> None:
        if self._names and self._level is not None:
            self._level.recycled.drop_made(self._names)
        self._names = ()

    def _files_for(self, share: ShareSize) -> tuple[tuple[str, ...], int]:
        """The names of the files to prepare, for the kept steps and the one being written; and their length."""
        config, keep = self._session.config, self._session.config.keep[Level.LOCAL]
        if not keep or not share.nbytes or config.compression not in ("none", "auto"):
            return (), 0  # files are not recycled, or will be shorter; "auto" usually stores raw bytes for memory
        name = part_file_name(self._session.comm.rank, self._session.comm.size)
        # If they were shorter than the final file, they would have to be mapped again.
        nbytes = share.nbytes + _INDEX_BYTES + _INDEX_BYTES_PER_LEAF * share.leaves
        return tuple(spare_name(name, each) for each in range(keep + 1)), nbytes

    def _run(self) -> None:
        lower_priority()
        self._staging.populate(lambda: self._wants_memory)
        if self._level is None:
            return
        for name in self._names:
            if not self._level.recycled.make(name, self._file_bytes, lambda: self._wants_files):
                return


def _warn_failure(error: BaseException) -> None:
    text = f"prepare() was interrupted; the first checkpoint does the rest: {type(error).__name__}: {error}"
    warn_now(text, BackgroundFailureWarning)
