"""Being told to end, so that a job can go on elsewhere or on another number of ranks.

After each step: ``if should_stop(): leave(state, step, checkpointer)``. The answer is the same on every rank at the
same step; leaving makes a checkpoint, and exits with code 143.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import torch.distributed as dist

from deeppart import Checkpointer
from deeppart.config import stop_file
from deeppart.extension import StopRequest

#: What a process that SIGTERM has ended is said to exit with: launchers know it.
EXIT_CODE = 143
#: By default: what launchers and batch systems send, and what ``--signal=USR1@120`` of Slurm does.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Told:
    """Whether a job has been told to end: by a signal to any of its ranks, or by a file.

    Ranks agree without waiting for one another: a reduction of one number is begun at one step, beside the training,
    and looked at in the next. So all of them end after the same step, the one after that in which the signal came.

    It hears nothing before :meth:`listen`, or the first :meth:`should_stop`.

    Args:
        signals: to note; those of other handlers are called, too. Forked children do not have them.
        file: to be touched; by default the one that the variable ``DEEPPART_STOP_FILE`` names. Rank 0 looks at it, once
            a second at most.

    Example:
        >>> import os, signal
        >>> from deeppart.elastic import Told
        >>> told = Told(signals=[signal.SIGUSR1])
        >>> told.should_stop()
        False
        >>> os.kill(os.getpid(), signal.SIGUSR1)
        >>> told.should_stop(), told.reason
        (True, 'SIGUSR1')
        >>> told.end()
    """

    def __init__(
        self, *, signals: Sequence[signal.Signals] = SIGNALS, file: str | os.PathLike[str] | None = None
    ) -> None:
        self._signals, self._file = signals, file
        self._request = StopRequest(signals, file)
        self._listening = self._stops = False

    @property
    def reason(self) -> str | None:
        """By what this rank has heard it; None if it has not, or only from others."""
        return self._request.reason

    def listen(self) -> None:
        """Begin (collective); a second call does nothing.

        Raises:
            ConfigError: not in the main thread, and there are signals to note.
        """
        if not self._listening:
            if self._file is None:
                self._request = StopRequest(self._signals, stop_file())
            self._request.listen()
            self._listening = True

    def should_stop(self) -> bool:
        """Whether to end after this step: the same on every rank (collective). Call it once after each step.

        Once it is true it stays so, without any exchange.

        Raises:
            ConfigError: as of :meth:`listen`, at the first call.
        """
        if not self._stops:
            self.listen()
            self._stops = self._request.ask()
        return self._stops

    def end(self) -> None:
        """Finish what is under way between ranks, and put the handlers back that were there before."""
        self._request.end()
        self._listening = False

    def end_exchange(self) -> None:
        """Finish what is under way between ranks. Signals are noted still: a late one does not end the process."""
        self._request.end_exchange()


#: That of the process.
told = Told()


def should_stop() -> bool:
    """Whether to end after this step: :meth:`Told.should_stop` of the process's (collective).

    Raises:
        ConfigError: the first call is not in the main thread.

    Example:
        >>> from deeppart.elastic import should_stop
        >>> should_stop()
        False
    """
    return told.should_stop()


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
        told.end_exchange()
        dist.destroy_process_group()
    atexit.register(gc.freeze)  # or the interpreter looks at every object of torch as it ends, which takes a second
    sys.exit(code)
