"""The persistent level: part files and manifests on the parallel file system.

The manifest is the commit. Rank 0 alone commits and retires; it holds the directory (:mod:`deeppart.storage.owner`).
"""

from __future__ import annotations

from pathlib import Path

from deeppart import access
from deeppart.access import storage_error
from deeppart.model import Attempt, Level, StepKey
from deeppart.part import Signing, part_file_name
from deeppart.storage.files import DurableFile, create_file
from deeppart.storage.lineage import LINEAGE_NAME
from deeppart.storage.rate import RateLimit
from deeppart.storage.steps import MANIFEST_NAME, remove_steps, step_directory


class PersistentLevel:
    """Step directories with manifests under ``persistent_dir``."""

    name: str = Level.PERSISTENT

    def __init__(self, directory: Path, limit: RateLimit | None = None, signing: Signing | None = None) -> None:
        self.root, self.signing = directory, signing
        self._limit = limit

    def part_path(self, attempt: Attempt, rank: int) -> Path:
        """Where a rank's part lies."""
        return step_directory(self.root, attempt.key) / part_file_name(rank, attempt.world_size)

    def open_part(self, attempt: Attempt, rank: int) -> DurableFile:
        """A file that becomes a rank's part when it is committed."""
        self._check_mounted()
        return DurableFile(self.part_path(attempt, rank), direct=True, limit=self._limit)

    def _check_mounted(self) -> None:
        """Refuse to write if the file system is not mounted (any more): nothing must get into the empty mount point."""
        try:
            access.lstat(self.root / LINEAGE_NAME)
        except OSError as error:
            todo = "check that the file system is mounted; if someone removed the file alone, end the job and start it"
            raise storage_error(
                "persistent_dir has lost its lineage record", error, self.root / LINEAGE_NAME, todo=todo
            ) from error

    def commit(self, key: StepKey, manifest: bytes) -> None:
        """Make a step a checkpoint: its manifest appears, complete and durable, or not at all."""
        create_file(step_directory(self.root, key) / MANIFEST_NAME, manifest)

    def withdraw(self, key: StepKey) -> None:
        """Take a commit of this session back."""
        path = step_directory(self.root, key) / MANIFEST_NAME
        try:
            access.remove(path)
            access.sync_directory(path.parent)
        except OSError as error:
            raise storage_error("cannot withdraw a commit", error, path) from error

    def may_be_committed(self, key: StepKey) -> bool:
        """True if a step has a manifest, or if that cannot be found out."""
        try:
            return access.exists(step_directory(self.root, key) / MANIFEST_NAME)
        except OSError:
            return True

    def remove(self, keys: set[StepKey]) -> None:
        """Remove steps."""
        remove_steps(self.root, keys)
