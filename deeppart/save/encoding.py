"""Encodes the chunks of a part ahead of whoever writes them, on a few threads."""

from __future__ import annotations

import mmap
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace

import xxhash

from deeppart.codec import ROOM_BYTES, Chooser, EncodedChunk
from deeppart.codec.base import RawCodec
from deeppart.part import ChunkPlace, strong_digest
from deeppart.save.workers import Workers

#: Told of every chunk that was encoded: dtype tag, raw bytes, encoded bytes, seconds.
Watch = Callable[[str, int, int, float], None]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk to be encoded.

    Attributes:
        raw: its bytes; not to change while it is in work.
        dtype: tag of what they are.
        encoded: its encoded bytes, if there are any already, or None.
        raw_digest: xxh3-128 of its bytes, where that is known already.
        place: its place, if it lies in a file already and is not encoded at all; or None.
        strong_digest: sha256 of its bytes, where that is known already.
    """

    raw: memoryview
    dtype: str
    encoded: EncodedChunk | None = None
    raw_digest: bytes | None = None
    place: ChunkPlace | None = None
    strong_digest: bytes | None = None


class Encoders:
    """Threads that encode."""

    def __init__(self, threads: int, prepare: Callable[[], None] = lambda: None) -> None:
        self.most_ahead = threads + 1
        self._workers = Workers(threads, "deeppart-encode", prepare)

    def run(
        self, chunks: Iterable[Chunk], chooser: Chooser, watch: Watch | None = None, *, signed: bool = False
    ) -> Generator[EncodedChunk | ChunkPlace, None, None]:
        """Encode chunks, up to ``most_ahead`` of them before the one that is asked for; in order.

        Chunks that lie somewhere already come out as their places. With ``signed``, all others come with their strong
        digests, which the threads take of those that are stored raw, too. An encoded chunk lasts until the next one is
        asked for. Memory: one buffer more than threads, each as long as the longest chunk. Close the generator
        if not all chunks are taken: it waits for the threads that still read them.
        """
        rooms: list[memoryview] = []
        ahead: deque[tuple[Future[EncodedChunk] | EncodedChunk | ChunkPlace, memoryview | None]] = deque()

        def take() -> Iterator[EncodedChunk | ChunkPlace]:
            future, room = ahead.popleft()
            yield future.result() if isinstance(future, Future) else future
            if room is not None:
                rooms.append(room)

        try:
            for chunk in chunks:
                ready = chunk.place or chunk.encoded
                if ready is None and chooser.codec_for(chunk.dtype) is None:
                    digests = (chunk.raw_digest, chunk.raw_digest, chunk.strong_digest)
                    ready = EncodedChunk(RawCodec.codec_id, chunk.raw, *digests)
                if isinstance(ready, EncodedChunk) and signed and ready.strong_digest is None:
                    ahead.append((self._workers.submit(_digest, ready), None))
                elif ready is not None:
                    ahead.append((ready, None))
                else:
                    room = _room(rooms, chunk.raw.nbytes)
                    ahead.append((self._workers.submit(_encode, chunk, chooser, room, watch, signed), room))
                while ahead and (len(ahead) >= self.most_ahead or not isinstance(ahead[0][0], Future)):
                    yield from take()
            while ahead:
                yield from take()
        finally:
            for future, _ in ahead:
                if isinstance(future, Future) and not future.cancel():
                    future.exception()  # waits: the memory it reads is about to be used for something else

    def close(self) -> None:
        """End the threads, when they have finished what they are at."""
        self._workers.close()


def _room(rooms: list[memoryview], raw_bytes: int) -> memoryview:
    """A free buffer, or a new one."""
    while rooms:
        room = rooms.pop()
        if len(room) >= raw_bytes + ROOM_BYTES:
            return room
    return memoryview(mmap.mmap(-1, raw_bytes + ROOM_BYTES))


def _digest(ready: EncodedChunk) -> EncodedChunk:
    """Take the strong digest of a chunk as it is, and the other where that is missing."""
    digest = ready.digest or xxhash.xxh3_128_digest(ready.data)
    raw_digest = digest if ready.codec_id == RawCodec.codec_id else ready.raw_digest
    return replace(ready, digest=digest, raw_digest=raw_digest, strong_digest=strong_digest(ready.data))


def _encode(chunk: Chunk, chooser: Chooser, room: memoryview, watch: Watch | None, signed: bool) -> EncodedChunk:
    """Encode a chunk and take its digests, so that the thread that writes need not."""
    began = time.perf_counter()
    encoded = chooser.encode_chunk(chunk.raw, chunk.dtype, room)
    raw_digest = chunk.raw_digest or xxhash.xxh3_128_digest(chunk.raw)
    digest = raw_digest if encoded.data is chunk.raw else xxhash.xxh3_128_digest(encoded.data)
    if watch is not None:
        watch(chunk.dtype, chunk.raw.nbytes, len(encoded.data), time.perf_counter() - began)
    strong = strong_digest(encoded.data) if signed else None
    return replace(encoded, digest=digest, raw_digest=raw_digest, strong_digest=strong)
