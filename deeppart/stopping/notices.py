"""Requests to stop or change a job: signals, and a file that is touched."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from deeppart.errors import ConfigError

#: Seconds between checks of the file: it may be on a file system that all jobs share.
LOOK_EVERY_S = 1.0


class Signals:
    """Records signals, in this process only.

    Forked children (data loader workers, ``multiprocessing``) get the previous handlers back: they end on SIGTERM as
    they would without this class. With ``chained``, a previous Python handler is called after the signal was recorded.
    Several objects may be put back in any order.

    Attributes:
        received: the last received signal, or None.
    """

    def __init__(self, numbers: Sequence[signal.Signals], *, chained: bool = True) -> None:
        self.received: signal.Signals | None = None
        self._numbers, self._chained = tuple(dict.fromkeys(map(_checked, numbers))), chained
        self._handler: _Handler | None = None

    def listen(self) -> None:
        """Install the handlers. Idempotent."""
        if self._handler is not None or not self._numbers:
            return
        names = ", ".join(number.name for number in self._numbers)
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                f"signals can be noted in the main thread only: {names}",
                found=f"thread {threading.current_thread().name!r}",
                todo="call listen() or should_stop() in the main thread first; or give signals=() and a file",
            )
        for number in self._numbers:
            if self._chained and signal.getsignal(number) is None:
                raise ConfigError(
                    f"{number.name} has a handler that was not installed from Python, and could not be put back",
                    todo="leave this signal out of `signals`",
                )
        self._handler = handler = _Handler(self._note, chained=self._chained)
        _installed[:] = [each for each in _installed if not each.is_out()]
        _installed.append(handler)
        for number in self._numbers:
            handler.before[number] = signal.getsignal(number)  # first: a signal may arrive at once
            signal.signal(number, handler)

    @property
    def decides(self) -> bool:
        """True if a signal was received, and no handler has been installed since that may treat it differently."""
        return self.received is not None and signal.getsignal(self.received) is self._handler

    def put_back(self) -> None:
        """Restore the previous handlers, for signals that are still handled here.

        Outside of the main thread the handlers stay installed, and only call the previous ones.
        """
        if self._handler is not None:
            self._handler.end()
            self._handler = None

    def _note(self, number: int) -> None:
        self.received = signal.Signals(number)


class _Handler:
    """The handler installed by one call of :meth:`Signals.listen`, for all its signals.

    After it has ended, a handler that was installed later may still call it, or install it again.

    Attributes:
        before: the previous handlers, by signal.
    """

    def __init__(self, note: Callable[[int], None], *, chained: bool) -> None:
        self._note, self._chained = note, chained
        self._process, self._is_over = os.getpid(), False
        self.before: dict[int, Any] = {}

    def __call__(self, number: int, frame: FrameType | None) -> None:
        before = self.before.get(number)
        if not self._is_over and os.getpid() == self._process:
            self._note(number)
            if self._chained and callable(before):
                before(number, frame)
        elif callable(before):
            before(number, frame)
        elif before != signal.SIG_IGN:  # the system's default action
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def end(self) -> None:
        """Stop recording, and in the main thread restore the previous handlers if this one is still installed."""
        self._is_over = True
        if threading.current_thread() is threading.main_thread():
            for number, before in tuple(self.before.items()):
                while isinstance(before, _Handler) and before._is_over:
                    before = before.before.get(number)
                if signal.getsignal(number) is self and before is not None:
                    signal.signal(number, before)

    def is_out(self) -> bool:
        """True if it has ended, and is not installed for any signal."""
        return self._is_over and all(signal.getsignal(number) is not self for number in self.before)


#: Only changed in the main thread.
_installed: list[_Handler] = []


def _restore_in_child() -> None:
    """In a forked child: restore the handlers from before the first one."""
    for handler in reversed(_installed):
        handler.end()


os.register_at_fork(after_in_child=_restore_in_child)


def _checked(number: int) -> signal.Signals:
    try:
        found = signal.Signals(number)
    except ValueError:
        found = signal.SIGKILL
    if found in (signal.SIGKILL, signal.SIGSTOP):
        raise ConfigError(
            "a process cannot note this signal", expected="signals such as signal.SIGTERM", found=repr(number)
        )
    return found


class WatchedFile:
    """Detects that a file was created or changed after the watch began: ``touch FILE``.

    A file left from an earlier job has no effect, whatever the clocks of the machines are. A file that cannot be
    checked counts as unchanged, so training continues.
    """

    def __init__(self, path: Path | None, every_s: float = LOOK_EVERY_S) -> None:
        self._path, self._every_s = path, every_s
        self._first = self._look()
        self._next_s = time.monotonic() + every_s
        self._changed = False

    def changed(self) -> bool:
        """True if the file had changed at the last check."""
        if self._path is None or self._changed:
            return self._changed
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + self._every_s
            found = self._look()
            self._changed = found is not None and found != self._first
        return self._changed

    def _look(self) -> tuple[int, int, int] | None:
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
