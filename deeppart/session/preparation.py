"""Prepares the first checkpoint: a thread of low priority touches the pages of staging memory."""

from __future__ import annotations

import contextlib
import threading

from deeppart._threads import start_thread
from deeppart.errors import BackgroundFailureWarning, warn_now
from deeppart.save import ShareSize, lower_priority
from deeppart.state.capture import Staging
from deeppart.storage import MemoryLevel

#: The thread, which stops within a few MiB, is joined for this long.
_PATIENCE_S = 5.0


class Preparation:
    """Prepares the memory of one rank. Used by the training thread, until the session ends."""

    def __init__(self, staging: Staging, memory: MemoryLevel | None) -> None:
        self._staging, self._memory = staging, memory
        self._thread: threading.Thread | None = None
        self._is_wanted = False  # checked by the thread before each piece of its work

    def begin(self, share: ShareSize) -> None:
        """Reserve memory for a share, and touch it in the background; returns at once, unless the memory is pinned or
        an agent's.
        """
        self._end()
        if self._memory is not None and not self._memory.is_unused:
            return  # what it has may be restored yet
        self._staging.reserve(share.nbytes, pinned=share.pinned)
        self._is_wanted = True
        with contextlib.suppress(RuntimeError):  # no more threads allowed, or the process ends
            self._thread = start_thread(self._run, "deeppart-prepare", _warn_failure)

    def wait(self, timeout: float) -> bool:
        """Wait until everything is ready; False if that took longer than ``timeout`` seconds."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    def close(self) -> None:
        """Stop, and free the memory."""
        self._end()
        self._staging.release()

    def _end(self) -> None:
        self._is_wanted = False
        self.wait(_PATIENCE_S)

    def _run(self) -> None:
        lower_priority()
        self._staging.populate(lambda: self._is_wanted)


def _warn_failure(error: BaseException) -> None:
    text = f"prepare() was interrupted; the first checkpoint does the rest: {type(error).__name__}: {error}"
    warn_now(text, BackgroundFailureWarning)
