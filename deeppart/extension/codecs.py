"""The codecs of part files, by what they are for."""

from __future__ import annotations

from deeppart.codec import PLANE_DTYPES, Codec, ZstdCodec, codec_by_id, tensor_codec


def codec(of: str | int) -> Codec:
    """A codec: ``encode(raw, room)``, ``decode(stored, raw_bytes)`` and ``codec_id``, the number that files have.

    Args:
        of: the name of a dtype of torch, for the codec of ``compression="tensor"``; "zstd" or "zstd:LEVEL", for bytes
            of any kind; or a number that ``codec_id`` gave.

    Raises:
        NewerFormatError: no codec has this number.

    Example:
        >>> from deeppart.extension import codec
        >>> chosen = codec("zstd")
        >>> stored = chosen.encode(memoryview(bytes(1000)), memoryview(bytearray(2000)))
        >>> bytes(codec(chosen.codec_id).decode(stored, 1000)) == bytes(1000)
        True
    """
    if isinstance(of, int):
        return codec_by_id(of)
    name, _, level = of.partition(":")
    if name == "zstd" and level:
        return ZstdCodec(int(level))
    return tensor_codec(of) if of in PLANE_DTYPES or of.startswith("float8") else ZstdCodec()
