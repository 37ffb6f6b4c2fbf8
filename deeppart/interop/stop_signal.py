"""A signal that tells a job to end soon, for trainers; with :mod:`deeppart.elastic`, ``should_stop()``."""

from __future__ import annotations

import signal
import threading

from deeppart.stopping.agreement import Agreement, Alone, agreement_of_torch
from deeppart.stopping.notices import Signals


class StopSignal:
    """Notes SIGTERM, which launchers and batch systems send some time before they end a process for good.

    Where ``torch.distributed`` is initialized, ranks agree by a reduction between their CPUs (a gloo group of its own)
    which step is the last: a signal does not reach all of them at the same step.

    Data loader workers and other children that are forked end by SIGTERM as they would without it.
    """

    def __init__(self) -> None:
        self._signals = Signals([signal.SIGTERM], chained=False)  # trainers that end at once by it are to wait
        self._agreement: Agreement = Alone()
        self._listening = False

    def listen(self) -> None:
        """Begin (collective). Only the main thread can; in others, a signal is not noticed."""
        if self._listening:
            return
        self._listening = True
        self._agreement = agreement_of_torch()
        if threading.current_thread() is threading.main_thread():
            self._signals.listen()

    def told(self) -> bool:
        """True on every rank if any has received it (collective)."""
        return self._agreement.agree(self._signals.received is not None)

    def end(self) -> None:
        """Leave the signal to whoever had it before."""
        self._signals.put_back()
        self._listening = False
