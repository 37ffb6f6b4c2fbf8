"""Chunks are encoded ahead, in order, in memory that is used again."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from deeppart.codec import Chooser, EncodedChunk, codec_by_id
from deeppart.save.encoding import Chunk, Encoders
from tests.unit.save.parts import RANDOM

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def chunks_of(count: int, elements: int = 20_000) -> list[Chunk]:
    return [
        Chunk(RANDOM.standard_normal(elements + i).astype(np.float32).data.cast("B"), "float32") for i in range(count)
    ]


# --- encoders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_in_order_and_with_digests(threads: int) -> None:
    chunks = chunks_of(17)
    chunks[4:7] = [Chunk(each.raw, "uint8") for each in chunks[4:7]]
    done = EncodedChunk(1, b"done already", b"d" * 16, b"r" * 16)
    chunks[9] = Chunk(chunks[9].raw, "float32", done)
    chooser, seen = Chooser("tensor", only={"float32"}), []
    encoders = Encoders(threads)
    for chunk, encoded in zip(chunks, encoders.run(chunks, chooser, lambda *what: seen.append(what)), strict=True):
        if chunk.encoded is not None:
            assert encoded is done
            continue
        assert isinstance(encoded, EncodedChunk)
        assert (encoded.codec_id == 2) == (chunk.dtype == "float32") == (encoded.digest is not None)
        assert bytes(codec_by_id(encoded.codec_id).decode(memoryview(encoded.data), len(chunk.raw))) == chunk.raw
    assert len(seen) == 13 and all(dtype == "float32" and encoded < raw for dtype, raw, encoded, _ in seen)


def test_raw_chunks_behind_a_slow_one_do_not_pile_up() -> None:
    taken = 0

    def source() -> Any:
        nonlocal taken
        for chunk in [*chunks_of(1), *(Chunk(each.raw, "uint8") for each in chunks_of(40, 100))]:
            taken += 1
            yield chunk

    encoders = Encoders(2)
    run = encoders.run(source(), Chooser("tensor", only={"float32"}))
    next(run)
    assert taken <= encoders.most_ahead
    run.close()


def test_when_given_up_no_thread_reads_the_memory_any_more() -> None:
    started, go_on = threading.Semaphore(0), threading.Event()

    class Slow(Chooser):
        def encode_chunk(self, raw: memoryview, dtype: str = "", room: memoryview | None = None) -> EncodedChunk:
            started.release()
            assert go_on.wait(20)
            return super().encode_chunk(raw, dtype, room)

    encoders = Encoders(2)
    run = encoders.run(chunks_of(8), Slow("tensor"))
    ended = threading.Event()

    def give_up() -> None:
        with closing(run):
            threading.Timer(0.2, go_on.set).start()
            next(run)
        assert go_on.is_set()
        ended.set()

    thread = threading.Thread(target=give_up)
    thread.start()
    assert started.acquire(timeout=20)
    thread.join(20)
    assert ended.is_set()


def test_an_error_in_a_thread_comes_out() -> None:
    class Broken(Chooser):
        def encode_chunk(self, raw: memoryview, dtype: str = "", room: memoryview | None = None) -> EncodedChunk:
            raise MemoryError("no more")

    encoders = Encoders(2)
    with pytest.raises(MemoryError, match="no more"):
        list(encoders.run(chunks_of(5), Broken("tensor")))
