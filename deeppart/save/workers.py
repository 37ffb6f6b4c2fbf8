"""Threads that do what they are given, for as long as the process lives.

Not ``concurrent.futures.ThreadPoolExecutor``: it takes no more work once the interpreter begins to end, which is before
the handlers of ``atexit`` run, in one of which the last checkpoint is completed. And it keeps a process from ending in
which one of its threads hangs in a system call on storage.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

from deeppart._threads import start_thread

#: Background threads run at this much lower priority than training (Linux niceness).
NICENESS = 10
#: At the end each thread is waited for so long; it may hang in a call to storage.
_END_S = 5.0

P = ParamSpec("P")
R = TypeVar("R")


def lower_priority() -> None:
    """Niceness is per thread on Linux; elsewhere threads stay as they are."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


class Workers:
    """Threads that take calls from one queue; calls that are left when they end fail."""

    def __init__(self, threads: int, name: str, prepare: Callable[[], None] = lambda: None) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._prepare = prepare
        self._over: BaseException | None = None  # set once: nothing is taken from the queue from then on
        self._count = threads
        self._threads = [start_thread(self._run, f"{name}-{number}", self._refuse) for number in range(threads)]

    def submit(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Have a function called; what it returns or raises comes out of the future."""
        future: Future[R] = Future()
        self._calls.put((future, partial(function, *args, **kwargs)))
        if self._over is not None:
            self._refuse(self._over)
        return future

    def close(self) -> None:
        """Wait until all that was given to them is done, for a while, and end the threads. What comes later fails."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join(_END_S)
        self._refuse(RuntimeError("the threads for this have ended"))

    def _run(self) -> None:
        self._prepare()
        given = None
        try:
            while (given := self._calls.get()) is not None:
                future, call = given
                if future.set_running_or_notify_cancel():
                    try:
                        future.set_result(call())
                    except BaseException as error:
                        future.set_exception(error)
                del future, call  # with the call, they hold memory that may be waited for
                given = None
        except BaseException as error:
            if given is not None and not given[0].done():
                given[0].set_exception(error)
            raise

    def _refuse(self, error: BaseException) -> None:
        """A thread has ended: what is left in the queue, and what comes, fails."""
        self._over = error
        with contextlib.suppress(queue.Empty):
            while True:
                given = self._calls.get_nowait()
                if given is not None and given[0].set_running_or_notify_cancel():
                    given[0].set_exception(error)
        for _ in range(self._count):  # of those that are left
            self._calls.put(None)
