"""What is made ready in the background before the first checkpoint: pages of staging memory, and local files.

One thread of low priority, at most, which stops within a few MiB when it is told to.
"""

from __future__ import annotations

import threading

from deeppart.model import Level
from deeppart.part import base_file_name, part_file_name
from deeppart.save.sizing import ShareSize
from deeppart.save.workers import lower_priority
from deeppart.session.record import Session
from deeppart.state.capture.staging import Staging

#: What a part file has besides the share, at most as a rule; and for each leaf of the state.
_INDEX_BYTES, _INDEX_BYTES_PER_LEAF = 256 << 10, 200

#: The thread is waited for that long; it may hang in a call to storage.
_PATIENCE_S = 5.0


class Preparation:
    """Prepares memory and files of one rank. Used by the training thread, until whoever ends the session closes it.

    Args:
        session: the run.
        staging: its staging memory, which is given back with this.
    """

    def __init__(self, session: Session, staging: Staging) -> None:
        self._session, self._staging = session, staging
        self._thread: threading.Thread | None = None
        #: Read by the thread, before each piece of its work.
        self._wants_memory = self._wants_files = False

    def begin(self, size: ShareSize) -> None:
        """Reserve memory for a share, and begin with the rest; returns at once, unless the memory is pinned.

        Nothing is begun while what was begun before hangs.

        Raises:
            MemoryError: it cannot be reserved.
        """
        self._end()
        if self._thread is not None:
            return
        self._staging.reserve(size.nbytes, pinned=size.pinned)
        self._wants_memory = self._wants_files = True
        self._thread = threading.Thread(target=self._run, args=(size,), name="deeppart-prepare", daemon=True)
        self._thread.start()

    def a_checkpoint_begins(self) -> None:
        """Files that are not ready come too late; the memory is still better touched ahead of the copy."""
        self._wants_files = False

    def wait(self, timeout: float) -> bool:
        """Wait until all is ready; False if it was not within ``timeout`` seconds."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    def close(self) -> None:
        """Stop, and give the memory back."""
        self._end()
        self._staging.release()

    def _end(self) -> None:
        self._wants_memory = self._wants_files = False
        if self.wait(_PATIENCE_S):
            self._thread = None

    def _run(self, share: ShareSize) -> None:
        lower_priority()
        self._staging.touch(lambda: self._wants_memory)
        config, level = self._session.config, self._session.node_levels.get(Level.LOCAL)
        keep = config.keep[Level.LOCAL]
        if level is None or not keep or not share.nbytes or config.compression not in ("none", "auto"):
            return  # nothing is written over, or files will be shorter; "auto" leaves memory uncompressed, as a rule
        rank, size = self._session.comm.rank, self._session.comm.size
        names = [part_file_name(rank, size), *(base_file_name(rank, size, f"{each:032x}") for each in range(keep))]
        # Shorter than the file will be, they would have to be mapped again.
        nbytes = share.nbytes + _INDEX_BYTES + _INDEX_BYTES_PER_LEAF * share.leaves
        for name in names:  # of those that are kept, and the one that is being written
            if not level.prepare_file(name, nbytes, lambda: self._wants_files):
                return
