"""Stop requests: a job saves a checkpoint and exits, to continue on other nodes or another number of ranks.

After each step: ``if should_stop(): leave(state, step, checkpointer)``. All ranks get the same answer at the same step;
:func:`leave` saves a checkpoint and exits with code 143.
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

#: 128 + SIGTERM, which launchers recognize.
EXIT_CODE = 143
#: Sent by launchers, batch systems, and Slurm's ``--signal=USR1@120``.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


#: Created by the first call of :func:`should_stop`.
_request: StopRequest | None = None


def should_stop() -> bool:
    """Whether to stop after this step (collective: the same on every rank). Call it once after each step.

    True once any rank has got SIGTERM or SIGUSR1, or the file named by ``DEEPPART_STOP_FILE`` was touched. For other
    signals or files use :class:`deeppart.extension.StopRequest`.

    Raises:
        ConfigError: the first call is not in the main thread.

    Example:
        >>> from deeppart.elastic import should_stop
        >>> should_stop()
        False
    """
    global _request
    if _request is None:
        _request = StopRequest(SIGNALS, stop_file())
    return _request.should_stop()


def leave(state: Any, step: int, checkpointer: Checkpointer, *, code: int = EXIT_CODE) -> NoReturn:
    """Save a checkpoint, wait until it is complete at the persistent level, and exit (collective).

    Signals received meanwhile have no effect: their handlers stay until the process ends.

    Args:
        state: to save.
        step: number of the checkpoint.
        checkpointer: is closed.
        code: exit code.

    Raises:
        SystemExit: with the code.
        CheckpointError: the checkpoint is not complete; the process does not exit. Other errors of
            :meth:`deeppart.Checkpointer.checkpoint` are raised, too.
    """
    checkpointer.checkpoint(state, step=step, force=True).wait()
    checkpointer.close()
    end_process(code)


def end_process(code: int) -> NoReturn:
    """Destroy the process group and exit (collective)."""
    if dist.is_available() and dist.is_initialized():
        if _request is not None:
            _request.end_exchange()
        dist.destroy_process_group()
    atexit.register(gc.freeze)  # skips the final collection over all objects of torch, which takes a second
    sys.exit(code)
