"""Shared by all repairs (after a restore, in the background of a job, and offline): check, write, report.

A file is read completely and checked against the requirements of its location before it is used, and only checked files
take its name.
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
    """The requirements of a part file's location.

    Attributes:
        attempt, rank: identity of the part.
        index_digests: allowed digests of its index; empty for any.
        digest: required digest of the whole file; None for any.
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
    """``repaired from ...``, or the reason why not: the text of every repair."""
    return f"repaired from {source}" if problem is None else f"not repaired: {problem}"


def check_file(path: Path, required: Required, signing: Signing | None) -> PartFile:
    """Read a whole part file; raises FormatError or StorageError if it is not sound, or not what is required."""
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
    """Write a checked part. ``digest``: the file gets its name only if it has this digest."""
    file.fill(part.pieces() if digest is None else _with_digest(part.pieces(), digest))


def _with_digest(pieces: Iterable[memoryview | bytes], digest: str) -> Iterator[memoryview | bytes]:
    whole = xxhash.xxh3_128()
    for piece in pieces:
        whole.update(piece)
        yield piece
    if whole.hexdigest() != digest:
        raise CorruptFileError("the part that was found has another digest", expected=digest, found=whole.hexdigest())
