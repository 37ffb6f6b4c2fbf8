"""The codecs of this version, by the id that stands in the file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from deeppart.codec.base import Codec
from deeppart.codec.raw import RawCodec
from deeppart.codec.tensor import TensorCodec
from deeppart.codec.zstd import ZstdCodec
from deeppart.errors import NewerFormatError

_ALL: tuple[Codec, ...] = (RawCodec(), ZstdCodec(), TensorCodec())

#: Every codec this version decodes, by id.
CODECS: Mapping[int, Codec] = MappingProxyType({codec.codec_id: codec for codec in _ALL})


def codec_by_id(codec_id: int, *, where: str | None = None) -> Codec:
    """Return the codec with this id."""
    codec = CODECS.get(codec_id)
    if codec is None:
        known = ", ".join(f"{codec.codec_id} ({codec.name})" for codec in CODECS.values())
        raise NewerFormatError(
            f"a chunk is encoded with codec {codec_id}, which this version of deeppart does not have",
            expected=f"one of the codecs {known}",
            found=f"codec {codec_id}",
            where=where,
            todo="read the checkpoint with a newer deeppart",
        )
    return codec
