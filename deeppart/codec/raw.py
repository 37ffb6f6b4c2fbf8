"""Codec 0: the bytes as they are. No copy in either direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from deeppart.errors import CorruptFileError


@dataclass(frozen=True)
class RawCodec:
    """Stores a chunk unchanged; both directions return the memory they were given."""

    codec_id: ClassVar[int] = 0
    name: ClassVar[str] = "raw"

    def encode(self, raw: memoryview) -> memoryview:
        """Return ``raw`` itself."""
        return raw

    def decode(self, encoded: memoryview, raw_length: int) -> memoryview:
        """Return ``encoded`` itself.

        Raises:
            CorruptFileError: the lengths (bytes) differ.
        """
        if encoded.nbytes != raw_length:
            raise CorruptFileError(
                "a chunk stored raw has another length than its table says",
                expected=f"{raw_length} bytes",
                found=f"{encoded.nbytes} bytes",
            )
        return encoded
