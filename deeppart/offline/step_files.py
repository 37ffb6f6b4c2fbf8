"""The part files of one committed step, opened one by one; a damaged one is noted, and the others still serve."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deeppart.errors import CorruptFileError
from deeppart.model import Manifest, PartRecord
from deeppart.part import FileSource, PartReader, Signing
from deeppart.state.document import RankDocument, Structure, decode_meta, decode_structure


@dataclass(frozen=True, slots=True)
class OpenPart:
    """A part whose header, footer, index and document are sound and are those the manifest names.

    Attributes:
        record: the entry of the manifest.
        source: the open file.
        reader: index, spans and chunks.
        own: its rank's own leaves and values.
    """

    record: PartRecord
    source: FileSource
    reader: PartReader
    own: RankDocument


class StepFiles:
    """A committed step: its manifest, its structure, and its parts on demand.

    Attributes:
        directory, manifest: as given.
        structure: the decoded structure document.
    """

    def __init__(self, directory: Path, manifest: Manifest, signing: Signing | None) -> None:
        self.directory, self.manifest, self._signing = directory, manifest, signing
        self.structure: Structure = decode_structure(manifest.structure, str(self.directory))

    @contextmanager
    def part(self, rank: int) -> Iterator[OpenPart]:
        """Open the part of a rank."""
        record = self.manifest.parts[rank]
        path = self.directory / record.file
        with FileSource(path) as source:
            if source.size != record.nbytes:
                raise CorruptFileError(
                    "the part file is "
                    + ("truncated" if source.size < record.nbytes else "longer than it was written"),
                    expected=f"{record.nbytes} bytes",
                    found=f"{source.size} bytes",
                    where=str(path),
                )
            reader = PartReader(
                source,
                where=str(path),
                expected_attempt=self.manifest.attempt,
                expected_rank=rank,
                expected_index_digest=record.index_digest,
                signing=self._signing,
            )
            yield OpenPart(record, source, reader, decode_meta(reader.meta, str(path), with_structure=False))
