"""Moves one rank's share: from staging memory into a part file, and from one level's part file to another's."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from deeppart.codec import Chooser
from deeppart.errors import CorruptFileError
from deeppart.levels.files import BLOCK_BYTES, DurableFile
from deeppart.levels.relay import Relay
from deeppart.model import Attempt
from deeppart.part import FLAG_PER_RANK, PartSummary, PartWriter, Sink
from deeppart.state.document import PartDocument
from deeppart.state.layout import ShareLayout


@dataclass(frozen=True, slots=True)
class Staged:
    """A captured share.

    Attributes:
        layout: its segments and chunks.
        data: the raw stream, ``layout.nbytes`` bytes of staging memory.
        document: what the bytes mean; encoded when the part is written.
    """

    layout: ShareLayout
    data: npt.NDArray[np.uint8]
    document: PartDocument


def write_part(staged: Staged, sink: Sink, chooser: Chooser, attempt: Attempt, rank: int) -> PartSummary:
    """Encode a share chunk by chunk into a file (not yet committed).

    Raises:
        StorageError: the file's level refused.
    """
    writer = PartWriter(sink, attempt, rank)
    data = staged.data.data
    for chunk in staged.layout.chunks:
        raw = data[chunk.start : chunk.start + chunk.length]
        flags = FLAG_PER_RANK if chunk.per_rank else 0
        writer.add_chunk(raw, chooser.encode_chunk(raw), dtype=chunk.dtype, flags=flags)
    return writer.finish(staged.layout.segments, staged.document.meta())


def copy_part(relay: Relay, file: DurableFile) -> str:
    """Copy a part file to another level as it is being written.

    Returns:
        xxh3-128 of what was copied, 32 hex digits: to be compared with what was written before the copy is committed.

    Raises:
        SourceLostError: the source was not completed, or cannot be read.
        StorageError: the file's level refused.
    """
    digest = xxhash.xxh3_128()
    block = memoryview(mmap.mmap(-1, BLOCK_BYTES))
    offset = 0
    while count := relay.read_into(offset, block):
        digest.update(block[:count])
        file.write(block[:count])
        offset += count
    return digest.hexdigest()


def check_copy(found: str, summary: PartSummary, where: str) -> None:
    """Check that a copy is what was written.

    Raises:
        CorruptFileError: the source has changed since; the copy must not be committed.
    """
    if found != summary.digest:
        raise CorruptFileError(
            "a local part file changed between being written and being copied",
            expected=f"xxh3-128 {summary.digest}",
            found=found,
            where=where,
            todo="suspect the node's storage or memory",
        )
