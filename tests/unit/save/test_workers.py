"""Threads that do what they are given, and what is read ahead and written behind on them."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deeppart.errors import StorageError
from deeppart.part import Sink
from deeppart.save import Workers, WriteBehind, read_ahead
from deeppart.storage.files import ALIGNMENT, BLOCK_BYTES, DurableFile

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


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers(1, "deeppart-test")
    yield workers
    workers.close()


def test_one_is_made_while_another_is_in_use(workers: Workers) -> None:
    made: list[int] = []
    begun = threading.Event()

    def items() -> Iterator[int]:
        for number in range(4):
            if number == 1:
                begun.set()
            made.append(number)
            yield number

    ahead = read_ahead(items(), workers)
    assert next(ahead) == 0
    assert begun.wait(10)
    workers.submit(lambda: None).result(10)
    assert made == [0, 1]
    assert list(ahead) == [1, 2, 3]


def test_an_error_comes_where_its_item_would(workers: Workers) -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("of the third")

    ahead = read_ahead(items(), workers)
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(ValueError, match="of the third"):
        next(ahead)


def test_who_stops_early_waits_for_what_is_being_made(workers: Workers) -> None:
    ended: list[int] = []

    def items() -> Iterator[int]:
        yield 1
        time.sleep(0.2)
        ended.append(2)
        yield 2

    with closing(read_ahead(items(), workers)) as ahead:
        assert next(ahead) == 1
    assert ended == [2]


RANDOM = np.random.default_rng(5)


class Refusing:
    """Takes so many blocks, and then no more."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks

    def write(self, buffer: memoryview | bytes) -> None:
        self.blocks -= 1
        if self.blocks < 0:
            raise StorageError("no space")


@pytest.mark.parametrize(
    "pieces",
    [
        (),
        (0, 1),
        (BLOCK_BYTES,),
        (BLOCK_BYTES - 1, 2),
        (3 * BLOCK_BYTES + 5,),
        (4096, *[4 << 20] * 7, 100),
        (BLOCK_BYTES, BLOCK_BYTES, ALIGNMENT),
    ],
)
@pytest.mark.parametrize("filled", [False, True])
def test_all_of_it_is_written_in_order(tmp_path: Path, workers: Workers, pieces: tuple[int, ...], filled: bool) -> None:
    data = [RANDOM.bytes(length) for length in pieces]
    file = DurableFile(tmp_path / "file", direct=True)
    with WriteBehind(file, workers) as behind:
        for piece in data:
            while filled and piece:
                room = behind.room()[: len(piece)]
                room[:] = piece[: len(room)]
                behind.pass_on(len(room))
                piece = piece[len(room) :]
            behind.write(piece)
    file.commit()
    assert (tmp_path / "file").read_bytes() == b"".join(data)


def test_a_block_is_filled_while_the_one_before_is_written(workers: Workers) -> None:
    second, sink = threading.Event(), io.BytesIO()

    class Waiting:
        def write(self, buffer: memoryview | bytes) -> None:
            assert second.wait(PATIENCE_S)
            sink.write(buffer)

    data = RANDOM.bytes(2 * BLOCK_BYTES - 1)
    with WriteBehind(Waiting(), workers) as behind:
        behind.write(data)
        second.set()
    assert sink.getvalue() == data


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_an_error_of_the_sink_comes_out(workers: Workers, blocks: int) -> None:
    with pytest.raises(StorageError, match="no space"), WriteBehind(Refusing(blocks), workers) as behind:
        behind.write(bytes(2 * BLOCK_BYTES + 1))


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
