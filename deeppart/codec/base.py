"""What a codec is: one small stateless object that turns a chunk's bytes into fewer bytes and back.

Invariants
----------
* ``decode(encode(raw), len(raw))`` has exactly the bytes of ``raw``.
* ``decode`` gives exactly ``raw_length`` bytes or raises, and takes no memory beyond that for what the encoded bytes
  merely claim.
* A codec keeps no state between calls, so every thread may use the same one at the same time.

Digests are not checked here: the part room checks the encoded bytes before it calls ``decode``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Codec(Protocol):
    """A way to store the bytes of one chunk.

    Attributes:
        codec_id: number that names the codec in the chunk table of a part file; never reused for another codec.
        name: short name for reports.
    """

    @property
    def codec_id(self) -> int: ...

    @property
    def name(self) -> str: ...

    def encode(self, raw: memoryview) -> memoryview | bytes:
        """Encode ``raw`` (bytes, contiguous). The result may be longer than ``raw`` or share its memory."""
        ...

    def decode(self, encoded: memoryview, raw_length: int) -> memoryview | bytes:
        """Decode into exactly ``raw_length`` bytes; the result may share the memory of ``encoded``.

        Raises:
            CorruptFileError: ``encoded`` is not an encoding of exactly ``raw_length`` bytes.
        """
        ...


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """One chunk as it goes into the file.

    Attributes:
        codec_id: the codec that decodes it.
        data: the encoded bytes; for a chunk stored raw this is the caller's own memory, not a copy.
    """

    codec_id: int
    data: memoryview | bytes
