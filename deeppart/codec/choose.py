"""Which codec a chunk gets: what the ``compression`` key of the configuration means.

* ``none``: every chunk is stored raw.
* ``zstd``, ``zstd:LEVEL``: every chunk is compressed, and stored raw when that does not make it smaller.
* ``auto``: a chunk is compressed (level 1) only when a sample of it shrinks well; most of a float32 state does not,
  and finding that out costs a fifth of a memory copy of the chunk.
"""

from __future__ import annotations

import re

from deeppart.codec.base import EncodedChunk
from deeppart.codec.raw import RawCodec
from deeppart.codec.zstd import DEFAULT_LEVEL, MAX_LEVEL, MIN_LEVEL, ZstdCodec
from deeppart.errors import ConfigError

#: ``auto`` looks at this many bytes from the start, the middle and the end of a chunk.
SAMPLE_BYTES = 16 * 1024
#: ``auto`` compresses a chunk when its sample shrinks to at most this fraction. float32 weights and moments shrink
#: to about 0.92 at 0.7 GB/s, which does not pay; bfloat16 to about 0.78, integers and zeros to much less.
AUTO_MAX_RATIO = 0.85
#: ``auto`` compresses at this level: on tensor bytes level 3 came out no smaller than level 1, and slower.
AUTO_LEVEL = 1

_ALLOWED = f'"auto", "none", "zstd" or "zstd:LEVEL" with LEVEL from {MIN_LEVEL} to {MAX_LEVEL}'
_ZSTD = re.compile(r"zstd(?::(-?[0-9]{1,3}))?", re.ASCII)


class Chooser:
    """Encodes chunks as ``compression`` says; never changes once made, so threads may share one.

    Args:
        compression: ``"auto"``, ``"none"``, ``"zstd"`` (level 3) or ``"zstd:LEVEL"``.

    Raises:
        ConfigError: any other value.
    """

    def __init__(self, compression: str) -> None:
        self.compression = compression
        self._zstd = _zstd_of(compression)
        self._samples_first = compression == "auto"

    def encode_chunk(self, raw: memoryview) -> EncodedChunk:
        """Encode one chunk; a chunk stored raw shares the memory of ``raw``.

        Args:
            raw: the chunk's bytes, contiguous.

        Cost of ``auto`` for a 4 MiB chunk that ends up raw: 55 us measured here, next to 280 us for a warm copy of
        the chunk; a float32 part is written into nowhere at 7.2 GB/s instead of 8.2.
        """
        if self._zstd is None or (self._samples_first and not _sample_shrinks(raw, self._zstd)):
            return EncodedChunk(RawCodec.codec_id, raw)
        encoded = self._zstd.encode(raw)
        if len(encoded) >= raw.nbytes:
            return EncodedChunk(RawCodec.codec_id, raw)
        return EncodedChunk(ZstdCodec.codec_id, encoded)


def _zstd_of(compression: str) -> ZstdCodec | None:
    """Return the zstd codec that ``compression`` asks for, or None for ``none``."""
    if compression == "none":
        return None
    if compression == "auto":
        return ZstdCodec(AUTO_LEVEL)
    if compression == "tensor":
        raise ConfigError(
            'compression = "tensor" is not available: this version of deeppart does not have the tensor codec',
            expected=_ALLOWED,
            found='"tensor"',
            todo='use compression = "auto"',
        )
    match = _ZSTD.fullmatch(compression)
    level = DEFAULT_LEVEL if match is None or match[1] is None else int(match[1])
    if match is None or not MIN_LEVEL <= level <= MAX_LEVEL:
        raise ConfigError("unknown value for compression", expected=_ALLOWED, found=repr(compression))
    return ZstdCodec(level)


def _sample_shrinks(raw: memoryview, zstd: ZstdCodec) -> bool:
    """Tell whether three samples of ``raw``, compressed together, shrink to ``AUTO_MAX_RATIO`` or less."""
    if raw.nbytes <= 3 * SAMPLE_BYTES:
        return True  # trying the chunk itself costs no more than a sample
    middle = (raw.nbytes - SAMPLE_BYTES) // 2
    # One call for all three: each call hands the GIL back and may wait for it behind the training thread.
    sample = b"".join((raw[:SAMPLE_BYTES], raw[middle : middle + SAMPLE_BYTES], raw[-SAMPLE_BYTES:]))
    return len(zstd.encode(memoryview(sample))) <= AUTO_MAX_RATIO * len(sample)
