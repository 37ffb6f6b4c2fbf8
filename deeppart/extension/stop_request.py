"""Requests to stop a job, by a signal or a file, on which its ranks agree."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from deeppart.progress import is_asked_to_leave
from deeppart.stopping import Agreement, Signals, WatchedFile, agreement_of_job


class StopRequest:
    """Detects a signal, a change of a file, or a request of the agent of ``deeppart run``; the ranks agree whether any
    of them has received a request.

    Detection begins with :meth:`listen`, or the first query. Forked children do not inherit the handlers.

    Args:
        signals: signals to handle.
        file: file whose creation or touch is a request; rank 0 checks it at most once a second. None for none.
        chained: call the previous handlers, too.

    Example:
        >>> import os, signal
        >>> from deeppart.extension import StopRequest
        >>> request = StopRequest([signal.SIGUSR1])
        >>> request.listen()
        >>> os.kill(os.getpid(), signal.SIGUSR1)
        >>> request.should_stop(), request.reason
        (True, 'SIGUSR1')
        >>> request.end()
    """

    def __init__(
        self,
        signals: Sequence[signal.Signals] = (),
        file: str | os.PathLike[str] | None = None,
        *,
        chained: bool = True,
    ) -> None:
        self._signals = Signals(signals, chained=chained)
        self._file = file
        self._watch: WatchedFile | None = None
        self._agreement: Agreement | None = None
        self._stops = False

    @property
    def reason(self) -> str | None:
        """The name of the signal, "file", or "agent"; None if this rank has received no request."""
        if self._signals.received is not None:
            return self._signals.received.name
        if is_asked_to_leave():
            return "agent"
        return "file" if self._watch is not None and self._watch.changed() else None

    def listen(self) -> None:
        """Begin to listen (collective); further calls do nothing.

        Raises:
            ConfigError: there are signals to handle, and this is not the main thread.
        """
        if self._agreement is None:
            self._signals.listen()
            self._agreement = agreement_of_job()
            is_watched = self._file is not None and self._agreement.rank == 0
            self._watch = WatchedFile(Path(self._file) if is_watched and self._file is not None else None)

    def should_stop(self) -> bool:
        """True on every rank if any had received a request by the previous call (collective); call after each step.

        Non-blocking: each call starts a reduction of one integer, whose result the next call returns. Once true, the
        result stays true without further communication.
        """
        if not self._stops:
            self._stops = self._listening().ask(self.reason is not None)
        return self._stops

    def agree(self) -> bool:
        """True on every rank if any has received a request (collective, blocking). Once true, it stays true."""
        if not self._stops:
            self._stops = self._listening().agree(self.reason is not None)
        return self._stops

    def _listening(self) -> Agreement:
        self.listen()
        assert self._agreement is not None
        return self._agreement

    def end(self) -> None:
        """Finish communication, and restore the previous handlers."""
        self.end_exchange()
        self._signals.put_back()

    def end_exchange(self) -> None:
        """Finish communication. The handlers stay, so that a late signal does not kill the process."""
        if self._agreement is not None:
            self._agreement.finish()
            self._agreement = None
