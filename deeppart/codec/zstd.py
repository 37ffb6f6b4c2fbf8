"""Codec 1: one Zstandard frame (RFC 8878) per chunk, with its content size in the frame header.

zstandard's (de)compressor objects must not be shared between threads, so each call creates one, which keeps the codec
stateless. The cost was not measurable on chunks of 4 MiB (about 4 us on an input of 16 KiB). Both calls release the
GIL. Frames have no checksum: the part file has a digest of every chunk.

Zstandard is also used as an entropy coder for planes of exponents, which have no matches worth finding: every byte is
Huffman-coded as a literal (docs/decisions/0008-zstd-as-an-entropy-coder.md). There are two ways, both of which make
frames that any Zstandard decodes:

* CPython's bindings (``compression.zstd``, or ``backports.zstd`` before Python 3.14) accept libzstd's parameter
  ``ZSTD_c_literalCompressionMode``, with which literals are coded although the search for matches is skipped. Measured
  on exponents: 1.17 GB/s, to 0.324 of their size.
* ``zstandard`` does not accept it. A small hash table and a large minimum match length let it find few matches: 0.80
  GB/s, 0.326. Used if the bindings refuse the parameter, which is not part of libzstd's stable interface.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import zstandard

from deeppart.errors import CorruptFileError
from deeppart.model import Compression

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

#: libzstd: ``ZSTD_c_experimentalParam5``, ``ZSTD_c_literalCompressionMode``; 1 is ``ZSTD_ps_enable``.
_LITERAL_COMPRESSION_MODE, _ALWAYS = 1002, 1
#: Positions that the search for matches skips: libzstd's maximum, a whole block.
_SKIP = 128 << 10
Coder = Callable[[memoryview], bytes]


@dataclass(frozen=True)
class ZstdCodec:
    """Encodes a chunk as one Zstandard frame."""

    level: int = Compression("zstd").level

    codec_id: ClassVar[int] = 1
    name: ClassVar[str] = "zstd"

    def encode(self, raw: memoryview, room: memoryview | None = None) -> bytes:
        """Compress ``raw`` into one frame; releases the GIL.

        Measured, one core, 4 MiB of normally distributed float32: level 1 0.7 GB/s, level 3 0.45 GB/s.
        """
        return zstandard.ZstdCompressor(level=self.level, write_content_size=True).compress(raw)

    def decode(self, encoded: memoryview, raw_length: int, into: memoryview | None = None) -> memoryview | bytes:
        """Decompress one frame into exactly ``raw_length`` bytes; releases the GIL."""
        return read_frame(encoded, raw_length, into)


class LiteralCodec(ZstdCodec):
    """Makes the same kind of frames without searching for matches, which suits one-byte floats."""

    def encode(self, raw: memoryview, room: memoryview | None = None) -> bytes:
        """Huffman-code ``raw`` into one frame; releases the GIL."""
        return literal_coder()(raw)


def read_frame(encoded: memoryview, raw_length: int, into: memoryview | None = None) -> memoryview | bytes:
    """Decompress one Zstandard frame into exactly ``raw_length`` bytes; releases the GIL.

    As a protection against decompression bombs, the content size in the frame header is compared with ``raw_length``
    before memory is allocated, and the decompressor gets no more memory than that.
    """
    check_frame(encoded, raw_length)
    try:
        raw: memoryview | bytes
        if into is None:
            decompressor = zstandard.ZstdDecompressor()
            raw = decompressor.decompress(encoded, max_output_size=raw_length, allow_extra_data=False)
            found = len(raw)
        else:
            raw, found = into, _read_into(encoded, into)
    except zstandard.ZstdError as error:
        raise CorruptFileError(
            "a zstd frame cannot be decompressed", expected=f"one frame of {raw_length} bytes", found=str(error)
        ) from error
    if found != raw_length:
        raise CorruptFileError(
            "a zstd frame decompressed to another length than its table says",
            expected=f"{raw_length} bytes",
            found=f"{found} bytes",
        )
    return raw


def check_frame(encoded: memoryview, raw_length: int) -> None:
    """Check, without decompressing, that this is one complete frame of this content size with nothing after it."""
    try:
        parameters = zstandard.get_frame_parameters(encoded)
        claimed, whole = parameters.content_size, zstd.get_frame_size(encoded)
    except (zstandard.ZstdError, zstd.ZstdError) as error:
        raise CorruptFileError(
            "a zstd frame cannot be read", expected=f"a frame of {raw_length} bytes", found=str(error)
        ) from error
    if claimed != raw_length:
        unknown = claimed == zstandard.CONTENTSIZE_UNKNOWN
        raise CorruptFileError(
            "a zstd frame holds another number of bytes than its table says",
            expected=f"{raw_length} bytes",
            found="a frame without content size" if unknown else f"a frame of {claimed} bytes",
        )
    # A skippable frame (RFC 8878, 3.1.2) also has a content size; its magic number is 0x184d2a5?.
    if whole != encoded.nbytes or parameters.dict_id or bytes(encoded[:4]) != zstandard.FRAME_HEADER:
        raise CorruptFileError(
            "a zstd frame is not alone, or not one of data",
            expected=f"one frame of {encoded.nbytes} bytes, without a dictionary",
            found=f"a frame of {whole} bytes, dictionary {parameters.dict_id}",
        )


def _read_into(encoded: memoryview, into: memoryview) -> int:
    """Decompress into ``into``. Returns the number of bytes, one more than fits if there are too many."""
    reader = zstandard.ZstdDecompressor().stream_reader(encoded)
    found: int = reader.readinto(into)
    return found + len(reader.read(1))


def literal_coder() -> Coder:
    """Return the calling thread's coder that makes one frame, with content size, without searching for matches."""
    return _KEPT.literals


def match_coder() -> Coder:
    """Return the calling thread's coder that also finds a few long matches, for bytes with repetitions."""
    return _KEPT.few_matches


def _literal_coder() -> Coder:
    if not _passes_mode_through():
        return zstandard.ZstdCompressor(compression_params=_few_matches()).compress
    compressor = zstd.ZstdCompressor(options=_no_matches())

    def encode(data: memoryview) -> bytes:
        compressor.set_pledged_input_size(data.nbytes)
        return compressor.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)

    return encode


@functools.cache
def _passes_mode_through() -> bool:
    try:
        zstd.ZstdCompressor(options=_no_matches())
    except (ValueError, zstd.ZstdError):
        return False
    return True


def _no_matches() -> dict[Any, int]:
    parameter = zstd.CompressionParameter
    return {
        parameter.strategy: zstd.Strategy.fast,
        parameter.window_log: 17,
        parameter.hash_log: 6,
        parameter.chain_log: 6,
        parameter.min_match: 7,
        parameter.target_length: _SKIP,
        _LITERAL_COMPRESSION_MODE: _ALWAYS,
    }


def _few_matches() -> zstandard.ZstdCompressionParameters:
    return zstandard.ZstdCompressionParameters(
        strategy=zstandard.STRATEGY_FAST,
        window_log=17,
        hash_log=6,
        chain_log=6,
        min_match=7,
        write_content_size=True,
    )


class _Kept(threading.local):
    """A thread's coders. Creating them for every chunk would take a tenth of the encoding time."""

    def __init__(self) -> None:
        self.literals = _literal_coder()
        self.few_matches = zstandard.ZstdCompressor(compression_params=_few_matches()).compress


_KEPT = _Kept()
