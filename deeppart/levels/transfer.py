"""Moves one rank's share: from staging memory into a part file, and from one level's part file to another's."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from deeppart.codec import Chooser
from deeppart.errors import CorruptFileError
from deeppart.levels.files import BLOCK_BYTES, DurableFile
from deeppart.model import Attempt
from deeppart.part import FLAG_PER_RANK, FileSource, PartSummary, PartWriter
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


def write_part(staged: Staged, file: DurableFile, chooser: Chooser, attempt: Attempt, rank: int) -> PartSummary:
    """Encode a share chunk by chunk into a file (not yet committed).

    Raises:
        StorageError: the file's level refused.
    """
    writer = PartWriter(file, attempt, rank)
    data = staged.data.data
    for chunk in staged.layout.chunks:
        raw = data[chunk.start : chunk.start + chunk.length]
        flags = FLAG_PER_RANK if chunk.per_rank else 0
        writer.add_chunk(raw, chooser.encode_chunk(raw), dtype=chunk.dtype, flags=flags)
    return writer.finish(staged.layout.segments, staged.document.meta())


def copy_part(source_path: Path, file: DurableFile, summary: PartSummary) -> None:
    """Copy a finished part file to another level, checking on the way that it is still what was written.

    Raises:
        CorruptFileError: the source has changed since; the copy must not be committed.
        StorageError: either level refused.
    """
    digest = xxhash.xxh3_128()
    block = memoryview(mmap.mmap(-1, BLOCK_BYTES))
    with FileSource(source_path) as source:
        for offset in range(0, source.size, BLOCK_BYTES):
            piece = block[: min(BLOCK_BYTES, source.size - offset)]
            source.read_into(offset, piece)
            digest.update(piece)
            file.write(piece)
    if digest.hexdigest() != summary.digest:
        raise CorruptFileError(
            "a local part file changed between being written and being copied",
            expected=f"xxh3-128 {summary.digest}",
            found=digest.hexdigest(),
            where=str(source_path),
            todo="suspect the node's storage or memory; the persistent copy of this step is not committed",
        )
