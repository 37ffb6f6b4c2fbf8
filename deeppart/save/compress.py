"""Compressing: what the ``compression`` setting means for the parts that one rank writes, level by level."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from deeppart.codec import AutoCompression, Chooser
from deeppart.part import Signing
from deeppart.save.encoding import Encoders
from deeppart.save.transfer import Encoding, Staged
from deeppart.state.capture.layout import ShareLayout

#: Chunks of a dtype that are encoded to see how fast that is.
_TRIED = 3


@dataclass(slots=True)
class _Tally:
    raw_bytes: int = 0
    encoded_bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class PartEncoding:
    """The way in which one part is encoded.

    Attributes:
        level: its level.
        chooser: chooses the codec of each chunk.
        encoders: the threads that do it.
        reasons: a line per dtype.
        signing: the key to sign with, or None.
    """

    level: str
    chooser: Chooser
    encoders: Encoders
    reasons: tuple[str, ...]
    signing: Signing | None = None
    tallies: dict[str, _Tally] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def encoding(self) -> Encoding:
        """For :func:`deeppart.save.transfer.write_part`; what it takes is noted here."""
        return Encoding(self.chooser, self.encoders, self.note, self.signing)

    def note(self, dtype: str, raw_bytes: int, encoded_bytes: int, seconds: float) -> None:
        """A chunk was encoded."""
        with self.lock:
            tally = self.tallies.setdefault(dtype, _Tally())
            tally.raw_bytes += raw_bytes
            tally.encoded_bytes += encoded_bytes
            tally.seconds += seconds


@dataclass(frozen=True, slots=True)
class Processors:
    """The processors that a rank has.

    Attributes:
        threads: chunks encoded at a time.
        spare: true if there are processors for them that training and the other ranks do not need.
        waiting: threads that can work at a time while training waits: this rank's share of the processors.
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

    def try_new_dtypes(self, staged: Staged) -> None:
        """With "auto": encode a few chunks of each new dtype, to see how fast that is and how small they get."""
        if self._auto is None:
            return
        for dtype in self._auto.unknown(chunk.dtype for chunk in staged.layout.chunks):
            chunks = [chunk for chunk in staged.layout.chunks if chunk.dtype == dtype]
            tally, chooser = _Tally(), Chooser("tensor")
            for place in sorted({len(chunks) * part // (_TRIED + 1) for part in range(1, _TRIED + 1)}):
                raw = staged.data.data[chunks[place].start : chunks[place].start + chunks[place].length]
                began = time.perf_counter()
                tally.encoded_bytes += len(chooser.encode_chunk(raw, dtype).data)
                tally.seconds += time.perf_counter() - began
                tally.raw_bytes += len(raw)
            self._auto.note_tried(dtype, tally.raw_bytes, tally.encoded_bytes, tally.seconds)

    def begin(self, level: str, layout: ShareLayout) -> PartEncoding:
        """The encoding of the next part at a level."""
        chooser = self._fixed
        reasons: tuple[str, ...] = (f"compression = {self._fixed.compression!r}",)
        if self._auto is not None:
            chooser, reasons = self._auto.chooser(level, (chunk.dtype for chunk in layout.chunks))
        return PartEncoding(level, chooser, self._encoders, reasons, self._signing)

    def completed(self, part: PartEncoding, nbytes: int, raw_bytes: int, busy_s: float, seconds: float) -> None:
        """A part was completed."""
        if self._auto is None:
            return
        for dtype, tally in part.tallies.items():
            self._auto.note_encoded(dtype, tally.raw_bytes, tally.encoded_bytes, tally.seconds)
        self._auto.note_stored(part.level, nbytes, busy_s)
        self._auto.note_completed(part.level, raw_bytes, seconds, encoded=bool(part.tallies))

    def close(self) -> None:
        """End the threads."""
        self._encoders.close()


def adds_to(later: Chooser, earlier: Chooser, layout: ShareLayout) -> bool:
    """True if one chooser encodes chunks that the other stores raw."""
    dtypes = {chunk.dtype for chunk in layout.chunks}
    return any(earlier.codec_for(each) is None and later.codec_for(each) is not None for each in dtypes)
