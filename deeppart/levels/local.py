"""The local level: part files on node-local storage, the fast first copy.

There is no manifest here: a step is complete when the parts found on all nodes together are one attempt's whole set.
Files lie under ``local_dir/<lineage>/``, so that other experiments' leftovers in the same scratch directory can never
be mistaken for ours.
"""

from __future__ import annotations

import os
from pathlib import Path

from deeppart.errors import DeeppartError, FormatError, StorageError
from deeppart.levels.files import (
    DurableFile,
    list_steps,
    make_directory,
    remove_steps,
    step_directory,
    storage_error,
    write_file,
)
from deeppart.model import Attempt
from deeppart.part import FileSource, PartReader, parse_part_file_name, part_file_name
from deeppart.restart import StoredPart


class LocalLevel:
    """Part files of this node.

    Args:
        directory: the node-local directory of this rank.
        lineage: 32 hex digits of the persistent directory's lineage.

    Raises:
        StorageError: the directory cannot be created or written.
    """

    name = "local"

    def __init__(self, directory: Path, lineage: str) -> None:
        self.root = directory / lineage
        make_directory(self.root)
        probe = self.root / f".probe-{os.getpid()}"
        try:
            write_file(probe, b"")
            os.unlink(probe)
        except OSError as error:
            raise storage_error("local_dir is not writable", error, self.root) from error

    def part_path(self, attempt: Attempt, rank: int) -> Path:
        return step_directory(self.root, attempt.step) / part_file_name(rank, attempt.world_size)

    def open_part(self, attempt: Attempt, rank: int) -> DurableFile:
        return DurableFile(self.part_path(attempt, rank))

    def inventory(self) -> tuple[list[StoredPart], list[str]]:
        """Every part on this node's storage whose index is sound, and a line about each that is not."""
        return inventory(self.root, self.name)

    def steps(self) -> set[int]:
        """Steps that have anything on this node.

        Raises:
            StorageError: the directory cannot be read.
        """
        return set(list_steps(self.root))

    def retire(self, steps: set[int]) -> None:
        """Remove steps from this node.

        Raises:
            StorageError: a removal was refused; the others are still tried.
        """
        remove_steps(self.root, steps)


def inventory(root: Path, level: str) -> tuple[list[StoredPart], list[str]]:
    """Open every part file under a level's root.

    Returns:
        (sound parts, a line about each unsound one)
    """
    parts: list[StoredPart] = []
    problems: list[str] = []
    try:
        steps = list_steps(root)
    except StorageError as error:
        return [], [f"{error.summary}: {error.found}: {root}"]
    for directory in steps.values():
        try:
            names = sorted(os.listdir(directory))
        except OSError as error:
            problems.append(f"cannot list {directory}: {error.strerror}")
            continue
        for name in names:
            if parse_part_file_name(name) is not None:
                try:
                    parts.append(stored_part(directory / name, level))
                except (FormatError, StorageError) as error:
                    problems.append(one_line(error))
    return parts, problems


def stored_part(path: Path, level: str) -> StoredPart:
    """Check a part file's header, footer and index.

    Raises:
        FormatError, StorageError: it is not a sound part.
    """
    with FileSource(path) as source:
        reader = PartReader(source, where=str(path))
        return StoredPart(level, reader.attempt, reader.rank, str(path), source.size, reader.index_digest)


def one_line(error: DeeppartError) -> str:
    """An error's summary, finding and place, for a list."""
    return ": ".join(text for text in (error.where, error.summary, error.found) if text)
