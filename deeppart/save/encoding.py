"""Encodes the chunks of a part on a few threads, ahead of the writing thread; ``compression`` chooses the codecs."""

from __future__ import annotations

import mmap
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace

import xxhash

from deeppart.codec import ROOM_BYTES, AutoCompression, Chooser, EncodedChunk, RawCodec
from deeppart.part import ChunkPlace, Signing, strong_digest
from deeppart.save.workers import Workers
from deeppart.state.capture import ShareLayout

#: Called for every encoded chunk: dtype tag, raw bytes, encoded bytes, seconds.
Watch = Callable[[str, int, int, float], None]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk to be encoded.

    Attributes:
        raw: its bytes; must not change until it is encoded.
        dtype: dtype tag of the bytes.
        encoded: its encoded bytes, if they exist already, or None.
        raw_digest: xxh3-128 of its bytes, if known.
        place: its place in an earlier file, if it is not written again, or None.
        strong_digest: sha256 of its bytes, if known.
    """

    raw: memoryview
    dtype: str
    encoded: EncodedChunk | None = None
    raw_digest: bytes | None = None
    place: ChunkPlace | None = None
    strong_digest: bytes | None = None


class Encoders:
    """Threads that encode chunks."""

    def __init__(self, threads: int, prepare: Callable[[], None] = lambda: None) -> None:
        self.most_ahead = threads + 1
        self.workers = Workers(threads, "deeppart-encode", prepare)

    def run(
        self, chunks: Iterable[Chunk], chooser: Chooser, watch: Watch | None = None, *, signed: bool = False
    ) -> Generator[EncodedChunk | ChunkPlace, None, None]:
        """Encode chunks, up to ``most_ahead`` of them before they are taken; in order.

        A chunk with a place yields the place. With ``signed``, all others come with strong digests, which the threads
        also compute for chunks that are stored raw. An encoded chunk is valid until the next one is taken. Memory: one
        buffer more than threads, each as long as the longest chunk. Close the generator if not all chunks are taken: it
        waits for the threads that still read them.
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
                    ahead.append((self.workers.submit(_digest, ready), None))
                elif ready is not None:
                    ahead.append((ready, None))
                else:
                    room = _room(rooms, chunk.raw.nbytes)
                    ahead.append((self.workers.submit(_encode, chunk, chooser, room, watch, signed), room))
                while ahead and (len(ahead) >= self.most_ahead or not isinstance(ahead[0][0], Future)):
                    yield from take()
            while ahead:
                yield from take()
        finally:
            for future, _ in ahead:
                if isinstance(future, Future) and not future.cancel():
                    future.exception()  # waits: the memory that it reads will be reused

    def close(self) -> None:
        """End the threads after the chunks in progress."""
        self.workers.close()


def _room(rooms: list[memoryview], raw_bytes: int) -> memoryview:
    """A free buffer, or a new one."""
    while rooms:
        room = rooms.pop()
        if len(room) >= raw_bytes + ROOM_BYTES:
            return room
    return memoryview(mmap.mmap(-1, raw_bytes + ROOM_BYTES))


def _digest(ready: EncodedChunk) -> EncodedChunk:
    """Add the strong digest of the encoded chunk, and the other digest if it is missing."""
    digest = ready.digest or xxhash.xxh3_128_digest(ready.data)
    raw_digest = digest if ready.codec_id == RawCodec.codec_id else ready.raw_digest
    return replace(ready, digest=digest, raw_digest=raw_digest, strong_digest=strong_digest(ready.data))


def _encode(chunk: Chunk, chooser: Chooser, room: memoryview, watch: Watch | None, signed: bool) -> EncodedChunk:
    """Encode a chunk and compute its digests, so that the writing thread need not."""
    began = time.perf_counter()
    encoded = chooser.encode_chunk(chunk.raw, chunk.dtype, room)
    raw_digest = chunk.raw_digest or xxhash.xxh3_128_digest(chunk.raw)
    digest = raw_digest if encoded.data is chunk.raw else xxhash.xxh3_128_digest(encoded.data)
    if watch is not None:
        watch(chunk.dtype, chunk.raw.nbytes, len(encoded.data), time.perf_counter() - began)
    strong = strong_digest(encoded.data) if signed else None
    return replace(encoded, digest=digest, raw_digest=raw_digest, strong_digest=strong)


#: Chunks per dtype that are encoded to measure the speed.
_TRIED = 3


@dataclass(slots=True)
class _Tally:
    raw_bytes: int = 0
    encoded_bytes: int = 0
    seconds: float = 0.0


