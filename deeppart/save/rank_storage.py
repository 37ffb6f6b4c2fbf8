"""The storage for the parts of one rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deeppart.model import Attempt, Level
from deeppart.storage.node import NodeLevel
from deeppart.storage.owner import DirectoryOwner
from deeppart.storage.persistent import PersistentLevel


@dataclass(frozen=True, slots=True)
class RankStorage:
    """The levels to which a rank writes parts.

    Attributes:
        rank: whose.
        local: the local level, or None without one.
        persistent: the persistent level.
        owner: the directory's lock, on rank 0.
    """

    rank: int
    local: NodeLevel | None
    persistent: PersistentLevel
    owner: DirectoryOwner | None = None

    def part_path(self, level: str, attempt: Attempt) -> Path:
        """The path of the rank's part of a checkpoint, at the local or the persistent level."""
        storage = self.local if level == Level.LOCAL and self.local is not None else self.persistent
        return storage.part_path(attempt, self.rank)

    def files_of(self, level: str, attempt: Attempt) -> list[Path]:
        """The files of a checkpoint, at the local or the persistent level, to which this rank gives names."""
        if level == Level.PERSISTENT:
            return self.persistent.files_of(attempt, self.rank)
        return [self.part_path(level, attempt)]
