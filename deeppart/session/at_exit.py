"""The end of the process: checkpointers that nobody has closed are closed, so that their last checkpoint is complete.

Not where it ends by an exception: the other ranks may then never come to finish it.
"""

from __future__ import annotations

import atexit
import itertools
import sys
import weakref
from contextlib import ExitStack
from importlib import import_module
from types import TracebackType
from typing import Protocol

from deeppart.session import leave


class Closable(Protocol):
    """A checkpointer."""

    def close(self) -> None:
        """Finish what is in the background."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish it only if there is no error."""


#: Those that are alive, by number: ranks close them in the order in which they were made. Guarded by the interpreter.
_open: weakref.WeakValueDictionary[int, Closable] = weakref.WeakValueDictionary()
_backgrounds: weakref.WeakValueDictionary[int, leave.Background] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def close_at_the_end(checkpointer: Closable, background: leave.Background) -> None:
    """See that a checkpointer is closed when the process ends, or MPI is finalized in it."""
    number = next(_numbers)
    _open[number], _backgrounds[number] = checkpointer, background
    atexit.unregister(finish)
    atexit.register(finish)  # runs before the handler of mpi4py, which was there first: MPI must still be there
    if "mpi4py.MPI" in sys.modules:  # a script may finalize MPI itself, before its end
        import_module("deeppart.comm.mpi").before_finalize(finish)


def finish() -> None:
    """Close all that are open, and wait for those that were left; after an error, break them off."""
    error = _error_that_ends_it()
    numbers = sorted(_open)
    still_open = [checkpointer for number in numbers if (checkpointer := _open.get(number)) is not None]
    running = [background for number in numbers if (background := _backgrounds.get(number)) is not None]
    _open.clear()
    if error is not None:
        for checkpointer in still_open:
            checkpointer.__exit__(type(error), error, None)
        leave.break_off()
        return
    running = [*dict.fromkeys([*running, *leave.left()])]
    if len(running) > 1:  # other ranks may have left some of them, in another order
        leave.wait_together(running, max(background.timeout for background in running))
    with ExitStack() as stack:
        stack.callback(leave.finish)
        for checkpointer in reversed(still_open):
            stack.callback(checkpointer.close)


def _error_that_ends_it() -> BaseException | None:
    """The exception that nobody has caught.

    An interactive session goes on after one. So does a program with a console in it, or with tests (``pytest``): what
    they note there has come from a call, while what ends the process has gone through its outermost frame.
    """
    error: BaseException | None = getattr(sys, "last_value", None)
    trace: TracebackType | None = getattr(sys, "last_traceback", None)
    if hasattr(sys, "ps1") or error is None or trace is None or trace.tb_frame.f_back is not None:
        return None
    return error
