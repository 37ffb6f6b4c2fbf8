"""Requests to end, so that a job can continue on other nodes or on another number of ranks.

After each step: ``if should_stop(): leave(state, step, checkpointer)``. The answer is the same on every rank at the
same step; leaving makes a checkpoint, and exits with code 143.
"""

from __future__ import annotations

import atexit
import gc
import signal
import sys
from typing import Any, NoReturn

import torch.distributed as dist

from deeppart import Checkpointer
from deeppart.config import stop_file
from deeppart.extension import StopRequest

#: What a process that SIGTERM has ended is said to exit with: launchers know it.
EXIT_CODE = 143
#: What launchers and batch systems send, and what ``--signal=USR1@120`` of Slurm does.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


#: That of the process, from the first :func:`should_stop` on.
_of_process: StopRequest | None = None


def should_stop() -> bool:
    """Whether to end after this step: the same on every rank (collective). Call it once after each step.

    True once any rank has got SIGTERM or SIGUSR1, or the file that ``DEEPPART_STOP_FILE`` names was touched. For
    other signals or another file: :class:`deeppart.extension.StopRequest`.

    Raises:
        ConfigError: the first call is not in the main thread.

    Example:
        >>> from deeppart.elastic import should_stop
        >>> should_stop()
        False
    """
    global _of_process
    if _of_process is None:
        _of_process = StopRequest(SIGNALS, stop_file())
    return _of_process.should_stop()


def leave(state: Any, step: int, checkpointer: Checkpointer, *, code: int = EXIT_CODE) -> NoReturn:
    """Make a checkpoint, wait until it is complete at the persistent level, and end the process (collective).

    Signals that come meanwhile change nothing. The handlers stay until the process has ended.

    Args:
        state: to save.
        step: after which it was.
        checkpointer: is closed.
        code: to exit with.

    Raises:
        SystemExit: with the code.
        CheckpointError: the checkpoint is not complete; and whatever else a checkpoint raises. Nothing is left then.
    """
    checkpointer.checkpoint(state, step=step, force=True).wait()
    checkpointer.close()
    end_process(code)


def end_process(code: int) -> NoReturn:
    """Leave the ranks and end (collective); the handlers of signals stay until the process has ended."""
    if dist.is_available() and dist.is_initialized():
        if _of_process is not None:
            _of_process.end_exchange()
        dist.destroy_process_group()
    atexit.register(gc.freeze)  # otherwise the interpreter visits every object of torch at its end: a second
    sys.exit(code)
