"""Codecs: the bytes of a chunk to fewer bytes, and back exactly.

Knows nothing of files, ranks or tensors. Ids of codecs are part of the file format (docs/format.md).
"""

from deeppart.codec.base import ROOM_BYTES, Codec, EncodedChunk
from deeppart.codec.choose import CODECS, AutoCompression, Chooser, codec_by_id

__all__ = ["CODECS", "ROOM_BYTES", "AutoCompression", "Chooser", "Codec", "EncodedChunk", "codec_by_id"]
