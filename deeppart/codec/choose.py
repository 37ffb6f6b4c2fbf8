"""Chooses the codec: by the id in a file, and for each chunk by the ``compression`` setting.

* ``none``: every chunk is stored raw.
* ``zstd``, ``zstd:LEVEL``: every chunk is compressed with zstd.
* ``tensor``: chunks of numbers of two or more bytes are encoded as planes, others by zstd.
* ``auto``: as ``tensor``, for dtypes and levels where measurements predict that the level completes sooner.

For ``auto``, three things are measured: the speed at which each dtype is encoded and the fraction to which it shrinks
(on a few chunks before the first checkpoint, then on all encoded chunks), and each level's bandwidth, including the
time to make files durable. Encoding and writing overlap, so a byte of state takes

    1 / bandwidth                            stored raw,
    max(1 / encoding speed, fraction / bandwidth)   encoded.

If a rank has no idle processor for encoding, the two do not overlap and their times add up. A dtype is encoded at a
level if that is faster by ``MARGIN``. The bandwidth of a level is the best of its recent measurements, because the
files of a first checkpoint are written more slowly; until there are enough, parts are stored raw. An encoding speed
measured without other load is reduced until there is one from a real part. If a level with encoded chunks completes
later than it did with raw ones, it stays raw for some checkpoints.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from deeppart.codec.base import Codec, EncodedChunk, RawCodec
from deeppart.codec.tensor import PLANE_DTYPES, TensorCodec
from deeppart.codec.zstd import LiteralCodec, ZstdCodec
from deeppart.errors import ConfigError, NewerFormatError
from deeppart.model import EXPECTED, Compression

#: The predicted gain must exceed this fraction, to allow for slightly optimistic estimates.
MARGIN = 0.05
#: A level that took this many times as long as with raw chunks stays raw for this many checkpoints.
REGRET, REGRET_CHECKPOINTS = 1.05, 20
#: Weight of the newest measurement of an encoding speed in the moving average.
_NEWEST = 0.5
#: Factor for an encoding speed that was measured on a few chunks, without other load.
_TRIED = 0.75
#: A level's bandwidth is the best of the last _RECENT measurements, and unknown before LEAST_MEASUREMENTS.
_RECENT, LEAST_MEASUREMENTS = 4, 2
#: Smaller parts are not measured: opening and syncing the file would dominate.
LEAST_BYTES = 8 << 20
#: zstd level for dtypes without planes: level 3 made tensor bytes no smaller, and took longer.
_OTHER_LEVEL = 1
_ALL: tuple[Codec, ...] = (RawCodec(), ZstdCodec(), TensorCodec())
#: Codecs that this version can decode, by id.
CODECS: Mapping[int, Codec] = MappingProxyType({codec.codec_id: codec for codec in _ALL})


def codec_by_id(codec_id: int, *, where: str | None = None) -> Codec:
    """Return the codec with this id."""
    codec = CODECS.get(codec_id)
    if codec is None:
        known = ", ".join(f"{codec.codec_id} ({codec.name})" for codec in CODECS.values())
        raise NewerFormatError(
            f"a chunk is encoded with codec {codec_id}, which this version of deeppart does not have",
            expected=f"one of the codecs {known}",
            found=f"codec {codec_id}",
            where=where,
            todo="read the checkpoint with a newer deeppart",
        )
    return codec


class Chooser:
    """Encodes chunks; immutable, so threads may share one."""

    def __init__(self, compression: str, only: Collection[str] | None = None) -> None:
        self.compression = compression
        self._only = only
        self._zstd = _zstd_of(compression)

    def codec_for(self, dtype: str) -> Codec | None:
        """Return the codec for chunks of a dtype; None if they are stored raw."""
        if self.compression == "none" or (self._only is not None and dtype not in self._only):
            return None
        return tensor_codec(dtype) if self._zstd is None else self._zstd

    def encode_chunk(self, raw: memoryview, dtype: str = "", room: memoryview | None = None) -> EncodedChunk:
        """Encode one chunk. It is stored raw, sharing the memory of ``raw``, if encoding does not make it smaller."""
        codec = self.codec_for(dtype)
        encoded = raw if codec is None else codec.encode(raw, room)
        if codec is None or len(encoded) >= raw.nbytes:
            return EncodedChunk(RawCodec.codec_id, raw)
        return EncodedChunk(codec.codec_id, encoded)


def tensor_codec(dtype: str) -> Codec:
    """Return the codec that ``tensor`` uses for a dtype."""
    if dtype in PLANE_DTYPES:
        return TensorCodec(dtype)
    return LiteralCodec() if dtype.startswith("float8") else ZstdCodec(_OTHER_LEVEL)


def _zstd_of(compression: str) -> ZstdCodec | None:
    """Return the zstd codec of a ``compression`` setting, or None for ``none`` and ``tensor``."""
    wanted = Compression.parse(compression)
    if wanted is None or wanted.name == "auto":
        raise ConfigError("unknown value for compression", expected=EXPECTED, found=repr(compression))
    return ZstdCodec(wanted.level) if wanted.name == "zstd" else None


class AutoCompression:
    """Measures codecs and levels, and decides what to encode. Thread-safe. ``spare``: a processor is idle to encode."""

    def __init__(self, threads: int, *, spare: bool = True) -> None:
        self._threads = threads
        self._spare = spare
        self._lock = threading.Lock()
        self._levels: dict[str, _Level] = {}
        self._dtypes: dict[str, _Dtype] = {}

    def unknown(self, dtypes: Iterable[str]) -> list[str]:
        """Return the dtypes without measurements, sorted."""
        with self._lock:
            return sorted(set(dtypes) - set(self._dtypes))

    def note_tried(self, dtype: str, raw_bytes: int, encoded_bytes: int, seconds: float) -> None:
        """Record a trial in which one thread encoded a few chunks of a dtype without other load."""
        with self._lock:
            self._dtypes[dtype] = _Dtype(_TRIED * raw_bytes / max(seconds, 1e-9), encoded_bytes / raw_bytes, False)

    def note_encoded(self, dtype: str, raw_bytes: int, encoded_bytes: int, seconds: float) -> None:
        """Record the encoding of a part's chunks of a dtype; ``seconds``: sum over all threads."""
        with self._lock:
            speed, known = raw_bytes / max(seconds, 1e-9), self._dtypes.get(dtype)
            if known is not None and known.proven:
                speed = (1 - _NEWEST) * known.speed + _NEWEST * speed
            self._dtypes[dtype] = _Dtype(speed, min(1.0, encoded_bytes / raw_bytes), True)

    def note_stored(self, level: str, nbytes: int, seconds: float) -> None:
        """Record how many bytes were stored at a level, and the time for writing and syncing them."""
        if nbytes >= LEAST_BYTES:
            with self._lock:
                self._levels.setdefault(level, _Level()).bandwidth.note(nbytes, seconds)

    def note_completed(self, level: str, raw_bytes: int, seconds: float, *, encoded: bool) -> None:
        """Record the time in which a part was completed at a level, with chunks ``encoded`` or all raw."""
        if raw_bytes < LEAST_BYTES:
            return
        with self._lock:
            known = self._levels.setdefault(level, _Level())
            if not encoded:
                known.raw_speed.note(raw_bytes, seconds)
                known.regret = max(0, known.regret - 1)
            elif known.raw_speed.value is not None and seconds > REGRET * raw_bytes / known.raw_speed.value:
                known.regret = REGRET_CHECKPOINTS

    def chooser(self, level: str, dtypes: Iterable[str]) -> tuple[Chooser, tuple[str, ...]]:
        """Return the chooser for the next part at a level, and a line for each dtype with the choice and its reason."""
        encoded: set[str] = set()
        lines = []
        with self._lock:
            known = self._levels.get(level, _Level())
            for dtype in sorted(set(dtypes)):
                gains, reason = self._judge(known, self._dtypes.get(dtype))
                name = tensor_codec(dtype).name if gains else "raw"
                lines.append(f"{dtype or 'others'}: {name}: {reason}")
                if gains:
                    encoded.add(dtype)
        return Chooser("tensor", encoded), tuple(lines)

    def _judge(self, level: _Level, dtype: _Dtype | None) -> tuple[bool, str]:
        bandwidth = level.bandwidth.value
        if bandwidth is None or dtype is None:
            return False, "the level's bandwidth is not known yet" if bandwidth is None else "not tried yet"
        if level.regret:
            return False, f"encoding made this level slower; not tried again for {level.regret} checkpoints"
        raw_s = 1 / bandwidth
        speed = dtype.speed * self._threads
        encoding_s, writing_s = 1 / speed, dtype.fraction / bandwidth
        encoded_s = max(encoding_s, writing_s) if self._spare else encoding_s + writing_s
        facts = (
            f"encodes {speed / 1e9:.2f} GB/s to {dtype.fraction:.2f} of the size, "
            f"the level takes {bandwidth / 1e9:.2f} GB/s"
        )
        turns = "" if self._spare else ", in turn, as there is no idle processor"
        gain = 100 * (1 - encoded_s / raw_s)
        promise = f"encoded, {abs(gain):.0f} % {'sooner' if gain > 0 else 'later'}"
        return encoded_s < (1 - MARGIN) * raw_s, f"{facts}{turns}: {promise}"


@dataclass(slots=True)
class _Best:
    """The best of recent measurements, in bytes per second."""

    found: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def note(self, nbytes: int, seconds: float) -> None:
        """Add a measurement."""
        self.found.append(nbytes / max(seconds, 1e-9))

    @property
    def value(self) -> float | None:
        """The best measurement; None until there are enough."""
        return max(self.found) if len(self.found) >= LEAST_MEASUREMENTS else None


@dataclass(slots=True)
class _Level:
    bandwidth: _Best = field(default_factory=_Best)
    raw_speed: _Best = field(default_factory=_Best)
    regret: int = 0


@dataclass(slots=True)
class _Dtype:
    """Raw bytes per second of one thread, encoded bytes per raw byte; ``proven`` if measured on a real part."""

    speed: float
    fraction: float
    proven: bool
