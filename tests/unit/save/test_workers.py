"""Threads that do what they are given."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from deeppart.save.workers import Workers

PATIENCE_S = 20.0


def test_what_a_call_returns_or_raises_comes_out() -> None:
    workers = Workers(2, "some")
    futures = [workers.submit(divmod, 7, divisor) for divisor in (2, 0, 3)]
    assert futures[0].result(PATIENCE_S) == (3, 1) and futures[2].result(PATIENCE_S) == (2, 1)
    with pytest.raises(ZeroDivisionError):
        futures[1].result(PATIENCE_S)
    workers.close()


def test_what_was_given_is_done_before_the_end_unless_it_was_cancelled() -> None:
    done: list[Any] = []
    go_on = threading.Event()
    workers = Workers(1, "one")
    workers.submit(go_on.wait, PATIENCE_S)
    cancelled, kept = workers.submit(done.append, "cancelled"), workers.submit(done.append, "kept")
    assert cancelled.cancel()
    go_on.set()
    workers.close()
    assert done == ["kept"] and kept.done()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("one-")]


def test_no_memory_is_held_when_a_call_is_over() -> None:
    workers, memory = Workers(1, "one"), bytearray(100)
    view = memoryview(memory)
    workers.submit(len, view).result(PATIENCE_S)
    workers.submit(len, b"").result(PATIENCE_S)  # it has got to this one: it is through with the one before
    view.release()
    memory.clear()  # a BufferError if there were another view
    assert not memory
    workers.close()


def test_each_thread_is_prepared_first() -> None:
    workers = Workers(2, "nice", lambda: os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 7))
    found = [workers.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())) for _ in range(8)]
    assert [future.result(PATIENCE_S) for future in found] == [7] * 8
    workers.close()


@pytest.mark.parametrize("closed", [False, True])
def test_what_no_thread_does_any_more_fails(closed: bool) -> None:
    """An error that a call cannot be blamed for has ended the thread; or they were closed."""
    if closed:
        workers = Workers(1, "one")
        workers.close()
        futures = [workers.submit(len, "late")]
    else:
        go_on = threading.Event()
        workers = Workers(1, "one", lambda: [go_on.wait(PATIENCE_S), os._no_such_name][0])  # type: ignore[attr-defined]
        futures = [workers.submit(len, "early")]
        go_on.set()
        workers._threads[0].join(PATIENCE_S)
        futures.append(workers.submit(len, "late"))
    for future in futures:
        with pytest.raises(RuntimeError if closed else AttributeError, match=r"have ended|_no_such_name"):
            future.result(PATIENCE_S)
    workers.close()


def test_a_call_fails_with_the_thread_that_has_taken_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(future: object) -> bool:
        raise MemoryError("none left")

    workers = Workers(1, "one")
    with monkeypatch.context() as patch:
        patch.setattr(Future, "set_running_or_notify_cancel", fails)
        taken = workers.submit(len, "taken")
        with pytest.raises(MemoryError):
            taken.result(PATIENCE_S)
        workers._threads[0].join(PATIENCE_S)
    with pytest.raises(MemoryError):
        workers.submit(len, "late").result(PATIENCE_S)
    workers.close()
