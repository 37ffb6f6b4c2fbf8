"""The sessions of a process at its end, and before the next start.

At the end of the process, open checkpointers are closed, so that their last checkpoint is complete; but not if the
process ends by an exception: the other ranks may then never finish it.
"""

from __future__ import annotations

import atexit
import sys
import time
import weakref
from contextlib import ExitStack
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from deeppart.access.hanging import hanging
from deeppart.errors import CheckpointError

if TYPE_CHECKING:
    from deeppart.session.background import Background


def not_finished(waited_s: float) -> CheckpointError:
    """The error of a ``close()`` that had to interrupt background work."""
    return CheckpointError(
        "the last checkpoint was not finished when the checkpointer was closed",
        found="; ".join([f"still under way after {waited_s:g} s", *hanging()]),
        todo="raise `timeout`, or wait for the checkpoint before closing",
    )


class Closable(Protocol):
    """A checkpointer."""

    def close(self) -> None:
        """Finish the background work."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish the background work if there is no error."""


class ProcessSessions:
    """The sessions of this process, for its exit handlers; the only instance is :data:`process_sessions`.

    Attributes:
        left: backgrounds of sessions that were not closed and have not ended. Only atomic list operations.
    """

    def __init__(self) -> None:
        self.left: list[Background] = []
        #: Live checkpointers, in the order in which they were made, in which ranks close them. Only atomic operations.
        self._open: weakref.WeakKeyDictionary[Closable, Background] = weakref.WeakKeyDictionary()

    def add(self, checkpointer: Closable, background: Background) -> None:
        """Register a checkpointer to be closed when the process ends, or finalizes MPI."""
        self._open[checkpointer] = background
        atexit.unregister(self.finish)
        atexit.register(
            self.finish
        )  # runs before mpi4py's handler, which was registered first: MPI must not be finalized yet
        if "mpi4py.MPI" in sys.modules:  # a script may finalize MPI before its end
            import_module("deeppart.comm.mpi").before_finalize(self.finish)

    def settle(self, timeout: float) -> None:
        """Wait together at most ``timeout`` seconds for the sessions that were left, before a new start."""
        deadline = time.monotonic() + timeout
        left = list(self.left)
        for background in left:  # all of them first: the other ranks may have left them in another order
            background.end_scrubbing()
        for background in left:
            background.settle(max(0.0, deadline - time.monotonic()))

    def finish(self) -> None:
        """Close all open checkpointers, and wait for the sessions that were left; after an error, interrupt them."""
        error = _fatal_exception()
        still_open = list(self._open.items())
        self._open.clear()
        if error is not None:
            for checkpointer, _ in still_open:
                checkpointer.__exit__(type(error), error, None)
            self.settle(0.0)
            return
        for background in (*(background for _, background in still_open), *self.left):
            background.end_scrubbing()
        with ExitStack() as stack:
            stack.callback(self._finish_left)
            for checkpointer, _ in reversed(still_open):
                stack.callback(checkpointer.close)

    def _finish_left(self) -> None:
        for background in list(self.left):
            background.settle(background.timeout)


process_sessions = ProcessSessions()


def _fatal_exception() -> BaseException | None:
    """The uncaught exception that ends the process.

    An interactive session continues after one, as do programs with a console or a test runner (``pytest``), which
    record exceptions of calls; an exception that ends the process has left its outermost frame.
    """
    error: BaseException | None = getattr(sys, "last_value", None)
    trace: TracebackType | None = getattr(sys, "last_traceback", None)
    if hasattr(sys, "ps1") or error is None or trace is None or trace.tb_frame.f_back is not None:
        return None
    return error
