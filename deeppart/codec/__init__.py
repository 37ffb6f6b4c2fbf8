"""Codecs: lossless encoding of the bytes of a chunk.

Independent of files, ranks and tensor objects. Codec ids are part of the file format (docs/format.md).
"""

from deeppart.codec.base import ROOM_BYTES, Codec, EncodedChunk, RawCodec
from deeppart.codec.choose import CODECS, AutoCompression, Chooser, codec_by_id, tensor_codec
from deeppart.codec.tensor import PLANE_DTYPES, TensorCodec
from deeppart.codec.zstd import ZstdCodec

__all__ = [
    "CODECS",
    "PLANE_DTYPES",
    "ROOM_BYTES",
    "AutoCompression",
    "Chooser",
    "Codec",
    "EncodedChunk",
    "RawCodec",
    "TensorCodec",
    "ZstdCodec",
    "codec_by_id",
    "tensor_codec",
]
