"""Repairing a node file: a new one is written, of its sound sections and of sound copies of the others.

A section of which there is no sound copy goes into the new file as it is, as far as it is found: what is sound of it
can still be read, and so can the other sections. Where the table itself is damaged, sections are looked for where they
can begin; the manifest says how long each is.

A read that fails says nothing about the bytes: it may succeed the next time. So a block that cannot be read costs that
block alone, and the old file is kept under another name then. Where nothing of a section without a copy can be read,
the old file stays in its place.
"""

from __future__ import annotations

import errno
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
from deeppart.storage.files import DurableFile, complete

_BLOCK_BYTES = 8 << 20
#: The least that is read apart from the rest: a sector of a disk, or a page.
_LEAST_BYTES = 4096
#: A section whose first so many of these cannot be read is given up: on a disk, each failing read can take seconds.
_MOST_LOST_BLOCKS = 64
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

    def repair(self, elsewhere: Elsewhere, keep: Callable[[], None] = lambda: None) -> dict[int, Outcome]:
        """Write the file anew, in place of the damaged one, if that repairs anything.

        Memory: what ``elsewhere`` takes.
        """
        old = self._table()
        outcomes, sections = dict[int, Outcome](), list[Section]()
        file = DurableFile(self.path, over="damaged")
        try:
            all_read = True
            for record in self.records:
                at = -(-sections[-1].end // SECTION_ALIGNMENT) * SECTION_ALIGNMENT if sections else 0
                file.skip(at - file.nbytes)
                told = old.get(record.rank)
                found = self._sound(record, told)
                if found is None:
                    outcomes[record.rank], complete_copy = self._replace(file, record, told, elsewhere)
                    all_read &= complete_copy
                else:
                    self._copy(file, found, record.digest)
                    if found != told:
                        outcomes[record.rank] = f"the file itself, whose table was damaged: {self.path}"
                sections.append(Section(record.rank, at, file.nbytes - at, record.index_digest))
            has_gained = any(isinstance(outcome, str) for outcome in outcomes.values())
            replaces = has_gained or (not old and any(map(self._look_for, self.records)))
            if replaces and not all_read:
                keep()
        except BaseException:
            file.abort()
            raise
        if replaces:
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
        try:
            found = self._look_for(record)
        except StorageError:
            return None
        return found if found is not None and found != told and self._is_sound(record, found) else None

    def _look_for(self, record: PartRecord) -> Section | None:
        """The place of a section, by its header, without the table."""
        refused: StorageError | None = None
        try:
            with FileSource(self.path) as source:
                for at in range(0, source.size - HEADER_BYTES + 1, SECTION_ALIGNMENT):
                    try:
                        header = PartHeader.decode(source.read_at(at, HEADER_BYTES), where=source.path)
                    except FormatError:
                        continue
                    except StorageError as error:
                        refused = error
                        continue
                    if (header.attempt, header.rank) == (self.attempt, record.rank):
                        return Section(record.rank, at, record.nbytes, record.index_digest)
        except FormatError:  # no regular file
            return None
        except StorageError as error:
            refused = None if error.errno == errno.ENOENT else error
        if refused is not None:
            raise refused
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

    def _replace(
        self, file: DurableFile, record: PartRecord, old: Section | None, elsewhere: Elsewhere
    ) -> tuple[Outcome, bool]:
        """Append a sound copy of a part; or, where there is none, its section as far as it can be read."""
        try:
            pieces, source = elsewhere(record)
        except (FormatError, StorageError) as error:
            begun, found = file.nbytes, old or self._look_for(record)
            all_read = found is None or self._take_over(file, found)
            file.skip(max(0, begun + record.nbytes - file.nbytes))  # zeros: nothing of it can be found, or read
            return error, all_read
        _write(file, pieces, record.digest)
        return source, True

    def _copy(self, file: DurableFile, section: Section, digest: str) -> None:
        with FileSource(self.path, section) as source:
            _write(file, _pieces(source), digest)

    def _take_over(self, file: DurableFile, section: Section) -> bool:
        """Append a section as far as it can be read, and zeros for the rest; False if there is such a rest."""
        with FileSource(self.path) as source:
            reading = _Reading(source)
            for offset in range(section.offset, min(section.end, source.size), _BLOCK_BYTES):
                for piece in reading.pieces(offset, min(offset + _BLOCK_BYTES, section.end, source.size)):
                    file.write(piece)
        reading.check()
        return reading.refused is None


class _Reading:
    """Reads what can be read, and zeros for the rest.

    Attributes:
        refused: the first block that could not be read; None if all could.
    """

    def __init__(self, source: FileSource) -> None:
        self._source = source
        self._read = self._lost = 0
        self.refused: StorageError | None = None

    def pieces(self, start: int, stop: int) -> Iterator[memoryview | bytes]:
        """A stretch, in halves where it cannot be read as a whole; these are a second try, too."""
        try:
            piece = self._source.read_at(start, stop - start)
        except StorageError as error:
            if stop - start > _LEAST_BYTES:
                middle = start + -(-(stop - start) // (2 * _LEAST_BYTES)) * _LEAST_BYTES
                yield from self.pieces(start, middle)
                yield from self.pieces(middle, stop)
                return
            self.refused = self.refused or error
            self._lost += 1
            if self._lost >= _MOST_LOST_BLOCKS:
                self.check()
            yield bytes(stop - start)
            return
        self._read += len(piece)
        yield piece

    def check(self) -> None:
        """Raise what was refused, if nothing could be read at all."""
        if self.refused is not None and not self._read:
            raise self.refused


def _pieces(source: FileSource) -> Iterator[memoryview]:
    for offset in range(0, source.size, _BLOCK_BYTES):
        yield source.read_at(offset, min(_BLOCK_BYTES, source.size - offset))


def _write(file: DurableFile, pieces: Iterable[memoryview | bytes], digest: str | None) -> None:
    """Append a part."""
    whole = xxhash.xxh3_128()
    for piece in pieces:
        whole.update(piece)
        file.write(piece)
    if digest is not None and whole.hexdigest() != digest:
        raise CorruptFileError(
            "a part changed while it was copied", expected=digest, found=whole.hexdigest(), where=str(file.path)
        )
