"""libzstd as an entropy coder, with and without its parameter for literals."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard

from deeppart.codec import zstd
from deeppart.codec.zstd import literal_coder, match_coder

RANDOM = np.random.default_rng(7)


def test_without_the_parameter_of_libzstd_it_still_compresses(monkeypatch: pytest.MonkeyPatch) -> None:
    exponents = memoryview(
        ((RANDOM.standard_normal(300_000).astype(np.float32).view(np.uint32) >> 23) & 0xFF).astype(np.uint8).data
    )
    sizes = [len(literal_coder()(exponents))]
    monkeypatch.setattr(zstd, "_passes_mode_through", lambda: False)
    fallback = zstd._literal_coder()
    sizes.append(len(fallback(exponents)))
    for coder in (literal_coder(), match_coder(), fallback):
        assert zstandard.ZstdDecompressor().decompress(coder(exponents)) == bytes(exponents)
    assert sizes[0] <= sizes[1] < 1.02 * sizes[0] < 0.35 * len(exponents)


def test_libzstd_here_takes_the_parameter() -> None:
    assert zstd._passes_mode_through()
