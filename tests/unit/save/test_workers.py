"""Threads that do what they are given, and what is read ahead and written behind on them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

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
