"""Requests to stop or change a job: signals, and a file that is touched."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from deeppart.errors import ConfigError

#: Seconds between checks of the file: it may be on a file system that all jobs share.
LOOK_EVERY_S = 1.0


@dataclass(slots=True, eq=False)
class _Watch:
    """The handler installed by one call of :meth:`Signals.listen`, for all its signals.

    A handler that came later may call it also when the watch is over, or put it back.

    Attributes:
        owner: who listens.
        before: handlers that were there before, by signal.
        over: nothing is noted any more: signals go to the handlers before.
    """

    owner: Signals
    before: dict[int, Any] = field(default_factory=dict)
    over: bool = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.owner._note(self, number, frame)

    def next(self, number: int) -> Any:
        """The next handler of a signal; watches that have ended are skipped and dropped."""
        found = self.before.get(number)
        while isinstance(found, _Watch) and found.over:
            found = found.before.get(number)
        self.before[number] = found
        return found

    def end(self) -> None:
        """End: signals go to the previous handlers."""
        self.over = True
        if self.owner._watch is self:
            self.owner._watch = None

    def take_out(self) -> None:
        """Restore the previous handlers if this one is still installed (in the main thread)."""
        for number in tuple(self.before):
            before = self.next(number)
            if signal.getsignal(number) is self and before is not None:
                signal.signal(number, before)


class Signals:
    """Records signals, in this process only.

    Children that are forked (data loader workers, ``multiprocessing``) get the handlers back that were there before:
    they end by a SIGTERM as they would without this class. Where the interpreter is not told of a fork, the handler
    finds by the process id that it is in a child.

    A handler of Python that was there before is called, after the signal is noted; or it is left out (``chained``).
    Several objects may be put back in any order.

    Attributes:
        received: the signal that came last, or None.
    """

    def __init__(self, numbers: Sequence[signal.Signals], *, chained: bool = True) -> None:
        self.received: signal.Signals | None = None
        self._numbers, self._chained = tuple(dict.fromkeys(map(_checked, numbers))), chained
        self._watch: _Watch | None = None
        self._process = -1

    def listen(self) -> None:
        """Install the handlers; a second call does nothing."""
        if self._watch is not None or not self._numbers:
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
        self._process = os.getpid()
        self._watch = watch = _Watch(self)
        _forks.take_out_those_over()
        _forks.watches.append(watch)
        _forks.numbers.update(self._numbers)
        _forks.register()
        for number in self._numbers:
            watch.before[number] = signal.getsignal(number)  # first: a signal may arrive at once
            signal.signal(number, watch)

    @property
    def decides(self) -> bool:
        """True if a signal has come, and no handler was installed since that may do something else about it."""
        return self.received is not None and signal.getsignal(self.received) is self._watch

    def put_back(self) -> None:
        """Leave the signals to the handlers before, where they are still noted here.

        In another thread than the main one the handlers stay, and leave them to the ones before when they come.
        """
        if self._watch is not None:
            self._watch.end()
            if threading.current_thread() is threading.main_thread():
                _forks.take_out_those_over()

    def _note(self, watch: _Watch, number: int, frame: FrameType | None) -> None:
        before = watch.next(number)
        if not watch.over and os.getpid() == self._process:
            self.received = signal.Signals(number)
            if self._chained and callable(before):
                before(number, frame)
        elif signal.getsignal(number) is watch and (isinstance(before, _Watch) or not callable(before)):
            signal.signal(number, signal.SIG_DFL if before is None else before)
            os.kill(os.getpid(), number)
        elif callable(before):  # this watch has ended; or this is a child whose fork the interpreter has not noticed
            before(number, frame)


class _Forks:
    """Restores the original handlers in forked children. One per process, like handlers.

    Attributes:
        watches: that may be there, the first one first, also those that are over; changed in the main thread.
        numbers: of all signals that anybody has listened to: a handler that came later may have put a watch back that
            is over. Changed in the main thread.

    What a thread blocks is known to that thread alone, and forgotten once it is let through.
    """

    def __init__(self) -> None:
        self.watches: list[_Watch] = []
        self.numbers = set[int]()
        self._registered = False
        self._masks = threading.local()

    def register(self) -> None:
        """Have the interpreter call this at forks."""
        if not self._registered:
            self._registered = True
            os.register_at_fork(before=self._hold)
            # A handler that is due after the fork, of Ctrl-C for one, is called as the first of these begins. If it
            # raises, that one does nothing.
            for _ in range(2):
                os.register_at_fork(after_in_parent=self._let_through, after_in_child=self._let_through_in_child)

    def take_out_those_over(self) -> None:
        """Restore the handlers, in the main thread."""
        for watch in [each for each in self.watches if each.over]:
            watch.take_out()
            with contextlib.suppress(ValueError):  # a handler that ran meanwhile has restored them or forked, too
                self.watches.remove(watch)

    def _hold(self) -> None:
        """Before a fork. The interpreter of a child forgets the signals that came before it was told of the fork."""
        # Handlers that are due are called at the end of such a call, and may raise: what was blocked before is known
        # first, or the signals would stay blocked. They may fork, too, after which nothing is blocked: once more.
        blocked = False
        while not blocked:
            if getattr(self._masks, "held", None) is None:
                self._masks.held = signal.pthread_sigmask(signal.SIG_BLOCK, ())
            signal.pthread_sigmask(signal.SIG_BLOCK, tuple(self.numbers))
            blocked = self._masks.held is not None

    def _let_through(self) -> None:
        held = getattr(self._masks, "held", None)  # None if nothing is blocked
        if held is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            self._masks.held = None

    def _let_through_in_child(self) -> None:
        try:
            for each in tuple(self.watches):
                each.end()
            self.take_out_those_over()
        finally:
            self._let_through()


_forks = _Forks()


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

    A file that an earlier job was told by says nothing to this one, whatever the clocks of the machines say. What
    cannot be looked at counts as unchanged: the training goes on.
    """

    def __init__(self, path: Path | None, every_s: float = LOOK_EVERY_S) -> None:
        self._path, self._every_s = path, every_s
        self._first = self._look()
        self._next_s = time.monotonic() + every_s
        self._changed = False

    def changed(self) -> bool:
        """True if it was, at the last check."""
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
