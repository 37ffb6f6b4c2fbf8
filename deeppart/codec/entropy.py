"""Zstandard (RFC 8878) as an entropy coder: it looks for no matches, and Huffman-codes every byte as a literal.

Among exponents of floats there are no matches worth finding. Two libraries do that, with frames that any Zstandard
decodes:

* CPython's own bindings (``compression.zstd``, or ``backports.zstd`` before Python 3.14) pass libzstd's parameter
  ``ZSTD_c_literalCompressionMode`` through. With it, literals are coded even where matches are skipped altogether:
  1.17 GB/s of exponents, 0.324 of their size.
* ``zstandard`` does not. With a small hash table and long matches it finds few: 0.80 GB/s, 0.326. Taken where the other
  refuses, because the parameter is not part of libzstd's stable interface.

Level 1 takes 0.25 GB/s for 0.381 (docs/decisions/0008-zstd-as-an-entropy-coder.md).
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import zstandard

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

#: libzstd: ``ZSTD_c_experimentalParam5``, ``ZSTD_c_literalCompressionMode``; 1 is ``ZSTD_ps_enable``.
_LITERAL_COMPRESSION_MODE, _ALWAYS = 1002, 1
#: Positions that the search for matches passes over: the most that libzstd takes, a whole block.
_SKIP = 128 << 10

Coder = Callable[[memoryview], bytes]


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
    """A thread's coders: to make a new one for every chunk would cost a tenth of the work."""

    def __init__(self) -> None:
        self.literals = _literal_coder()
        self.few_matches = zstandard.ZstdCompressor(compression_params=_few_matches()).compress


_KEPT = _Kept()


def literal_coder() -> Coder:
    """Makes one frame, with its content size, without looking for matches; for the calling thread."""
    return _KEPT.literals


def match_coder() -> Coder:
    """The same, but where bytes repeat for a while, the frame says so; for the calling thread."""
    return _KEPT.few_matches
