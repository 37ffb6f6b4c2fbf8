"""The check that the files of a manifest exist: by length, header, footer and index of every part, without chunks."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

from deeppart import access
from deeppart.errors import DeeppartError, FormatError, StorageError
from deeppart.model import Manifest, PartRecord
from deeppart.part import FileSource, PartReader, Signing, parse_section_path


def first_problem(directory: Path, manifest: Manifest, signing: Signing | None) -> str | None:
    """The reason why a committed step cannot be restored from its directory, as far as that can be seen; None if it
    can.
    """
    for record in manifest.parts:
        problem, _ = part_problem(directory, manifest, record, signing)
        if problem is not None:
            return f"part {record.rank} {problem}"
    return None


def part_problem(
    directory: Path, manifest: Manifest, record: PartRecord, signing: Signing | None
) -> tuple[str | None, int]:
    """The fault of one part, or None; and its length.

    The part is the one that the manifest names if its header says so and its index hashes to what the manifest says.
    The older files that it refers to must lie beside it, and be those that it names. With keys, its signature
    must hold.
    """
    path = directory / record.file
    problem, nbytes = file_length(path)
    if problem is None and nbytes != record.nbytes:
        problem = f"has {nbytes} bytes instead of {record.nbytes}"
    if problem is None:
        problem = _wrong_inside(path, manifest, record, signing)
    return problem, nbytes


def file_length(path: Path) -> tuple[str | None, int]:
    """(what is wrong, or None; bytes) of a file, or of a section of a node file."""
    if parse_section_path(path) is not None:
        return _section_length(path)
    try:
        status = access.lstat(path)
    except FileNotFoundError:
        return "is missing", 0
    except OSError as error:
        return f"cannot be looked at: {error.strerror}", 0
    return (None, status.st_size) if stat.S_ISREG(status.st_mode) else ("is not a regular file", 0)


def _section_length(path: Path) -> tuple[str | None, int]:
    try:
        with FileSource(path) as source:
            return None, source.size
    except FormatError as error:
        return f"cannot be found in its node file: {_one_line(error)}", 0
    except StorageError as error:
        missing = error.errno == errno.ENOENT
        return "is missing" if missing else f"cannot be looked at: {error.found}", 0


def _wrong_inside(path: Path, manifest: Manifest, record: PartRecord, signing: Signing | None) -> str | None:
    try:
        with FileSource(path) as source:
            reader = PartReader(
                source,
                where=str(path),
                expected_attempt=manifest.attempt,
                expected_rank=record.rank,
                expected_index_digest=record.index_digest,
                signing=signing,
            )
            try:
                reader.check_bases()
            except (FormatError, StorageError) as error:
                return f"refers to a file that cannot be used: {_one_line(error)}"
    except (FormatError, StorageError) as error:
        return f"is not as it was written: {_one_line(error)}"
    return None


def _one_line(error: DeeppartError) -> str:
    """Summary, finding and place."""
    return ": ".join(text for text in (error.where, error.summary, error.found) if text)
