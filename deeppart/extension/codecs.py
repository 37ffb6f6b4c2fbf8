"""Selection of a codec of part files."""

from __future__ import annotations

from deeppart.codec import PLANE_DTYPES, Codec, ZstdCodec, codec_by_id, tensor_codec


def codec(of: str | int) -> Codec:
    """A codec with ``encode(raw, room)``, ``decode(stored, raw_bytes)`` and ``codec_id``, its number in files.

    Args:
        of: a torch dtype name, for the codec of ``compression="tensor"``; "zstd" or "zstd:LEVEL", for any data; or a
            ``codec_id``.

    Raises:
        NewerFormatError: no codec has this ``codec_id``.

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
