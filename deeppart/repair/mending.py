"""What all repairs share, after a restore, in the background of a job and offline: check, put, report.

A file is read whole and checked against what its location requires before anything is made of it, and nothing takes its
name that was not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from deeppart.errors import CorruptFileError
from deeppart.model import Attempt
from deeppart.part import FileSource, PartReader, Signing, parse_base_file_name
from deeppart.recovery import LoadedPart, sound_pieces
from deeppart.storage import DurableFile


@dataclass(frozen=True, slots=True)
class Required:
    """What the location of a part file requires of it.

    Attributes:
        attempt, rank: whose part; None: of whatever checkpoint or rank, as of a base.
        index_digests: what its index may be; empty: anything.
        digest: of the whole file; None: anything.
    """

    attempt: Attempt | None
    rank: int | None = None
    index_digests: frozenset[str] = frozenset()
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """A part file, all of which is sound.

    Attributes:
        nbytes: its length.
        digest: xxh3-128 of all of it.
        base_names: of the files beside it in which chunks of it lie; these were not read.
    """

    nbytes: int
    digest: str
    base_names: tuple[str, ...]


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


def check_file(path: Path, required: Required, signing: Signing | None) -> Checked:
    """Read all of a part or base; raises FormatError or StorageError if it is not sound, or not what is required."""
    with FileSource(path) as source:
        reader = PartReader(
            source,
            where=str(path),
            expected_attempt=required.attempt,
            expected_rank=required.rank,
            signing=None if required.attempt is None else signing,
        )
        if required.index_digests and reader.index_digest not in required.index_digests:
            raise CorruptFileError(
                "it is another file than the one that belongs here",
                expected=f"the index {' or '.join(sorted(required.index_digests))}",
                found=f"the index {reader.index_digest}",
                where=str(path),
            )
        digest = reader.verify(expected_digest=required.digest)
        return Checked(source.size, digest, reader.base_names)


def required_of_base(name: str) -> Required:
    """A base is required to be the file that its name says."""
    parsed = parse_base_file_name(name)
    assert parsed is not None
    return Required(None, parsed[0], frozenset({parsed[2]}))


def put_part(
    part: LoadedPart,
    open_base: Callable[[str], DurableFile | None],
    open_part: Callable[[], DurableFile],
    digest: str | None = None,
) -> None:
    """Write a part that was checked, and before it what it refers to; ``open_base`` gives None for what is there.

    ``digest``: of the file that is to be written; it gets its name only if it has that.
    """
    for name, path in part.bases():
        if (file := open_base(name)) is not None:
            file.fill(sound_pieces(path))
    open_part().fill(part.pieces() if digest is None else _with_digest(part.pieces(), digest))


def _with_digest(pieces: Iterable[memoryview | bytes], digest: str) -> Iterator[memoryview | bytes]:
    whole = xxhash.xxh3_128()
    for piece in pieces:
        whole.update(piece)
        yield piece
    if whole.hexdigest() != digest:
        raise CorruptFileError("the part that was found has another digest", expected=digest, found=whole.hexdigest())
