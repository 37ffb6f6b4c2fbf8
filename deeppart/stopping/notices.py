"""By what a process hears that its job is to end or to change: signals, and a file that somebody touches."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from deeppart.errors import ConfigError

#: The file is looked at no oftener: it may be on a file system that all jobs share.
LOOK_EVERY_S = 1.0


@dataclass(slots=True, eq=False)
class _Watch:
    """The handlers that one call of :meth:`Signals.listen` has installed.

    Attributes:
        handler: of all its signals. A handler that came later may call it also when this watch is over.
        before: handlers that were there before, by signal.
        over: nothing is noted any more: signals go to the handlers before.
    """

    handler: Callable[[int, FrameType | None], None]
    before: dict[int, Any] = field(default_factory=dict)
    over: bool = False


class Signals:
    """Notes signals, in this process alone.

    Children that are forked (data loader workers, ``multiprocessing``) get the handlers back that were there before:
    they end by a SIGTERM as they would without this class. Where the interpreter is not told of a fork, the handler
    finds by the process id that it is in a child.

    A handler of Python that was there before is called, after the signal is noted; or it is left out (``chained``).
    Several objects may be put back in any order.

    Args:
        numbers: of the signals.
        chained: call the handlers that were there before; such as are not Python's are refused. Otherwise these signals
            are for this object alone until they are put back.

    Attributes:
        received: the signal that came last, or None.
    """

    def __init__(self, numbers: Sequence[signal.Signals], *, chained: bool = True) -> None:
        self.received: signal.Signals | None = None
        self._numbers, self._chained = tuple(numbers), chained
        self._watch: _Watch | None = None
        self._process = -1
        self._knows_of_forks = False
        self._masks = threading.local()

    def listen(self) -> None:
        """Install the handlers; a second call does nothing.

        Raises:
            ConfigError: this is not the main thread; or a handler is there that is not Python's, and could not be put
                back.
        """
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
        watch = _Watch(lambda number, frame: self._note(watch, number, frame))
        self._watch = watch
        for number in self._numbers:
            watch.before[number] = signal.signal(number, watch.handler)
        if not self._knows_of_forks:
            self._knows_of_forks = True
            os.register_at_fork(
                before=self._hold, after_in_parent=self._let_through, after_in_child=self._let_through_in_child
            )

    def put_back(self) -> None:
        """Leave the signals to whoever had them before, where they are still noted here."""
        watch, self._watch = self._watch, None
        if watch is None:
            return
        watch.over = True
        for number, handler in watch.before.items():
            if handler is not None and signal.getsignal(number) is watch.handler:
                signal.signal(number, handler)

    def _hold(self) -> None:
        """Before a fork. The interpreter of a child forgets the signals that came before it was told of the fork."""
        self._masks.held = signal.pthread_sigmask(signal.SIG_BLOCK, () if self._watch is None else self._numbers)

    def _let_through(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.held)

    def _let_through_in_child(self) -> None:
        self.put_back()
        self._let_through()

    def _note(self, watch: _Watch, number: int, frame: FrameType | None) -> None:
        before = watch.before.get(number)
        if os.getpid() != self._process:  # a child, whose fork the interpreter was not told of
            self._leave_to(before, number)
        elif watch.over:
            if callable(before):
                before(number, frame)
            elif signal.getsignal(number) is watch.handler:  # put there again by a handler that came later
                self._leave_to(before, number)
        else:
            self.received = signal.Signals(number)
            if self._chained and callable(before):
                before(number, frame)

    def _leave_to(self, before: Any, number: int) -> None:
        signal.signal(number, signal.SIG_DFL if before is None else before)
        os.kill(os.getpid(), number)


class WatchedFile:
    """Notes that a file was made, or changed, after the watch began: ``touch FILE``.

    A file that an earlier job was told by says nothing to this one, whatever the clocks of the machines say. What
    cannot be looked at counts as unchanged: the training goes on.

    Args:
        path: of the file; None watches nothing.
        every_s: seconds between looks.
    """

    def __init__(self, path: Path | None, every_s: float = LOOK_EVERY_S) -> None:
        self._path, self._every_s = path, every_s
        self._first = self._look()
        self._next_s = time.monotonic() + every_s
        self._changed = False

    def changed(self) -> bool:
        """Whether it has, by the last look."""
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
