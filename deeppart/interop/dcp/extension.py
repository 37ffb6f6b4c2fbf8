"""The tensor codec as an extension of DCP's FileSystemWriter and FileSystemReader."""

from __future__ import annotations

import io
import sys
from typing import IO, cast

from deeppart.errors import NewerFormatError
from deeppart.interop.dcp.codec_stream import DESCRIPTOR, NAME, VERSION, EncodingStream, decode_stream

try:
    from torch.distributed.checkpoint._extension import ExtensionRegistry, StreamTransformExtension
except ImportError as error:
    raise ImportError(
        "this torch does not support DCP extensions (torch.distributed.checkpoint._extension): they need torch 2.7"
    ) from error


class TensorCodecExtension(StreamTransformExtension):
    """Compresses tensors as ``compression="tensor"`` does, and anything else with zstd.

        FileSystemWriter(path, _extensions=[TensorCodecExtension()])
        FileSystemReader(path, _extension_registry=extension_registry())

    The stream is lossless, and has digests that are verified when it is read, unlike DCP's own zstd and plain files.
    Limitations:

    - A reader must register the extension: ``dcp.load(state, checkpoint_id=path)`` alone rejects the checkpoint, naming
      the extension. :func:`deeppart.interop.load` reads it.
    - DCP reads an item with an extension completely for each part of it that a rank needs, so loading with another
      sharding reads and decodes more than necessary.
    - DCP's extensions are experimental, have private names, and need torch 2.7.

    DCP does not tell an extension the type of its data. Dtype and offset of the tensor are found in the head of the
    ``torch.save`` archive without reading its pickle; unrecognized data are compressed with zstd.
    """

    @staticmethod
    def registry_name() -> str:
        """The name of the extension in a checkpoint's metadata."""
        return NAME

    @staticmethod
    def from_descriptor(version: str) -> TensorCodecExtension:
        """The extension for a format version."""
        if version != VERSION:
            raise NewerFormatError(
                "a DCP checkpoint was written by a newer tensor codec",
                expected=DESCRIPTOR,
                found=f"{NAME}/{version}",
                todo="read it with a newer deeppart",
            )
        return TensorCodecExtension()

    def get_descriptor(self) -> str:
        """The name and format version."""
        return DESCRIPTOR

    def transform_to(self, output: IO[bytes]) -> IO[bytes]:
        """A file that writes encoded frames to ``output``."""
        return cast(IO[bytes], EncodingStream(output))

    def transform_from(self, input: IO[bytes]) -> IO[bytes]:  # noqa: A002
        """A file of the bytes that are encoded in ``input``; DCP reads such an item as a whole.

        Raises:
            CorruptFileError: the frames are damaged.
        """
        return io.BytesIO(decode_stream(input.read, sys.maxsize, "an item of dcp.load"))


def extension_registry() -> ExtensionRegistry:
    """DCP's own extensions and this one, for ``FileSystemReader(path, _extension_registry=...)``."""
    registry = ExtensionRegistry()
    registry.register(TensorCodecExtension)
    return registry
