"""Codec 0: the bytes as they are. No copy in either direction, unless asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from deeppart.errors import CorruptFileError


@dataclass(frozen=True)
class RawCodec:
    """Stores a chunk unchanged; both directions return the memory they were given, but for ``into``."""

    codec_id: ClassVar[int] = 0
    name: ClassVar[str] = "raw"

    def encode(self, raw: memoryview, room: memoryview | None = None) -> memoryview:
        """Return ``raw`` itself."""
        return raw

    def decode(self, encoded: memoryview, raw_length: int, into: memoryview | None = None) -> memoryview:
        """Return ``encoded`` itself, or a copy in ``into``."""
        if encoded.nbytes != raw_length:
            raise CorruptFileError(
                "a chunk stored raw has another length than its table says",
                expected=f"{raw_length} bytes",
                found=f"{encoded.nbytes} bytes",
            )
        if into is None:
            return encoded
        np.copyto(np.frombuffer(into, np.uint8), np.frombuffer(encoded, np.uint8))  # lets other threads run
        return into
