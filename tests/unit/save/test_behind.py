"""What is written behind: all of it, in order, while the next is made; an error of the sink comes out."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from deeppart.errors import StorageError
from deeppart.part import Sink
from deeppart.save.behind import WriteBehind
from deeppart.save.workers import Workers
from deeppart.storage.files import ALIGNMENT, BLOCK_BYTES, DurableFile

RANDOM = np.random.default_rng(5)
PATIENCE_S = 20.0


class Refusing:
    """Takes so many blocks, and then no more."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks

    def write(self, buffer: memoryview | bytes) -> None:
        self.blocks -= 1
        if self.blocks < 0:
            raise StorageError("no space")


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(1, "behind")
    yield made
    made.close()


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


def test_an_error_of_the_writer_is_the_one_that_is_seen(workers: Workers) -> None:
    with pytest.raises(KeyError, match="mine"), WriteBehind(Refusing(0), workers) as behind:
        behind.write(bytes(BLOCK_BYTES))
        raise KeyError("mine")


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
