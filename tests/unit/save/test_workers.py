"""Threads that do what they are given, and what is read ahead and written behind on them."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from deeppart.part import Sink
from deeppart.save import Workers, WriteBehind
from deeppart.storage import BLOCK_BYTES

PATIENCE_S = 20.0


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers(1, "deeppart-test")
    yield workers
    workers.close()


def test_a_call_that_a_thread_has_taken_and_not_begun_as_it_ends_is_cancelled(workers: Workers) -> None:
    """As an error that another thread raises in it may end it between the two; and so are all calls after it."""
    ended: list[tuple[str, BaseException]] = []
    workers.failed = lambda name, error: ended.append((name, error))
    workers.submit(int).result(PATIENCE_S)
    (thread,) = (each for each in threading.enumerate() if each.name == "deeppart-test-0")
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt))
    calls = [workers.submit(int) for _ in range(3)]
    for call in calls:
        with pytest.raises((CancelledError, KeyboardInterrupt)):
            call.result(PATIENCE_S)
    thread.join(PATIENCE_S)
    assert [(name, type(error)) for name, error in ended] == [("deeppart-test-0", KeyboardInterrupt)]


def test_when_left_the_sink_is_written_to_no_more(workers: Workers) -> None:
    """Whoever gives a file up closes it: a write on its way must not go to another one of that number."""
    started, ended = threading.Event(), threading.Event()

    class Slow:
        def write(self, buffer: memoryview | bytes) -> None:
            started.set()
            threading.Event().wait(0.2)
            ended.set()

    sink: Sink = Slow()
    with pytest.raises(KeyError), WriteBehind(sink, workers) as behind:
        behind.write(bytes(BLOCK_BYTES))
        assert started.wait(PATIENCE_S)
        raise KeyError
    assert ended.is_set()
