"""deeppart: multi-level checkpoints for PyTorch training, under MPI or torchrun.

    import deeppart

    step = deeppart.restore(state)              # collective; the newest recoverable step, or None
    deeppart.checkpoint(state, step=100)        # collective; returns when the state may change again
    state = deeppart.load("ckpt")               # one process, no MPI

The module-level functions use one Checkpointer, configured by ``DEEPPART_*`` variables and ``deeppart.toml``; make a
:class:`Checkpointer` of your own for anything else. All errors and warnings are in :mod:`deeppart.errors`, the types of
other arguments and results in :mod:`deeppart.types`.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import traceback
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from deeppart import errors, types
from deeppart._lazy import lazy_names
from deeppart.config import Config, shows_all_frames
from deeppart.errors import ConfigError, DeeppartError, DeeppartWarning, RestoreError, StateError
from deeppart.model import VERSION as __version__  # noqa: N811
from deeppart.model import Report, RestoreReport
from deeppart.pending import Pending
from deeppart.progress import epoch, pause_watch

if TYPE_CHECKING:
    from deeppart.checkpointer import Checkpointer
    from deeppart.offline import load
    from deeppart.state.objects import register

__all__ = [
    "Checkpointer",
    "Config",
    "ConfigError",
    "DeeppartError",
    "DeeppartWarning",
    "Pending",
    "Report",
    "RestoreError",
    "RestoreReport",
    "StateError",
    "__version__",
    "checkpoint",
    "close",
    "epoch",
    "load",
    "pause_watch",
    "prepare",
    "register",
    "restore",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Checkpointer": "deeppart.checkpointer",
        "load": "deeppart.offline",
        "register": "deeppart.state.objects",
    },
    __all__,
)

#: How long the rank that prints an error in full has to do it.
_HEAD_START_S = 1.0

_default: Checkpointer | None = None
_inherited: Checkpointer | None = None  # the parent's, in a forked process


def checkpoint(state: Any, step: int, *, force: bool = False) -> Pending:
    """Save a state with the default Checkpointer (collective). See :meth:`Checkpointer.checkpoint`.

    Example:
        >>> import deeppart
        >>> pending = deeppart.checkpoint({"epoch": 1}, step=100)
        >>> deeppart.close()
        >>> pending.done("persistent")
        True
    """
    return _checkpointer().checkpoint(state, step, force=force)


def restore(
    state: Any, step: int | None = None, per_rank: types.PerRank = "strict", **asked: Unpack[types.RestoreArguments]
) -> int | None:
    """Restore a state with the default Checkpointer (collective). See :meth:`Checkpointer.restore`.

    Example:
        >>> import deeppart
        >>> state = {"epoch": 0}
        >>> step = deeppart.restore(state)  # None where there is no checkpoint
        >>> deeppart.close()
    """
    return _checkpointer().restore(state, step, per_rank, **asked)


def prepare(state: Any) -> None:
    """Get memory ready for the first checkpoint of a state, with the default Checkpointer (collective).

    Nothing is saved, and the first checkpoint still compares all of the state; it need not wait for memory.
    See :meth:`Checkpointer.prepare`.

    Example:
        >>> import deeppart
        >>> state = {"epoch": 0}
        >>> deeppart.prepare(state)  # once, when an optimizer has made its tensors
        >>> deeppart.close()
    """
    _checkpointer().prepare(state)


def close() -> None:
    """Finish and close the default Checkpointer (collective). Happens by itself at the end of the process."""
    global _default
    if _default is not None:
        closing, _default = _default, None
        closing.close()


def _finish_the_latest() -> None:
    """Close checkpointers created by ``atexit`` handlers: handlers registered by these are not run any more."""
    if ending := sys.modules.get("deeppart.session"):
        ending.process_sessions.finish()


def _forget_in_child() -> None:
    """A forked process has none of the threads, and must neither finish nor clean up its parent's checkpointer."""
    global _default, _inherited
    _default, _inherited = None, _default


def _checkpointer() -> Checkpointer:
    global _default
    if _default is None and _inherited is not None:
        return _inherited  # which refuses calls in another process
    if _default is None:
        from deeppart.checkpointer import Checkpointer

        _default = Checkpointer()
        os.register_at_fork(after_in_child=_forget_in_child)
    return _default


def _show_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught error: the library's errors without their frames, and on one rank only."""
    if isinstance(error, DeeppartError) and not shows_all_frames():
        if error.shown_by is not None:
            rank, first = error.shown_by
            errors.say(f"rank {rank}: {error.summary} (see rank {first})")
            time.sleep(_HEAD_START_S)  # a launcher ends the others as soon as one rank ends
            return
        errors.cut_traceback(error)
        sys.stderr.write("".join(traceback.format_exception(error)))  # in one write, since other ranks print there, too
        return
    sys.__excepthook__(kind, error, trace)


atexit.register(_finish_the_latest)
if sys.excepthook is sys.__excepthook__:
    sys.excepthook = _show_uncaught
