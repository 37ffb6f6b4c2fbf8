"""What all repairs share, after a restore, in the background of a job and offline: check, put, report.

A file is read whole and checked against what its location requires before anything is made of it, and nothing takes its
name that was not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from deeppart.errors import CorruptFileError
from deeppart.model import Attempt
from deeppart.nodes import PartFile
from deeppart.part import FileSource, PartReader, Signing
from deeppart.recovery import CheckedPart
from deeppart.storage import DurableFile


@dataclass(frozen=True, slots=True)
class Required:
    """What the location of a part file requires of it.

    Attributes:
        attempt, rank: whose part.
        index_digests: what its index may be; empty: anything.
        digest: of the whole file; None: anything.
    """

    attempt: Attempt
    rank: int
    index_digests: frozenset[str] = frozenset()
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Repaired:
    """The result for one damaged file. Fields: docs/commands.md, verify."""

    path: Path
    source: str | None
    problem: str | None

    def __str__(self) -> str:
        return f"{self.path}: {outcome(self.source, self.problem)}"


def outcome(source: str | None, problem: str | None) -> str:
    """``repaired from ...``, or why not: the words of every repair."""
    return f"repaired from {source}" if problem is None else f"not repaired: {problem}"


def check_file(path: Path, required: Required, signing: Signing | None) -> PartFile:
    """Read all of a part's file; raises FormatError or StorageError if it is not sound, or not what is required."""
    with FileSource(path) as source:
        reader = PartReader(
            source,
            where=str(path),
            expected_attempt=required.attempt,
            expected_rank=required.rank,
            signing=signing,
        )
        if required.index_digests and reader.index_digest not in required.index_digests:
            raise CorruptFileError(
                "it is another file than the one that belongs here",
                expected=f"the index {' or '.join(sorted(required.index_digests))}",
                found=f"the index {reader.index_digest}",
                where=str(path),
            )
        digest = reader.verify(expected_digest=required.digest)
        return PartFile(path, source.size, reader.index_digest, digest)


def put_part(part: CheckedPart, file: DurableFile, digest: str | None = None) -> None:
    """Write a part that was checked. ``digest``: of the file that is to be written; it gets its name only if it has
    that.
    """
    file.fill(part.pieces() if digest is None else _with_digest(part.pieces(), digest))


def _with_digest(pieces: Iterable[memoryview | bytes], digest: str) -> Iterator[memoryview | bytes]:
    whole = xxhash.xxh3_128()
    for piece in pieces:
        whole.update(piece)
        yield piece
    if whole.hexdigest() != digest:
        raise CorruptFileError("the part that was found has another digest", expected=digest, found=whole.hexdigest())
