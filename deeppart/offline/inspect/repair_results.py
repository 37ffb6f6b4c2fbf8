"""Looks at what a repair has put in place, before it is called repaired: read as what the place requires."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from deeppart.errors import CorruptFileError, DeeppartError, FormatError, StorageError
from deeppart.model import StepKey
from deeppart.offline.inspect.parts import StepFiles
from deeppart.offline.inspect.reach import Reach
from deeppart.offline.inspect.repair_paths import file_of
from deeppart.offline.inspect.verifying import damage_of_part
from deeppart.part import (
    FileSource,
    PartReader,
    Signing,
    is_parity_file_name,
    parse_base_file_name,
    parse_part_file_name,
)
from deeppart.storage.node import file_problem, one_line
from deeppart.storage.steps import parse_step_directory_name


def is_base(path: Path) -> bool:
    """True if a file is the one that its name, that of a base, says; its chunks are not read."""
    parsed = parse_base_file_name(path.name)
    try:
        with FileSource(path) as source:
            return parsed is not None and PartReader(source, where=str(path)).index_digest == parsed[2]
    except (FormatError, StorageError):
        return False


class Results:
    """Looks at repaired files."""

    def __init__(self, reach: Reach, signing: Signing | None) -> None:
        self._reach, self._signing = reach, signing
        self._files: dict[StepKey, StepFiles] = {}

    def problem(self, path: Path) -> str | None:
        """What is still wrong with a file, all of which is read; None if it is sound, and with it what it refers to."""
        try:
            return self._in_step(path) if self._reach.is_persistent(path) else self._on_node(path)
        except DeeppartError as error:
            return one_line(error)

    def _in_step(self, path: Path) -> str | None:
        """On the persistent level: what `deeppart verify` would say."""
        directory = file_of(path).parent
        key = parse_step_directory_name(directory.name)
        step = None if key is None else self._reach.steps.get(key)
        if key is None or step is None:
            return None
        files = self._files.setdefault(key, StepFiles(directory, step.manifest, self._signing))
        base, parsed = parse_base_file_name(path.name), parse_part_file_name(path.name)
        name = str(path.relative_to(directory))
        rank = base[0] if base is not None else parsed[0] if parsed is not None else 0
        # A base may be sound beside a part that is yet to be repaired.
        found = [each for each in damage_of_part(files, rank) if base is None or each.file == name]
        return found[0].message if found else None

    def _on_node(self, path: Path) -> str | None:
        parsed = parse_part_file_name(path.name)
        if is_parity_file_name(path.name) or parsed is None:
            if parse_base_file_name(path.name) is not None and not is_base(path):
                return "it is another file than its name says"
            return file_problem(path, self._signing, lambda nbytes: None)
        rank, world_size = parsed
        attempt = self._reach.attempt_of(path, world_size)
        wanted = self._reach.wanted(attempt, rank, path, self._reach.record(attempt, rank))
        with FileSource(path) as source:
            reader = PartReader(
                source, where=str(path), expected_attempt=attempt, expected_rank=rank, signing=self._signing
            )
            if wanted and reader.index_digest not in wanted:
                raise CorruptFileError("it is encoded in another way than copies and parity here", where=str(path))
            reader.verify()
            reader.check_bases()
            for chunk in np.flatnonzero(reader.chunks["base"]).tolist():
                reader.read_chunk(chunk)
        return None
