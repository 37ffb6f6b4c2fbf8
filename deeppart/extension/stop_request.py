"""A request to end a job, by a signal or a file, on which its ranks agree."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from deeppart.stopping import Agreement, Signals, WatchedFile, agreement_of_job


class StopRequest:
    """Notes a signal to this process, or a change of a file; ranks agree whether any has received a request.

    Nothing is noted before :meth:`listen`, or the first question. Children that are forked do not have the handlers.

    Args:
        signals: to note.
        file: a file to be created or touched; rank 0 checks it once a second at most. None for none.
        chained: handlers that were there before are called, too.

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
        """The signal, or "file"; None if this rank has received none."""
        if self._signals.received is not None:
            return self._signals.received.name
        return "file" if self._watch is not None and self._watch.changed() else None

    def listen(self) -> None:
        """Begin (collective); a second call does nothing.

        Raises:
            ConfigError: not in the main thread, and there are signals to note.
        """
        if self._agreement is None:
            self._signals.listen()
            self._agreement = agreement_of_job()
            is_watched = self._file is not None and self._agreement.rank == 0
            self._watch = WatchedFile(Path(self._file) if is_watched and self._file is not None else None)

    def should_stop(self) -> bool:
        """True on every rank if any had received a request at the call before (collective): after each step.

        No rank waits: a reduction of one number is begun at one call, and looked at in the next. Once the answer is
        true it stays so, without any exchange.
        """
        if not self._stops:
            self._stops = self._listening().ask(self.reason is not None)
        return self._stops

    def agree(self) -> bool:
        """True on every rank if any has received a request by now (collective): waits for all. True stays true."""
        if not self._stops:
            self._stops = self._listening().agree(self.reason is not None)
        return self._stops

    def _listening(self) -> Agreement:
        self.listen()
        assert self._agreement is not None
        return self._agreement

    def end(self) -> None:
        """Finish what is under way between ranks, and put the handlers back that were there before."""
        self.end_exchange()
        self._signals.put_back()

    def end_exchange(self) -> None:
        """Finish what is under way between ranks. Signals are still noted: a late one does not end the process."""
        if self._agreement is not None:
            self._agreement.finish()
            self._agreement = None
