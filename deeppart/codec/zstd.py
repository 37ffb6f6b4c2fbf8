"""Codec 1: one Zstandard frame (RFC 8878) per chunk, with its content size in the frame header.

zstandard's (de)compressor objects must not be shared between threads, so each call makes its own. Measured here on
4 MiB chunks that is below the noise (about 4 us on a 16 KiB input), and it keeps the codec without state. Both calls
release the GIL. The frame carries no checksum of its own: the part file has a digest of every chunk.

Zstandard also serves as an entropy coder for planes of exponents, among which there are no matches worth finding: it
looks for none, and Huffman-codes every byte as a literal (docs/decisions/0008-zstd-as-an-entropy-coder.md). Two
libraries do that, with frames that any Zstandard decodes:

* CPython's own bindings (``compression.zstd``, or ``backports.zstd`` before Python 3.14) pass libzstd's parameter
  ``ZSTD_c_literalCompressionMode`` through. With it, literals are coded even where matches are skipped altogether:
  1.17 GB/s of exponents, 0.324 of their size.
* ``zstandard`` does not. With a small hash table and long matches it finds few: 0.80 GB/s, 0.326. Taken where the other
  refuses, because the parameter is not part of libzstd's stable interface.
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
#: Positions that the search for matches skips: the largest value of libzstd, a whole block.
_SKIP = 128 << 10
Coder = Callable[[memoryview], bytes]


@dataclass(frozen=True)
class ZstdCodec:
    """Zstandard."""

    level: int = Compression("zstd").level

    codec_id: ClassVar[int] = 1
    name: ClassVar[str] = "zstd"

    def encode(self, raw: memoryview, room: memoryview | None = None) -> bytes:
        """Compress ``raw`` into one frame; releases the GIL.

        Source: measured here, one core, 4 MiB of float32 normals: level 1 0.7 GB/s, level 3 0.45 GB/s.
        """
        return zstandard.ZstdCompressor(level=self.level, write_content_size=True).compress(raw)

    def decode(self, encoded: memoryview, raw_length: int, into: memoryview | None = None) -> memoryview | bytes:
        """Decompress one frame into exactly ``raw_length`` bytes; releases the GIL."""
        return read_frame(encoded, raw_length, into)


class LiteralCodec(ZstdCodec):
    """The same frames, made without searching for matches, which suits one-byte floats."""

    def encode(self, raw: memoryview, room: memoryview | None = None) -> bytes:
        """Huffman-code ``raw`` into one frame; releases the GIL."""
        return literal_coder()(raw)


def read_frame(encoded: memoryview, raw_length: int, into: memoryview | None = None) -> memoryview | bytes:
    """Decompress one Zstandard frame into exactly ``raw_length`` bytes; releases the GIL.

    The frame's own claim of its content size is compared with ``raw_length`` before any memory is taken, and the
    decompressor gets no more memory than that: a decompression bomb ends here.
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
    """Check that this is one complete frame, with nothing after it and this content size; decompresses nothing."""
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
    # A skippable frame (RFC 8878, 3.1.2) has a content size, too; its magic ends in 0x184d2a5?.
    if whole != encoded.nbytes or parameters.dict_id or bytes(encoded[:4]) != zstandard.FRAME_HEADER:
        raise CorruptFileError(
            "a zstd frame is not alone, or not one of data",
            expected=f"one frame of {encoded.nbytes} bytes, without a dictionary",
            found=f"a frame of {whole} bytes, dictionary {parameters.dict_id}",
        )


def _read_into(encoded: memoryview, into: memoryview) -> int:
    """Decompress into ``into``; returns the number of bytes, one more than fits if there were more."""
    reader = zstandard.ZstdDecompressor().stream_reader(encoded)
    found: int = reader.readinto(into)
    return found + len(reader.read(1))


def literal_coder() -> Coder:
    """Makes one frame with its content size, without searching for matches; for the calling thread."""
    return _KEPT.literals


def match_coder() -> Coder:
    """The same, but where bytes repeat for a while, the frame says so; for the calling thread."""
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
    """A thread's coders: making new ones for every chunk would cost a tenth of the time."""

    def __init__(self) -> None:
        self.literals = _literal_coder()
        self.few_matches = zstandard.ZstdCompressor(compression_params=_few_matches()).compress


_KEPT = _Kept()
