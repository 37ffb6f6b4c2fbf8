"""The tensor codec as an extension of DCP's own writer and reader of files."""

from __future__ import annotations

from typing import IO, cast

from deeppart.errors import NewerFormatError
from deeppart.interop.dcp.codec_stream import DESCRIPTOR, NAME, VERSION, DecodingStream, EncodingStream

try:
    from torch.distributed.checkpoint._extension import ExtensionRegistry, StreamTransformExtension
except ImportError as error:
    raise ImportError(
        "this torch has no extensions of DCP (torch.distributed.checkpoint._extension): they came with torch 2.7"
    ) from error


class TensorCodecExtension(StreamTransformExtension):
    """Compresses tensors by their planes, as ``compression="tensor"`` does, and what is no tensor by zstd.

        FileSystemWriter(path, _extensions=[TensorCodecExtension()])
        FileSystemReader(path, _extension_registry=extension_registry())

    Every byte of the stream comes back. What is read is checked by digests, which DCP's own zstd and its plain files
    do not have. What it costs:

    - A reader must have it registered: ``dcp.load(state, checkpoint_id=path)`` alone refuses the checkpoint by the name
      of the extension. :func:`deeppart.interop.dcp.load` reads it.
    - DCP reads an item that went through any extension whole, for each part that a rank needs of it: loading into
      another sharding reads and decodes more than it needs.
    - DCP's extensions are experimental, behind names with an underscore, and there since torch 2.7.

    DCP does not tell an extension what it is given. The dtype and the place of a tensor are found in the beginning of
    what ``torch.save`` writes, whose pickle is not executed; what is not recognized goes through zstd.
    """

    @staticmethod
    def registry_name() -> str:
        """The name in the metadata of checkpoints."""
        return NAME

    @staticmethod
    def from_descriptor(version: str) -> TensorCodecExtension:
        """The extension for a version of its format."""
        if version != VERSION:
            raise NewerFormatError(
                "a DCP checkpoint was written by a newer tensor codec",
                expected=DESCRIPTOR,
                found=f"{NAME}/{version}",
                todo="read it with a newer deeppart",
            )
        return TensorCodecExtension()

    def get_descriptor(self) -> str:
        """The name with the version of the format."""
        return DESCRIPTOR

    def transform_to(self, output: IO[bytes]) -> IO[bytes]:
        """A file whose content goes to ``output`` in frames."""
        return cast(IO[bytes], EncodingStream(output))

    def transform_from(self, input: IO[bytes]) -> IO[bytes]:  # noqa: A002
        """A file that has the content of the frames in ``input``.

        Reading it raises CorruptFileError where the frames are damaged.
        """
        return cast(IO[bytes], DecodingStream(input))


def extension_registry() -> ExtensionRegistry:
    """DCP's extensions and this one, for ``FileSystemReader(path, _extension_registry=...)``."""
    registry = ExtensionRegistry()
    registry.register(TensorCodecExtension)
    return registry
