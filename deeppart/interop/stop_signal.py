"""A signal that tells a job to end soon, and ranks that agree on the step after which they do."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist


class StopSignal:
    """Notes SIGTERM, which launchers and batch systems send some time before they end a process for good.

    Where ``torch.distributed`` is initialized, ranks agree by a reduction between their CPUs (a gloo group of its own)
    which step is the last: a signal does not reach all of them at the same step.
    """

    def __init__(self) -> None:
        self._received = False
        self._before: Any = None
        self._listening = False
        self._group: Any = None

    def listen(self) -> None:
        """Begin (collective). Only the main thread can; in others, a signal is not noticed."""
        if self._listening:
            return
        self._listening = True
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self._group = dist.new_group(backend="gloo")
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._note)

    def told(self) -> bool:
        """True on every rank if any has received it (collective)."""
        if self._group is None:
            return self._received
        flag = torch.tensor([self._received], dtype=torch.uint8)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._group)
        return bool(flag.item())

    def end(self) -> None:
        """Leave the signal to whoever had it before."""
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
        self._before, self._listening = None, False

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._received = True
