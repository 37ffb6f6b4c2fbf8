"""Copies that are made after ``checkpoint()`` has returned, while nothing is supposed to change what they copy.

A thread of the pipeline makes them. Whoever needs them to be done, such as an optimizer that is about to step, takes
part until they are. Afterwards it is checked that nothing has been written to what was copied: by torch's version
counters, and by elements sampled before and after, because fused optimizers and writes by way of ``.data`` are not
counted.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from deeppart.errors import CheckpointError

#: Copies on the host are made in pieces of this size, so that two threads can share the work.
PIECE_BYTES = 8 << 20

# CDLL: the interpreter lock is given up meanwhile.
_memmove = ctypes.CDLL(None).memmove
_memmove.argtypes, _memmove.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_void_p


@dataclass(frozen=True, slots=True)
class Guard:
    """A tensor that must not be written to meanwhile.

    Attributes:
        name: of the leaf, for messages.
        tensor: kept alive; its version counter is the one that writers advance.
        version: what the counter was.
    """

    name: Callable[[], str]
    tensor: torch.Tensor
    version: int


class DeferredCopy:
    """Work that several threads can share.

    Args:
        moves: (target address, source address, bytes).
        calls: other copies, such as those from a device; each returns when it is made.
        guards: what must not change.
        sample: a fingerprint of elements of what must not change.
        where: for messages.
        timeout: seconds that anyone waits for copies in the hands of another thread.
    """

    def __init__(
        self,
        moves: Sequence[tuple[int, int, int]],
        calls: Sequence[Callable[[], None]],
        guards: Sequence[Guard],
        sample: Callable[[], int],
        where: str,
        timeout: float,
    ) -> None:
        self._work: deque[tuple[int, int, int] | Callable[[], None]] = deque(calls)
        for target, source, length in moves:
            for at in range(0, length, PIECE_BYTES):
                self._work.append((target + at, source + at, min(PIECE_BYTES, length - at)))
        self._left = len(self._work)
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._guards, self._sample, self._where = list(guards), sample, where
        self._timeout = timeout
        self._before = sample()
        self._error: CheckpointError | None = None
        self.held_s = 0.0

    @property
    def done(self) -> bool:
        """Whether all copies have been made and checked."""
        return self._done.is_set()

    def work(self) -> None:
        """Copy until nothing is left to begin; returns early if other threads are still at their last pieces."""
        while True:
            try:
                piece = self._work.popleft()
            except IndexError:
                break
            error = _copy(piece)
            with self._lock:
                self._error = self._error or error
                self._left -= 1
                last = self._left == 0
            if last:
                self._finish()
        if not self._left:
            self._finish()

    def hold(self) -> None:
        """Return when all is copied: called by who is about to change the tensors."""
        if self._done.is_set():
            return
        began = time.monotonic()
        self.wait()
        self.held_s += time.monotonic() - began

    def wait(self) -> CheckpointError | None:
        """Take part until all is copied; then what is wrong with the copies, or None."""
        self.work()
        if not self._done.wait(self._timeout):
            self._error = CheckpointError(
                "a tensor could not be captured in the background",
                found=f"a copy did not end within {self._timeout:g} s",
                where=self._where,
                todo="suspect the device that the tensors are on",
            )
        return self._error

    def _finish(self) -> None:
        with self._lock:
            if self._done.is_set():
                return
            try:
                self._error = self._error or self._find_writes()
            except Exception as error:  # whatever it is: others wait for the end of this
                self._error = CheckpointError(
                    "a capture could not be checked", found=f"{type(error).__name__}: {error}"
                )
            self._guards, self._sample = [], int  # let go of the tensors
            self._done.set()

    def _find_writes(self) -> CheckpointError | None:
        written = [guard for guard in self._guards if guard.tensor._version != guard.version]
        if not written and self._sample() == self._before:
            return None
        names = ", ".join(guard.name() for guard in written[:8]) + (" ..." if len(written) > 8 else "")
        return CheckpointError(
            "a tensor was written to while it was being captured in the background",
            expected='parameters and optimizer state to change in optimizer.step() alone (capture="lazy")',
            found=f"writes to {names}" if written else "elements that differ from those sampled at the beginning",
            where=self._where,
            todo='call checkpoint() after the code that writes to them, or set capture="eager"',
        )


def _copy(piece: tuple[int, int, int] | Callable[[], None]) -> CheckpointError | None:
    if isinstance(piece, tuple):
        _memmove(*piece)
        return None
    try:
        piece()
    except Exception as error:  # of the device's driver
        return CheckpointError("a tensor could not be copied", found=f"{type(error).__name__}: {error}")
    return None
