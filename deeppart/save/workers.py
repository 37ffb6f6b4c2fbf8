"""Threads that run calls for the lifetime of the process; writing behind with them.

Not ``concurrent.futures.ThreadPoolExecutor``: it accepts no work once the interpreter begins to shut down, before
``atexit`` handlers run, one of which completes the last checkpoint. And it keeps a process from ending while one of its
threads hangs in a system call on storage.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from deeppart._pages import block_memory
from deeppart._threads import start_thread
from deeppart.part import Sink
from deeppart.storage import BLOCK_BYTES

#: Background threads run at this much lower priority than training (Linux niceness).
NICENESS = 10
#: Each thread is joined for this long at the end; it may hang in a system call on storage.
_END_S = 5.0
P = ParamSpec("P")
R = TypeVar("R")


def lower_priority() -> None:
    """Lower the priority of the calling thread: niceness is per thread on Linux; no effect elsewhere."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


class Workers:
    """Threads that take calls from one queue; calls still in it when they end fail.

    Attributes:
        failed: called with the name of a thread and the error that has ended it.
    """

    def __init__(self, threads: int, name: str, prepare: Callable[[], None] = lambda: None) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._prepare = prepare
        self.failed: Callable[[str, BaseException], object] = lambda name, error: None
        self._over: BaseException | None = None  # set once: no calls are taken from the queue after that
        self._unfinished: set[Future[Any]] = set()
        self._count = threads
        names = [f"{name}-{number}" for number in range(threads)]
        self._threads = [start_thread(self._run, each, partial(self._end, each)) for each in names]

    def submit(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Queue a call; its result or exception is that of the future."""
        future: Future[R] = Future()
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        self._calls.put((future, partial(function, *args, **kwargs)))
        if self._over is not None:
            self._refuse(self._over)
        return future

    def close(self, patience_s: float = _END_S) -> None:
        """Wait a limited time for all queued calls, and end the threads. Later calls fail."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join(patience_s)
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
                del future, call  # release the memory that the call refers to
                given = None
        except BaseException as error:
            if given is not None and not given[0].done():
                given[0].set_exception(error)
            raise

    def _end(self, name: str, error: BaseException) -> None:
        self._refuse(error)
        self.failed(name, error)

    def _refuse(self, error: BaseException) -> None:
        """Fail all queued and future calls, because a thread has ended."""
        self._over = error
        with contextlib.suppress(queue.Empty):
            while True:
                given = self._calls.get_nowait()
                if given is not None and given[0].set_running_or_notify_cancel():
                    given[0].set_exception(error)
        for future in list(self._unfinished):  # one that a thread had taken when it ended; not those that are run
            future.cancel()
        for _ in range(self._count):  # for the remaining threads
            self._calls.put(None)


class WriteBehind:
    """A sink, used in a ``with`` block, that writes blocks to another sink on another thread.

    The device writes while the processor reads, checks and digests the next block. All of it is written when the
    ``with`` block ends without an error. Exceptions of the other sink are raised by a later call, or at the end.
    Memory: two blocks of 8 MiB, aligned to pages.
    """

    def __init__(self, sink: Sink, workers: Workers) -> None:
        self._sink, self._workers = sink, workers
        self._filling, self._writing = block_memory(BLOCK_BYTES), block_memory(BLOCK_BYTES)
        self._filled = 0
        self._written: Future[object] | None = None

    def room(self) -> memoryview:
        """Memory to fill instead of calling :meth:`write`; followed by :meth:`pass_on`."""
        return self._filling[self._filled :]

    def pass_on(self, length: int) -> None:
        """Append the first bytes of :meth:`room`, which were filled."""
        self._filled += length
        if self._filled == BLOCK_BYTES:
            self._flush()

    def write(self, buffer: memoryview | bytes, /) -> None:
        """Append all of the buffer."""
        source = np.frombuffer(buffer, dtype=np.uint8)
        while len(source):
            room = np.frombuffer(self.room(), dtype=np.uint8)
            count = min(len(room), len(source))
            room[:count] = source[:count]  # numpy releases the interpreter lock during the copy
            self.pass_on(count)
            source = source[count:]

    def _flush(self) -> None:
        self._wait()
        self._filling, self._writing = self._writing, self._filling
        self._written = self._workers.submit(self._sink.write, self._writing[: self._filled])
        self._filled = 0

    def _wait(self) -> None:
        if self._written is not None:
            self._written.result()

    def __enter__(self) -> WriteBehind:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            if self._filled:
                self._flush()
            self._wait()
        elif self._written is not None:
            self._written.exception()  # waits: the write must not go to the next file with this descriptor