class Tallies:
    """Totals of encoding the chunks of one part, by dtype. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.by_dtype: dict[str, _Tally] = {}  # guarded by the lock until the part is written

    def note(self, dtype: str, raw_bytes: int, encoded_bytes: int, seconds: float) -> None:
        """Add an encoded chunk."""
        with self._lock:
            tally = self.by_dtype.setdefault(dtype, _Tally())
            tally.raw_bytes += raw_bytes
            tally.encoded_bytes += encoded_bytes
            tally.seconds += seconds


@dataclass(frozen=True, slots=True, eq=False)
class Encoding:
    """How the chunks of one part are encoded.

    Attributes:
        chooser: chooses the codec of each chunk.
        encoders: the encoding threads.
        tallies: measures the encoding; None if that is not needed.
        signing: the key to sign the part with, or None.
        reasons: a line per dtype, for the report.
    """

    chooser: Chooser
    encoders: Encoders
    tallies: Tallies | None = None
    signing: Signing | None = None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Processors:
    """The processors available to a rank.

    Attributes:
        threads: chunks encoded at a time.
        spare: true if there are processors that neither training nor other ranks need.
        waiting: threads that can work while training waits: this rank's share of the processors.
    """

    threads: int
    spare: bool
    waiting: int = 1


class Compressing:
    """Encodes the parts of one rank."""

    def __init__(
        self,
        compression: str,
        processors: Processors,
        prepare: Callable[[], None] = lambda: None,
        signing: Signing | None = None,
    ) -> None:
        idle = compression == "none" and signing is None
        self._encoders, self._signing = Encoders(0 if idle else processors.threads, prepare), signing
        auto = compression == "auto"
        self._auto = AutoCompression(processors.threads, spare=processors.spare) if auto else None
        self._fixed = Chooser("none" if compression == "auto" else compression)

    def try_new_dtypes(self, layout: ShareLayout, data: memoryview) -> None:
        """With "auto": encode a few chunks of each new dtype, to measure speed and compression."""
        if self._auto is None:
            return
        for dtype in self._auto.unknown(chunk.dtype for chunk in layout.chunks):
            chunks = [chunk for chunk in layout.chunks if chunk.dtype == dtype]
            tally, chooser = _Tally(), Chooser("tensor")
            for place in sorted({len(chunks) * part // (_TRIED + 1) for part in range(1, _TRIED + 1)}):
                raw = data[chunks[place].start : chunks[place].start + chunks[place].length]
                began = time.perf_counter()
                tally.encoded_bytes += len(chooser.encode_chunk(raw, dtype).data)
                tally.seconds += time.perf_counter() - began
                tally.raw_bytes += len(raw)
            self._auto.note_tried(dtype, tally.raw_bytes, tally.encoded_bytes, tally.seconds)

    def begin(self, level: str, layout: ShareLayout) -> Encoding:
        """The encoding of the next part at a level."""
        chooser = self._fixed
        reasons: tuple[str, ...] = (f"compression = {self._fixed.compression!r}",)
        if self._auto is not None:
            chooser, reasons = self._auto.chooser(level, (chunk.dtype for chunk in layout.chunks))
        return Encoding(chooser, self._encoders, Tallies(), self._signing, reasons)

    def raw(self) -> Encoding:
        """The encoding of a part whose bytes stay as they are."""
        return Encoding(Chooser("none"), self._encoders, None, self._signing)

    def completed(
        self, level: str, encoding: Encoding, nbytes: int, raw_bytes: int, busy_s: float, seconds: float
    ) -> None:
        """A part was completed: use its measurements."""
        if self._auto is None or encoding.tallies is None:
            return
        by_dtype = encoding.tallies.by_dtype
        for dtype, tally in by_dtype.items():
            self._auto.note_encoded(dtype, tally.raw_bytes, tally.encoded_bytes, tally.seconds)
        self._auto.note_stored(level, nbytes, busy_s)
        self._auto.note_completed(level, raw_bytes, seconds, encoded=bool(by_dtype))

    def close(self) -> None:
        """End the threads."""
        self._encoders.close()

    @property
    def workers(self) -> Workers:
        """The threads."""
        return self._encoders.workers


def adds_to(later: Chooser, earlier: Chooser, layout: ShareLayout) -> bool:
    """True if one chooser encodes chunks that the other stores raw."""
    dtypes = {chunk.dtype for chunk in layout.chunks}
    return any(earlier.codec_for(each) is None and later.codec_for(each) is not None for each in dtypes)
