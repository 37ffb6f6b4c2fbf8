"""The values of the ``compression`` setting."""

from __future__ import annotations

import pytest

from deeppart import Config
from deeppart.codec import Chooser
from deeppart.errors import ConfigError
from deeppart.model import EXPECTED, Compression
from deeppart.model.compression import COMPRESSIONS, MAX_LEVEL, MIN_LEVEL

IMPOSSIBLE = [
    "", "gzip", "ZSTD", "zstd:", "zstd:23", "zstd:-8", "zstd:3 ", "zstd:3\n", "zstd:a", "zstd:٣", "zstd:1000", "raw",
    "tensor:3", "auto:3", "zstdzstd:3", "none,zstd:3",
]  # fmt: skip


def test_what_it_can_be() -> None:
    for level in range(MIN_LEVEL, MAX_LEVEL + 1):
        assert Compression.parse(f"zstd:{level}") == Compression("zstd", level)
    for name in COMPRESSIONS:
        assert Compression.parse(name) == Compression(name) and f'"{name}"' in EXPECTED


@pytest.mark.parametrize("value", [*IMPOSSIBLE, 3, None, True, b"zstd", ("zstd",)])
def test_what_it_cannot_be(value: object) -> None:
    assert Compression.parse(value) is None


@pytest.mark.parametrize("value", [*COMPRESSIONS, "zstd:22", "zstd:-7", *IMPOSSIBLE])
def test_what_the_configuration_takes_the_codecs_can_do(value: str) -> None:
    """What "auto" means is decided before codecs hear of it."""
    parsed = Compression.parse(value)
    if parsed is None:
        with pytest.raises(ConfigError):
            Config(compression=value)
    if parsed is None or value == "auto":
        with pytest.raises(ConfigError) as caught:
            Chooser(value)
        assert caught.value.found == repr(value)
    else:
        assert Chooser(Config(compression=value).compression).compression == value
