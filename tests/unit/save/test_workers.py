"""Threads that do what they are given, and what is read ahead and written behind on them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from deeppart.errors import StorageError
from deeppart.part import Sink
from deeppart.save import Workers, WriteBehind
from deeppart.storage import BLOCK_BYTES, DurableFile
from deeppart.storage.files import ALIGNMENT

PATIENCE_S = 20.0


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers(1, "deeppart-test")
    yield workers
    workers.close()


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
