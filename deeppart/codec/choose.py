"""The choice of a codec for each chunk: the meaning of the ``compression`` key of the configuration.

* ``none``: every chunk is stored raw.
* ``zstd``, ``zstd:LEVEL``: every chunk is compressed.
* ``tensor``: chunks of numbers go through the codec made for them, others through zstd.
* ``auto``: a codec of ``tensor`` where that makes the checkpoint complete sooner (:mod:`deeppart.codec.auto`).

A chunk that a codec does not make smaller is stored raw.
"""

from __future__ import annotations

from collections.abc import Collection

from deeppart.codec.base import Codec, EncodedChunk
from deeppart.codec.raw import RawCodec
from deeppart.codec.tensor import PLANE_DTYPES, TensorCodec
from deeppart.codec.zstd import LiteralCodec, ZstdCodec
from deeppart.errors import ConfigError
from deeppart.model.compression import EXPECTED, Compression

#: ``tensor`` compresses what has no planes at this level: on tensor bytes, level 3 came out no smaller, and slower.
_OTHER_LEVEL = 1


class Chooser:
    """Encodes chunks; never changes once made, so threads may share one."""

    def __init__(self, compression: str, only: Collection[str] | None = None) -> None:
        self.compression = compression
        self._only = only
        self._zstd = _zstd_of(compression)

    def codec_for(self, dtype: str) -> Codec | None:
        """The codec for chunks of a dtype; None where they are stored raw."""
        if self.compression == "none" or (self._only is not None and dtype not in self._only):
            return None
        return tensor_codec(dtype) if self._zstd is None else self._zstd

    def encode_chunk(self, raw: memoryview, dtype: str = "", room: memoryview | None = None) -> EncodedChunk:
        """Encode one chunk; a chunk stored raw shares the memory of ``raw``."""
        codec = self.codec_for(dtype)
        encoded = raw if codec is None else codec.encode(raw, room)
        if codec is None or len(encoded) >= raw.nbytes:
            return EncodedChunk(RawCodec.codec_id, raw)
        return EncodedChunk(codec.codec_id, encoded)


def tensor_codec(dtype: str) -> Codec:
    """The codec that ``tensor`` uses for a dtype."""
    if dtype in PLANE_DTYPES:
        return TensorCodec(dtype)
    return LiteralCodec() if dtype.startswith("float8") else ZstdCodec(_OTHER_LEVEL)


def _zstd_of(compression: str) -> ZstdCodec | None:
    """The zstd codec that ``compression`` asks for, or None where it asks for others."""
    wanted = Compression.parse(compression)
    if wanted is None or wanted.name == "auto":
        raise ConfigError("unknown value for compression", expected=EXPECTED, found=repr(compression))
    return ZstdCodec(wanted.level) if wanted.name == "zstd" else None
