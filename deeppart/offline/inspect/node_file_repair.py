"""Repairing a node file: a new one is written, of its sound sections and of sound copies of the others.

A section of which there is no sound copy goes into the new file as it is, as far as it is found: what is sound of it
can still be read, and so can the other sections. Where the table itself is damaged, sections are looked for where they
can begin; the manifest says how long each is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from deeppart.errors import CorruptFileError, DeeppartError, FormatError, StorageError
from deeppart.model import Attempt, PartRecord
from deeppart.part import (
    HEADER_BYTES,
    SECTION_ALIGNMENT,
    FileSource,
    NodeTable,
    PartReader,
    Section,
    SectionPath,
    Signing,
    read_table,
)
from deeppart.part.format import PartHeader
from deeppart.storage.files import DurableFile
from deeppart.storage.sections import complete

_BLOCK_BYTES = 8 << 20
#: What became of a section that was damaged: where its bytes are from now; or why it is as it was.
Outcome = str | DeeppartError
#: Gives the bytes of a sound copy of a part in another file, and says which one; or raises.
Elsewhere = Callable[[PartRecord], tuple[Iterable[memoryview | bytes], str]]


@dataclass(frozen=True, slots=True)
class DamagedNodeFile:
    """A node file to repair.

    Attributes:
        path: of the file, which need not be there.
        attempt: whose.
        records: what the manifest says of its parts, by ascending rank.
        signing: the keys; a section must be signed with one of them to be sound. None: not checked.
    """

    path: Path
    attempt: Attempt
    records: Sequence[PartRecord]
    signing: Signing | None

    def repair(self, elsewhere: Elsewhere) -> dict[int, Outcome]:
        """Write the file anew, in place of the damaged one, if that repairs anything.

        Memory: what ``elsewhere`` takes.

        Returns:
            rank -> what became of its section, of those that were damaged.

        Raises:
            StorageError: it cannot be written. CorruptFileError: a file changed while it was read.
        """
        old = self._table()
        outcomes, sections = dict[int, Outcome](), list[Section]()
        file = DurableFile(self.path, over="damaged")
        try:
            for record in self.records:
                at = -(-sections[-1].end // SECTION_ALIGNMENT) * SECTION_ALIGNMENT if sections else 0
                file.skip(at - file.nbytes)
                told = old.get(record.rank)
                found = self._sound(record, told)
                if found is None:
                    outcomes[record.rank] = self._replace(file, record, told, elsewhere)
                else:
                    self._copy(file, found, record.digest)
                    if found != told:
                        outcomes[record.rank] = f"the file itself, whose table was damaged: {self.path}"
                sections.append(Section(record.rank, at, file.nbytes - at, record.index_digest))
        except BaseException:
            file.abort()
            raise
        has_gained = any(isinstance(outcome, str) for outcome in outcomes.values())
        if has_gained or (not old and any(map(self._look_for, self.records))):
            complete(file, NodeTable(self.records[0].rank, self.attempt.world_size, tuple(sections)))
        else:
            file.abort()
        return outcomes

    def _table(self) -> dict[int, Section]:
        """rank -> section, as the table says; {} where it is damaged."""
        first = self.records[0].rank
        try:
            with FileSource(self.path) as source:
                table = read_table(source, SectionPath(str(self.path), first, first, self.attempt.world_size))
        except (FormatError, StorageError):
            return {}
        return {section.rank: section for section in table.sections}

    def _sound(self, record: PartRecord, told: Section | None) -> Section | None:
        """The section that holds a part as the manifest has it: where the table says, or else where it is found."""
        if told is not None and self._is_sound(record, told):
            return replace(told, index_digest=record.index_digest)
        found = self._look_for(record)
        return found if found is not None and found != told and self._is_sound(record, found) else None

    def _look_for(self, record: PartRecord) -> Section | None:
        """The place of a section, by its header, without the table."""
        try:
            with FileSource(self.path) as source:
                for at in range(0, source.size - record.nbytes + 1, SECTION_ALIGNMENT):
                    try:
                        header = PartHeader.decode(source.read_at(at, HEADER_BYTES), where=source.path)
                    except FormatError:
                        continue
                    if (header.attempt, header.rank) == (self.attempt, record.rank):
                        return Section(record.rank, at, record.nbytes, record.index_digest)
        except (FormatError, StorageError):
            pass
        return None

    def _is_sound(self, record: PartRecord, section: Section) -> bool:
        """True if every byte of a section is what the manifest says."""
        try:
            with FileSource(self.path, section) as source:
                reader = PartReader(
                    source,
                    where=str(self.path),
                    expected_attempt=self.attempt,
                    expected_rank=record.rank,
                    expected_index_digest=record.index_digest,
                    signing=self.signing,
                )
                return bool(reader.verify() == record.digest)
        except (FormatError, StorageError):
            return False

    def _replace(self, file: DurableFile, record: PartRecord, old: Section | None, elsewhere: Elsewhere) -> Outcome:
        """Append a sound copy of a part; or, where there is none, its section as it is."""
        try:
            pieces, source = elsewhere(record)
        except (FormatError, StorageError) as error:
            begun, found = file.nbytes, old or self._look_for(record)
            if found is not None:
                _write(file, self._readable(found), None)
            file.skip(max(0, begun + record.nbytes - file.nbytes))  # zeros: nothing of it can be found, or read
            return error
        _write(file, pieces, record.digest)
        return source

    def _copy(self, file: DurableFile, section: Section, digest: str) -> None:
        with FileSource(self.path, section) as source:
            _write(file, _pieces(source), digest)

    def _readable(self, section: Section) -> Iterator[memoryview]:
        """A section as far as it can be read."""
        try:
            with FileSource(self.path, section) as source:
                yield from _pieces(source)
        except (FormatError, StorageError):
            return


def _pieces(source: FileSource) -> Iterator[memoryview]:
    for offset in range(0, source.size, _BLOCK_BYTES):
        yield source.read_at(offset, min(_BLOCK_BYTES, source.size - offset))


def _write(file: DurableFile, pieces: Iterable[memoryview | bytes], digest: str | None) -> None:
    """Append a part.

    Args:
        digest: that it must have; None for any.

    Raises:
        CorruptFileError: it is not what was checked before. StorageError: it cannot be written.
    """
    whole = xxhash.xxh3_128()
    for piece in pieces:
        whole.update(piece)
        file.write(piece)
    if digest is not None and whole.hexdigest() != digest:
        raise CorruptFileError(
            "a part changed while it was copied", expected=digest, found=whole.hexdigest(), where=str(file.path)
        )
