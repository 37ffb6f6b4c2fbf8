"""The protocol of a codec: a small stateless object that encodes a chunk's bytes into fewer bytes, and decodes them.

Invariants
----------
* ``decode(encode(raw), len(raw))`` has exactly the bytes of ``raw``.
* ``decode`` returns exactly ``raw_length`` bytes or raises. Lengths claimed by the encoded bytes are checked before
  memory is allocated for them.
* A codec keeps no state between calls, so threads may share one.

Digests are not checked here: the package ``part`` checks the encoded bytes before it calls ``decode``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from deeppart.errors import CorruptFileError

#: Memory for an encoded chunk exceeds the length of the chunk by this, so that codecs need no bounds checks.
ROOM_BYTES = 256


class Codec(Protocol):
    """A way to store the bytes of one chunk.

    Attributes:
        codec_id: number of the codec in the chunk table of a part file; never reused for another codec.
        name: short name for reports.
    """

    @property
    def codec_id(self) -> int: ...

    @property
    def name(self) -> str: ...

    def encode(self, raw: memoryview, room: memoryview | None = None) -> memoryview | bytes:
        """Encode ``raw`` (contiguous bytes). The result may be longer, and may use memory of ``raw`` or ``room``."""
        ...

    def decode(self, encoded: memoryview, raw_length: int, into: memoryview | None = None) -> memoryview | bytes:
        """Decode into exactly ``raw_length`` bytes, in the memory ``into`` if given."""
        ...


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """One chunk as it is written to the file.

    Attributes:
        codec_id: the codec that decodes it.
        data: the encoded bytes; for a chunk stored raw this is the caller's own memory, not a copy.
        digest: xxh3-128 of ``data``, 16 bytes; None if not computed yet.
        raw_digest: likewise of the raw bytes.
        strong_digest: sha256 of ``data``, 32 bytes, if the part will be signed; None if not computed yet.
    """

    codec_id: int
    data: memoryview | bytes
    digest: bytes | None = None
    raw_digest: bytes | None = None
    strong_digest: bytes | None = None


@dataclass(frozen=True)
class RawCodec:
    """Stores a chunk unchanged. Both methods return the memory that they get, unless ``into`` is given."""

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
        np.copyto(np.frombuffer(into, np.uint8), np.frombuffer(encoded, np.uint8))  # releases the GIL
        return into
